"""The turn: the one place that sees commands, messages, log and replies together.

    reads ─► decode ─► inbound columns ─► settle: deliver ─► log ─► commit: acknowledge, feed followers
                                                  └──────► flush: one write per outbox ◄──────┘

Everything that one pass of the event loop reads belongs to one turn, but for small messages that come
alone, which have a way of their own (`lane`). Publishes collect as columns;
a command that changes who is subscribed (`commands`) first settles what came before it, so that order holds
across clients. The turn ends with one flush of every outbox that got something. Delivery does not
wait for the log; acknowledgements do. Without a log they leave at once.
"""

import time
from asyncio import AbstractEventLoop, TimerHandle
from collections import Counter
from collections.abc import Callable, Hashable, Sequence

from smbroker.core.delivery import Delivery
from smbroker.core.sessions import Limits, Session, Sessions
from smbroker.dialects import mqtt, padded, pipe, semicolon, soh, typed
from smbroker.log.format import Note
from smbroker.log.log import Log
from smbroker.model.commands import Command, Publish
from smbroker.model.errors import LogError, ProtocolError, Refused, SmbError
from smbroker.model.framing import FramerOf
from smbroker.model.message import Columns, Dialect, Extra, Kind
from smbroker.model.stats import Stats
from smbroker.model.topic import Topic
from smbroker.server.access import Access
from smbroker.server.client import Client
from smbroker.server.commands import HANDLERS, tell_semicolon
from smbroker.server.commits import Ack, Commits, Told
from smbroker.server.config import Config
from smbroker.server.console import Console, printable
from smbroker.server.followers import Followers
from smbroker.server.gathering import REST, Gathering
from smbroker.server.history import History
from smbroker.server.lane import LONE_READS, MOST_LONE_READS, SMALL_READ, Lanes
from smbroker.server.throttle import Throttle

FRAMERS: dict[Hashable, FramerOf] = {
    Dialect.SOH: soh.framer,
    Dialect.PIPE: pipe.framer,
    Dialect.SEMICOLON: semicolon.framer,
    Dialect.PADDED: padded.framer,
    Dialect.TYPED: typed.framer,
    (Dialect.MQTT, 4): mqtt.framer_of(4),
    (Dialect.MQTT, 5): mqtt.framer_of(5),
}
MAX_TURN = 4 << 20  # bytes after which a turn settles early: memory stays bounded
ROW_BYTES = 1_024  # what a message counts besides its payload: frames are long, even of empty ones
CONSOLE_RETRY = 0.1  # seconds until a console that would have blocked is tried again


class Turn:
    def __init__(self, loop: AbstractEventLoop, config: Config, console: Console, access: Access | None = None) -> None:
        self.loop = loop
        self.access = access or Access(config)
        self.config = config
        self._max_payload = config.max_payload
        self.console = console
        self.stats = Stats()
        self.lanes = Lanes(self)
        self.delivery = Delivery(FRAMERS, self.stats, self.lanes.close)
        self.throttle = Throttle(loop, config.tcp.outbox_bytes, self.delivery.reaches)
        self.committed = Delivery(FRAMERS, self.stats, self.lanes.close)  # for those who are fed from the log
        self.commits: Commits | None = None
        self.followers: Followers | None = None
        self.sessions = Sessions(self.delivery, None, _limits(config))
        self.inbound = Columns()
        self._acks: list[tuple[Client, bytes]] = []
        self._notes: list[Note] = []
        self.retain: Callable[[Columns], None] | None = None  # hears of columns with retained messages
        self._bytes = 0
        self.scheduled = False  # to end with this pass of the loop
        self._reads = 0  # of this turn
        self.lone = False  # the last turn that waited for other reads had one; of those that tell (`begin_read`)
        self.at_once = 0  # reads since then …
        self.patience = LONE_READS  # … until one waits for others
        self._gathering = Gathering()
        self._later: list[Callable[[], None]] = []
        self.told_no_log: set[Dialect] = set()
        self._relayed: Callable[[Columns], None] | None = None  # without a log: hears what was delivered
        self._console_timer: TimerHandle | None = None
        self.drop_semicolon = False  # SIGUSR1: the next semicolon subscribe first drops the others

    def use_log(self, log: Log, history: History) -> Followers:
        """From here on messages are kept; before the first one."""
        self.commits = Commits(
            self.loop,
            log,
            self.stats,
            self.console,
            feed=self.committed,
            release=self._release,
            refuse=self._not_logged,
            linger=self.config.log.linger,
            recent_bytes=self.config.log.recent_bytes,
        )
        self.followers = Followers(self.committed, self.commits, history, self.console, self.later)
        self.sessions = Sessions(self.delivery, self.followers, _limits(self.config))
        return self.followers

    def rights_changed(self) -> None:
        """From here on the new ones count, also for what was just received."""
        self.delivery.forget_routes()
        self.committed.forget_routes()
        self.begin()

    @property
    def behind(self) -> bool:
        """Whether the log is behind: who reads from publishers should pause."""
        return self.commits is not None and self.commits.behind

    def later(self, callback: Callable[[], None]) -> None:
        """Calls back after the flush of this turn."""
        self._later.append(callback)
        self.begin()

    def begin(self) -> None:
        """Something was read: the turn will end when this pass of the loop has read everything."""
        if not self.scheduled:
            self.scheduled = True
            self.loop.call_soon(self.end)

    def begin_read(self, size: int) -> None:
        """As `begin`, by a reader that calls `end` afterwards unless the turn is then `scheduled`.

        While it looks as if there were one reader only, a turn need not wait for others: it ends with the read, which
        spares a pass of the loop. Now and then it does wait, to see whether that is still so."""
        self._reads += 1
        if self.scheduled:
            return
        if self.lone and self.at_once < self.patience and size <= SMALL_READ:
            self.at_once += 1
        else:
            self.begin()

    def look_around(self) -> None:
        """A turn that waits, to see whether others have come."""
        self._reads += 1
        self.begin()

    def tell_relayed(self, callback: Callable[[Columns], None] | None) -> None:
        self._relayed = callback
        self.lanes.close()

    @property
    def waited_for(self) -> bool:
        """Whether others than subscribers want messages as soon as they have come, or are committed."""
        followed = self.commits is not None and self.commits.followed
        return self._relayed is not None or followed or not self.committed.empty

    # --- commands ---

    def handle(self, client: Client, command: Command) -> None:
        if isinstance(command, tuple):
            self.publish(client, command)
        else:
            HANDLERS[type(command)](self, client, command)

    def publish(self, client: Client, message: Publish) -> None:
        self.check(client, message)
        self._append(client, message)

    def check(self, client: Client, message: Publish) -> None:
        """Raises Refused, or ProtocolError, if it is not to be taken."""
        topic, payload, _, ack = message
        self._check(client, topic, len(payload), ack)

    def _check(self, client: Client, topic: Topic, size: int, ack: bytes) -> None:
        grant = client.grant
        if grant.limited and not grant.publishes[topic]:
            self._refuse(client, "not allowed to publish to this topic")
        if size > self._max_payload:
            most = self._max_payload
            raise Refused("payload_too_long", f"payload of {size} bytes, at most {most} (max_payload)")
        if ack:
            self._check_log(client)

    @staticmethod
    def _refuse(client: Client, text: str) -> None:
        """A padded client would wait for its PubAck: its connection ends instead."""
        refused = ProtocolError if client.origin.dialect is Dialect.PADDED else Refused
        raise refused("not_allowed", text)

    def _append(self, client: Client, message: Publish) -> None:
        topic, payload, kind, ack = message
        if ack:
            self._acks.append((client, ack))
            client.owed += 1
        inbound = self.inbound
        inbound.topics.append(topic)
        inbound.payloads.append(payload)
        inbound.kinds.append(kind)
        inbound.origins.append(client.origin)
        self._bytes += len(payload) + ROW_BYTES
        if self._bytes > MAX_TURN:
            self._relieve()

    def publish_row(self, client: Client, first: Publish, payloads: list[bytes]) -> None:
        """Messages that are like the first, which was checked, but for their payload, which is no longer than its."""
        topic, payload, kind, ack = first
        if ack:
            self._acks += [(client, ack)] * len(payloads)
            client.owed += len(payloads)
        inbound, count = self.inbound, len(payloads)
        inbound.topics += [topic] * count
        inbound.payloads.extend(payloads)
        inbound.kinds += [kind] * count
        inbound.origins += [client.origin] * count
        self._bytes += (len(payload) + ROW_BYTES) * count
        if self._bytes > MAX_TURN:
            self._relieve()

    def publish_run(
        self,
        client: Client,
        topic: Topic,
        version: int,
        packets: bytes,
        count: int,
        size: int,
        extra: Extra | None = None,
        acks: bytes = b"",
    ) -> None:
        """Messages that came as MQTT packets, and may leave as such; `size` of each payload, `extra` of all.

        If they want acknowledgements (`acks`, for all) it raises as `check` does; otherwise they were checked."""
        if acks:
            self._check(client, topic, size, acks)
            self._acks.append((client, acks))
            client.owed += 1
        self.inbound.add_packets(topic, client.origin, version, packets, count, size, extra)
        self._bytes += len(packets) + ROW_BYTES * count
        if self._bytes > MAX_TURN:
            self._relieve()

    def publish_mixed(self, client: Client, topics: list[Topic], payloads: list[bytes]) -> None:
        """Messages of any topics, which the client may publish."""
        inbound, count = self.inbound, len(topics)
        inbound.topics += topics
        inbound.payloads.extend(payloads)
        inbound.kinds += [Kind.BYTES] * count
        inbound.origins += [client.origin] * count
        self._bytes += sum(map(len, payloads)) + ROW_BYTES * count
        if self._bytes > MAX_TURN:
            self._relieve()

    def publish_with(self, client: Client, message: Publish, extra: Extra, note: Note | None = None) -> None:
        """One message with what only some have; `note` is kept under the same sync."""
        self.check(client, message)
        self.inbound.own_extras[len(self.inbound.topics)] = extra
        self._bytes += extra.bytes
        self._note(note)
        self._append(client, message)

    def acknowledge(self, client: Client, ack: bytes, note: Note | None = None) -> None:
        """`ack` leaves once the note, and all that came before it, is safe."""
        self._note(note)
        self._acks.append((client, ack))
        client.owed += 1
        if self._bytes > MAX_TURN:
            self._relieve()

    def _note(self, note: Note | None) -> None:
        if note:
            self._notes.append(note)
            self._bytes += len(note[1])

    def publish_all(self, columns: Columns, told: Told, notes: Sequence[Note] = ()) -> None:
        """Columns that belong together, in the order of publishing: their offsets follow one another.

        Notes are kept with them, under the same sync."""
        self.settle()
        self._pass_on(columns, (), told, notes)
        self.begin()

    def relay(self, columns: Columns) -> None:
        """To those who are subscribed now; not for the log."""
        self.settle()
        self._deliver(columns)
        self.committed.deliver(columns)
        self.begin()

    def reject(self, client: Client, error: SmbError) -> None:
        """A request that is malformed or refused: warn, count, and say so where the dialect can."""
        self.stats.dropped[error.code] += 1
        dialect, source = client.origin.dialect, client.origin.source
        self.console.warn(f"{dialect} {error.code}", f"{dialect} {source}: {error.text}")
        reply = client.refusal(error.text)
        if reply:
            self.delivery.put(client, reply)

    def left(self, client: Client) -> None:
        """The client's connection has ended."""
        session, client.session = client.session, None
        if session is None:
            return
        self.settle()
        if session.dialect is Dialect.TYPED:
            self.sessions.attach(session, None)
            self.console.say(f"Client {printable(session.name.encode())} disconnected.")
        else:
            self.sessions.forget(session)
        self.begin()

    def settle(self) -> None:
        """Delivers and acknowledges what came in so far."""
        self.lanes.account()
        columns = self.inbound
        if not columns.topics and not self._acks:
            return
        self.inbound = Columns()
        self._bytes = 0
        acks, self._acks = self._acks, []
        notes, self._notes = self._notes, []
        self._pass_on(columns, acks, None, notes)

    def _deliver(self, columns: Columns) -> None:
        columns.received = time.time_ns() // 1000
        origins, stats = columns.origins, self.stats
        count = len(origins)
        if count and (count == 1 or origins.count(origins[0]) == count):
            stats.received[origins[0].dialect] += count
        elif runs := columns.runs:
            for run in runs:
                stats.received[origins[run.first].dialect] += run.end - run.first
        else:
            for origin, messages in Counter(origins).items():
                stats.received[origin.dialect] += messages
        stats.bytes_in += columns.bytes
        if self.retain and columns.own_extras:
            self.retain(columns)
        self.delivery.deliver(columns)

    def _pass_on(
        self, columns: Columns, acks: Sequence[Ack], told: Told | None = None, notes: Sequence[Note] = ()
    ) -> None:
        if acks and not self.commits:
            self._release(acks)
        self._deliver(columns)
        if self.commits:
            self.commits.submit(columns, acks, told, notes)
            return
        if self._relayed:
            self._relayed(columns)
        if told:
            told(None)

    def _relieve(self) -> None:
        """What has come so far leaves before the turn ends."""
        self.settle()
        self._flush()

    def _flush(self) -> None:
        if self.delivery.dirty:
            self.delivery.flush()
        if self.committed.dirty:
            self.committed.flush()
        if self.commits:
            self.commits.gap()

    def end(self) -> None:
        if self.scheduled and self._reads:
            lone = self._reads == 1 and not self.behind
            self.patience = min(2 * self.patience, MOST_LONE_READS) if lone and self.lone else LONE_READS
            if self._gathering.due(self._reads + self.at_once):
                self.lanes.account()
                self._gathering.judge(self.stats.received.total())
            self.lone = lone and not self._gathering.on
            self.at_once = 0
        self.scheduled = False
        reads, self._reads = self._reads, 0
        if self.inbound.topics or self._acks:
            self.settle()
        self._flush()
        if self._later:
            later, self._later = self._later, []
            for callback in later:
                try:
                    callback()
                except Exception as bug:  # of one session: the others go on
                    self.loop.call_exception_handler({"message": "after a turn", "exception": bug})
            if self.delivery.dirty or self.committed.dirty:
                self.begin()
        if self.console.waits and self.console.write() and self._console_timer is None:
            self._console_timer = self.loop.call_later(CONSOLE_RETRY, self._retry_console)
        if reads and self._gathering.on:
            time.sleep(REST)

    def _retry_console(self) -> None:
        self._console_timer = None
        self.begin()

    def _release(self, acks: Sequence[Ack]) -> None:
        for client, ack in acks:
            self.delivery.put(client, ack)
            client.acknowledged(ack)
            client.owed -= 1
            if not client.owed:
                client.paid()
        self.begin()

    def _check_log(self, client: Client) -> None:
        """What wants an acknowledgement that cannot be given is refused before it is routed."""
        if self.commits and self.commits.failed:
            text = f"not taken: {self.commits.failed.text}"
            padded_closes = client.origin.dialect is Dialect.PADDED
            raise ProtocolError("log_unavailable", text) if padded_closes else Refused("log_unavailable", text)

    def _not_logged(self, client: Client, ack: bytes, error: LogError) -> None:
        """The message was relayed, but the disk then refused it: its publisher must not think it safe."""
        client.owed -= 1
        reply = client.unkept(ack, error.text)
        if reply:
            self.delivery.put(client, reply)
        else:
            client.end_unkept(error.text)
        if not client.owed:
            client.paid()
        self.begin()

    def forget(self, session: Session) -> None:
        """Ends a session that cannot be heard leaving."""
        self.settle()
        if self.sessions.forget(session) and session.dialect is Dialect.SEMICOLON:
            tell_semicolon(self)


def _limits(config: Config) -> Limits:
    return Limits(
        udp_subscriptions=config.udp.max_subscriptions,
        udp_subscriptions_per_address=config.udp.max_subscriptions_per_address,
        session_subscriptions=config.tcp.max_subscriptions,
        semicolon_subscribers=config.semicolon.max_subscribers,
        typed_sessions=config.typed.max_sessions,
    )
