"""A session: what the broker remembers of an MQTT client, and the messages on their way to it.

    feed ─► receive ─► queue ─► pump ─► in flight (QoS 1, 2) ─► acknowledged
                                  └───► sent (QoS 0)

What waits is an Item, what is in flight a Flight (`items`); their bytes are made in `frames`.
A session whose subscriptions all want plain QoS 0 has no queue: it is one of a group that gets the same
bytes (`core.delivery`). The others take messages themselves. With a log, one with QoS 1 or 2 is *kept*:
fed from what is committed, by a cursor (`replay`). The packet identifier of a kept message follows from its
offset, so that it is the same when it is sent again after a crash; the rest have identifiers above those.
A session that ends with its connection counts from 1.
"""

from collections import deque
from collections.abc import Iterable
from secrets import token_hex
from typing import TYPE_CHECKING

from smbroker.core.sessions import Session
from smbroker.dialects.mqtt import fields as f
from smbroker.dialects.mqtt.fields import protocol_error
from smbroker.dialects.mqtt.packets import Ack, Will
from smbroker.dialects.mqtt.stream import Numbers
from smbroker.model.message import NO_EXTRA, Columns, Dialect, Extra, Origin
from smbroker.model.topic import Topic
from smbroker.server.mqtt.flights import KEPT_IDS, Flights
from smbroker.server.mqtt.frames import frame_of, row_of
from smbroker.server.mqtt.items import NO_IDENTIFIERS, Flight, Item
from smbroker.server.mqtt.subscriptions import Subscription, Subscriptions

if TYPE_CHECKING:
    from smbroker.server.mqtt.connection import MqttConnection
    from smbroker.server.mqtt.replay import Replay
    from smbroker.server.mqtt.retaining import Retaining
    from smbroker.server.mqtt.service import Mqtt
    from smbroker.server.mqtt.shared import Share

NEVER = 0xFFFF_FFFF  # session expiry: the session does not expire
ACKNOWLEDGED = Extra(1)  # QoS 1 and nothing else
FRAMINGS = {version: (Dialect.MQTT, version) for version in (4, 5)}  # 3 has the frames of 4
QUEUE = 1_000  # messages, and bytes, that are taken from the log ahead of what a client has acknowledged
QUEUE_BYTES = 1 << 20


def new_life() -> str:
    return token_hex(4)


class MqttSession(Session):
    __slots__ = (
        "_last_id", "_queued", "alias_maximum", "aliases", "backs", "changed", "connection", "expires_at", "expiry",
        "first", "inbound", "inflight", "known", "life", "max_packet", "mqtt", "noted", "queue", "releasing", "replay",
        "resending", "retaining", "sharing", "unsure", "user", "version", "will", "will_due", "window",
    )  # fmt: skip

    def __init__(self, service: "Mqtt", client: str) -> None:
        super().__init__(Dialect.MQTT, client)
        self.mqtt = service
        self.life = new_life()  # this session, among those that its client has one after the other
        self.backs = 0  # how often it has gone back to history
        self.noted = False  # what is acknowledged is a note in the log: the session is in the state, or was
        self.known = Subscriptions()
        self.connection: MqttConnection | None = None
        self.user: str | None = None  # whose session it is
        self.version = 4
        self.expiry = 0  # seconds after the connection's end
        self.expires_at = 0.0  # while the client is away: when, in seconds since 1970; 0: never
        self.window = service.config.max_inflight
        self.max_packet = f.MAX_LENGTH
        self.alias_maximum = 0
        self.aliases: dict[Topic, int] = {}
        self.inbound: set[int] = set()  # QoS 2: identifiers of what the client has not released yet
        self.unsure: set[int] = set()  # those of them that are not on disk yet
        self.changed = False  # `inbound` or `releasing` is not as it was saved
        self.queue: deque[Item] = deque()
        self._queued = 0  # bytes
        self.inflight = Flights()
        self.releasing: set[int] = set()  # QoS 2: those that the client has, of messages that have no offset
        self.resending: list[int] = []  # what is in flight and has no room in the window yet, the next one last
        self._last_id = 0
        self.first = 0  # the offset whose message has the identifier 1
        self.replay: Replay | None = None
        self.sharing: list[Share] = []
        self.will: Will | None = None  # one with a delay; it survives a crash
        self.will_due = 0.0  # in seconds since 1970; 0: the client is here
        self.retaining: Retaining | None = None  # retained messages that are still to be sent

    @property
    def lasting(self) -> bool:
        return self.expiry > 0

    @property
    def queued(self) -> int:
        """Bytes of messages that wait until the client has acknowledged others."""
        return self._queued

    @property
    def plain(self) -> bool:
        return (
            self.replay is None
            and self.max_packet == f.MAX_LENGTH
            and not self.alias_maximum
            and not self.known.special
        )

    def regroup(self) -> bool:
        """Decides who makes its bytes; whether that has changed."""
        before = self.receive, self.group
        self.group = FRAMINGS[5 if self.version == 5 else 4]
        self.receive = None if self.plain else self.take
        return before != (self.receive, self.group)

    # --- what comes ---

    def take(self, topic: Topic, columns: Columns, start: int, end: int) -> None:
        """A feed's messages of one topic."""
        replay = self.replay
        if replay and columns.base >= 0:
            if replay.live:
                replay.receive(topic, columns, start, end)
            return
        matching = self.matching(topic)
        if len(matching) == 1 and not replay:
            while start < end and (sent := self.send_run(columns, start, end, matching[0])) > start:
                start = sent
        if matching:
            for row in range(start, end):
                item = self.item_of(columns, row, matching)
                if item and (item.qos or self.connection):
                    self.add(item)
            self.pump()

    def matching(self, topic: Topic) -> list[Subscription]:
        """Those that match, if the client may have the topic at all."""
        if self.grant.limited and not self.grant.subscribes[topic]:
            return []
        return self.known.matching(topic)

    def item_of(self, columns: Columns, row: int, matching: list[Subscription], offset: int = -1) -> Item | None:
        """The message as this session is to get it; None if it is not meant."""
        origin = columns.origins[row]
        extra = columns.extras.get(row, NO_EXTRA) if columns.extras else NO_EXTRA
        one = matching[0] if len(matching) == 1 else None
        if one and not one.no_local and (offset < 0 or (one.start <= offset and one.seam <= offset)):
            found = matching
        else:
            found = [one for one in matching if self._meant(one, origin, offset, columns.topics[row])]
            if not found:
                return None
        # What comes from other dialects has QoS 1: a session that is away must not miss it.
        qos = extra.qos if origin.dialect is Dialect.MQTT else 1
        return self._item(found, columns.topics[row], columns.payloads[row], extra, qos, offset)

    def _meant(self, one: Subscription, origin: Origin, offset: int, topic: Topic) -> bool:
        if 0 <= offset < one.start:
            return False
        if 0 <= offset < one.seam and self.grant.limited and not self.grant.replays[topic]:
            return False
        return not (one.no_local and origin.dialect is Dialect.MQTT and origin.client == self.name)

    @staticmethod
    def _item(
        found: list[Subscription],
        topic: Topic,
        payload: bytes,
        extra: Extra,
        qos: int,
        offset: int,
        retain: bool = False,
    ) -> Item:
        if len(found) == 1:
            (one,) = found
            identifiers = (one.identifier,) if one.identifier else NO_IDENTIFIERS
            retain = retain or (one.as_published and extra.retain)
            return Item(offset, topic, payload, extra, min(qos, one.qos), retain, identifiers)
        identifiers = tuple(one.identifier for one in found if one.identifier)
        retain = retain or (extra.retain and any(one.as_published for one in found))
        return Item(offset, topic, payload, extra, min(qos, max(one.qos for one in found)), retain, identifiers)

    def add(self, item: Item) -> None:
        """Into the queue, if there is room."""
        config = self.mqtt.config
        if len(self.queue) >= config.max_queued or self._queued > config.max_queued_bytes:
            self.undeliverable("queue_full")
            return
        self.queue.append(item)
        self._queued += item.size

    def send_retained(self, one: Subscription, topic: Topic, payload: bytes, extra: Extra, qos: int) -> None:
        """The caller has seen that there is room."""
        self.push(self._item([one], topic, payload, extra, qos, -1, retain=True))

    def push(self, item: Item) -> None:
        """Into the queue, whether or not there is room."""
        self.queue.append(item)
        self._queued += item.size

    def requeue(self, items: Iterable[Item]) -> None:
        self.queue = deque(items)
        self._queued = sum(item.size for item in self.queue)

    # --- what goes ---

    @property
    def room(self) -> bool:
        """Whether the queue can take more of the log."""
        return len(self.queue) < QUEUE and self._queued < QUEUE_BYTES

    def pump(self) -> None:
        """Sends what may be sent: within the window, while the client reads."""
        connection, queue, inflight = self.connection, self.queue, self.inflight
        if connection is None or not queue:
            return
        put, stats = self.mqtt.turn.delivery.put, self.mqtt.turn.stats
        sent = 0
        while queue and not connection.full:
            item = queue[0]
            number = 0
            if item.qos:
                if len(inflight) >= self.window:
                    break
                number = self._number(item.offset)
                if not number or number in inflight:
                    break
            queue.popleft()
            self._queued -= item.size
            frame = frame_of(self, item, number)
            if frame is None:
                if item.shared:
                    item.shared[0].done(item.shared[1])
                continue
            put(connection, frame)
            sent += 1
            if item.qos:
                inflight[number] = Flight(item)
        stats.delivered[Dialect.MQTT] += sent

    def send_run(self, columns: Columns, start: int, end: int, one: Subscription) -> int:
        """Sends messages of one topic that need nothing but a number each; the first row that is left.

        Of rows that came as packets it sends those that came together: the caller comes again. Without a log it sends
        no others."""
        connection, inflight = self.connection, self.inflight
        offset = columns.base + start if columns.base >= 0 else -1
        simple = one.qos and not (one.no_local or one.identifier or self.alias_maximum or self.queue)
        room = self.window - len(inflight)
        if not simple or room < 1 or connection is None or connection.full or 0 <= offset < max(one.start, one.seam):
            return start
        wire = columns.wire_at(start)
        if wire:
            end = min(end, wire.end)
        elif offset < 0:
            return start
        number = self._number(offset)
        end = min(end, start + room, start + (KEPT_IDS if offset >= 0 else 65_535) + 1 - number)
        count = end - start
        if count < 1 or self.max_packet != f.MAX_LENGTH or not number or not inflight.free(number, count, offset):
            return start
        if wire and wire.extra is not ACKNOWLEDGED:
            return start
        if not wire and list(map(columns.extras.get, range(start, end))).count(ACKNOWLEDGED) < count:
            return start
        frames = row_of(self, columns, start, end, wire, number)
        if not frames:
            return start
        self.mqtt.turn.delivery.put(connection, frames)
        self.mqtt.turn.stats.delivered[Dialect.MQTT] += count
        if offset >= 0:
            inflight.add_row(number, count, offset)
        elif wire:
            self._last_id = number + count - 1
            inflight.add_wire(number, columns, wire, start, end)
        return end

    def _number(self, offset: int) -> int:
        """The packet identifier of the next message to be sent; 0 if there is none."""
        return (offset - self.first) % KEPT_IDS + 1 if offset >= 0 else self._free_id()

    def _free_id(self) -> int:
        """An identifier that is not in use; 0 if there is none."""
        before = KEPT_IDS if self.replay else 0
        for _ in range(65_535 - before):
            self._last_id = self._last_id + 1 if before <= self._last_id < 65_535 else before + 1
            if self._last_id not in self.inflight:
                return self._last_id
        return 0

    def undeliverable(self, reason: str) -> None:
        self.mqtt.turn.stats.undeliverable[Dialect.MQTT, reason] += 1

    # --- what the client says to it ---

    def acknowledged(self, numbers: Numbers, qos: int = 1) -> None:
        """PUBACK, PUBCOMP, or PUBREC with an error: the messages are done with."""
        replay, inflight, at = self.replay, self.inflight, 0
        while at < len(numbers):
            if qos == 1 and (row := inflight.pop_row(numbers, at))[1]:
                offset, count = row
                at += count
                if replay and offset >= 0:
                    replay.acknowledged(offset, count)
                continue
            flight = inflight.pop(numbers[at])
            at += 1
            if flight is None:
                continue
            if isinstance(flight, int):
                offset, sent, shared = flight, 1, None
            else:
                offset, sent, shared = flight.item.offset, flight.item.qos, flight.item.shared
            if sent != qos:
                raise protocol_error("an acknowledgement that does not belong to the message's QoS")
            if self.releasing:
                self._released(numbers[at - 1])
            if shared:
                shared[0].done(shared[1])
            if replay:
                replay.acknowledged(offset)
        self._moved()

    def received(self, number: int) -> Flight | None:
        """PUBREC: from here on only PUBREL is sent again."""
        flight = self.inflight.get(number)
        if flight is not None:
            item = flight.item
            if item.qos != 2:
                raise protocol_error("PUBREC for a message with QoS 1")
            flight.received = True
            flight.item = item._replace(payload=b"", shared=None)
            if item.shared:
                item.shared[0].done(item.shared[1])
            if item.offset < 0:
                self.releasing.add(number)
                self.changed = True
            if self.replay:
                self.replay.touched = True
        return flight

    def _released(self, number: int) -> None:
        if number in self.releasing:
            self.releasing.discard(number)
            self.changed = True

    def restore_releasing(self, numbers: Iterable[int]) -> None:
        """From before a restart: their PUBREL is to be sent again."""
        for number in numbers:
            self.releasing.add(number)
            self.inflight[number] = Flight(Item(-1, b"", b"", NO_EXTRA, 2), received=True)

    def _moved(self) -> None:
        if self.resending:
            self._resend_more()
        if self.queue:
            self.pump()
        if self.retaining:
            self.retaining.wake()
        for share in self.sharing:
            if not share.live:
                share.wake()
        if self.replay:
            self.replay.touched = True
            if not self.replay.live:
                self.replay.wake()

    # --- connections ---

    def go_on(self) -> None:
        """The client has read what there was."""
        self.pump()
        if self.retaining:
            self.retaining.wake()
        for share in self.sharing:
            share.wake()
        if self.replay and not self.replay.live:
            self.replay.wake()

    def resend(self) -> None:
        """After a reconnect: what was in flight goes again, in order [MQTT-4.4.0-1].

        The note of a PUBREC may not be on disk yet, and its PUBREL must not leave before it is."""
        assert self.connection
        self.aliases.clear()
        turn = self.mqtt.turn
        again: list[int] = []
        for number, flight in self.inflight:
            if flight.received:
                turn.acknowledge(self.connection, Ack(f.PUBREL, number).encode(self.version))
            elif flight.item.offset < 0:
                again.append(number)
        self.resending = again[::-1]
        self._resend_more()

    def _resend_more(self) -> None:
        """The window may be smaller than it was: what does not fit waits for acknowledgements [MQTT-3.3.4-9]."""
        assert self.connection
        resending = self.resending
        while resending and len(self.inflight) - len(resending) < self.window:
            number = resending.pop()
            flight = self.inflight.get(number)
            if flight and not flight.received and (frame := self._frame_again(number, flight)):
                self.mqtt.turn.delivery.put(self.connection, frame)

    def _frame_again(self, number: int, flight: Flight) -> bytes | None:
        """None, and it is not in flight any more, if it may or need not be sent again."""
        item = flight.item
        allowed = not self.grant.limited or self.grant.subscribes[item.topic]
        frame = frame_of(self, item._replace(dup=True), number) if allowed else None
        if frame is None:
            del self.inflight[number]
            if item.shared:
                share, offset = item.shared
                share.done(offset) if allowed else share.give_back(offset)
        return frame

    def rights_changed(self) -> None:
        """What waits and may not be sent any more is forgotten; the queue is short, and whole again from the log."""
        if self.grant.limited and self.queue:
            items = list(self.queue)
            self.requeue(item for item in items if self.grant.subscribes[item.topic])
            for item in items:
                if item.shared and not self.grant.subscribes[item.topic]:
                    item.shared[0].give_back(item.shared[1])

    def drop_queue(self) -> None:
        """Forgets what waits and comes from the log again, or was sent without a promise."""
        self.requeue(item for item in self.queue if item.qos and item.offset < 0)
