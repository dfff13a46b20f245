"""A session that is fed from the log: a cursor, and which messages before it the client has not acknowledged.

    live        level with the log: fed at every commit
    otherwise   behind: what is in memory (`recent`) is taken from there, older messages from the history
    away        (no connection) nothing but the cursor and the numbers of what was in flight

`cursor` is the next offset to look at, `high` the first that was never sent. Below `high` only those in
`pending` are sent again, as duplicates. No message is held for a client that is away.
"""

from bisect import bisect_left
from collections.abc import Sequence
from itertools import count
from typing import TYPE_CHECKING

from smbroker.log.questions import Failed, Piece, Request
from smbroker.model.filter import REST, Filter
from smbroker.model.message import NO_EXTRA, Columns
from smbroker.model.topic import Topic
from smbroker.server.commits import Commits
from smbroker.server.history import History
from smbroker.server.mqtt.flights import KEPT_IDS
from smbroker.server.mqtt.items import Flight, Item
from smbroker.server.mqtt.session import MqttSession
from smbroker.server.mqtt.subscriptions import Subscription

if TYPE_CHECKING:
    from smbroker.server.turn import Turn

STEP_ROWS = 5_000  # that one step looks at
MAX_ENDED = 100  # filters that are remembered after their subscriptions; with more, all topics are looked at
PENDING = 1 << 62  # the start of a subscription until it is known: above all offsets, and each another
_pendings = count(PENDING)


class Replay:
    __slots__ = (
        "_asked", "_going_on", "_holds", "_piece", "_reading", "_waking", "commits", "cursor", "done", "ended", "fresh",
        "high", "history", "live", "pending", "session", "touched", "turn",
    )  # fmt: skip

    def __init__(self, session: MqttSession, turn: "Turn", commits: Commits, history: History, cursor: int) -> None:
        self.session = session
        self.turn = turn
        self.commits = commits
        self.history = history
        self.cursor = cursor
        self.high = cursor
        self.fresh = cursor  # QoS 0 from here on: what was published while the client was away is not for it
        self.pending: dict[int, tuple[int, bool]] = {}  # offset: QoS, whether PUBREC has come
        self.ended: frozenset[Filter] = frozenset()  # of subscriptions that have, while something was in flight
        self.done: set[int] = set()  # ahead of the cursor and acknowledged: from before a restart
        self.live = False
        self.touched = True  # there is something new to save
        self._reading = history.new_reading()
        self._asked = False
        self._going_on: Request | None = None  # the question that goes on with the last answer
        self._piece: Piece | None = None  # the last answer, while there is no room for all of it
        self._waking = False
        self._holds = 0  # subscriptions for which a place in the log is looked for

    # --- subscriptions ---

    def begin(self, one: Subscription) -> None:
        """A new subscription: it begins with what is published from now on."""
        one.start = pending = next(_pendings)
        self.commits.after(lambda: self._begun(one, pending))

    def hold(self, one: Subscription) -> int:
        """It begins with history, from where is not known yet: all waits until then, in the log. For `held`."""
        if self.live:
            self._fall_back(self.commits.recent.next)
        self._holds += 1
        one.start = pending = next(_pendings)
        return pending

    def let_go(self) -> None:
        """It is known, or not wanted any more."""
        self._holds -= 1
        self.wake()

    def held(self, one: Subscription, pending: int) -> Subscription | None:
        """The subscription that is still held so: that one, or what has replaced it."""
        current = self.session.known.all.get(one.key)
        return current if current and current.start == pending else None

    def _begun(self, one: Subscription, pending: int) -> None:
        current = self.held(one, pending)
        if current:
            current.start = self.commits.recent.next
        if not self.live and self.session.connection:
            self.wake()

    def end(self, one: Subscription) -> None:
        """It has ended. "It MUST complete the delivery of any … messages which it has started" [MQTT-3.10.4-3]"""
        if self.pending or len(self.session.inflight):
            self.ended = self.ended | {one.pattern} if len(self.ended) < MAX_ENDED else frozenset(((REST,),))

    def go_back(self, one: Subscription, start: int, seam: int) -> None:
        """The history of this subscription, up to the seam, first; the others do not get anything twice."""
        self._unqueue()
        self._withdraw()
        self.live = False
        moved = [one]
        for other in self.session.known.all.values():
            if other is not one and other.start < self.high:
                other.start = self.high
                moved.append(other)
        one.start = max(start, self.commits.first_offset)
        one.seam = seam
        self.cursor = min(self._lowest(), one.start)
        self.high = min(self.high, one.start)
        self.fresh = min(self.fresh, one.start)
        self.session.backs += 1
        if self.session.lasting and self.session.mqtt.keeping:
            self.session.mqtt.keeping.moved(self.session, moved)
        self.wake()

    @property
    def position(self) -> int:
        return self.commits.recent.next if self.live else self.cursor

    # --- feeding ---

    def receive(self, topic: Topic, columns: Columns, start: int, end: int) -> None:
        """What was just committed."""
        session = self.session
        matching = session.matching(topic)
        if not matching:
            return
        if len(matching) == 1:
            while start < end and (sent := session.send_run(columns, start, end, matching[0])) > start:
                start = sent
            if start < end and not session.queue and self._must_wait(columns, start, matching[0]):
                self._fall_back(columns.base + start)
                return
        base, item_of, queue = columns.base, session.item_of, session.queue
        for row in range(start, end):
            if not session.room:
                session.pump()
                if not session.room:
                    self._fall_back(base + row)
                    break
            item = item_of(columns, row, matching, base + row)
            if item:
                queue.append(item)
                session._queued += item.size
        self.touched = True
        session.pump()

    def _must_wait(self, columns: Columns, row: int, one: Subscription) -> bool:
        """For acknowledgements, and rather in the log than in the queue: so it can leave with others."""
        if len(self.session.inflight) < self.session.window or not one.qos or one.no_local:
            return False
        return columns.base + row >= one.start and columns.extra_at(row).qos > 0

    def _fall_back(self, cursor: int) -> None:
        """The client is slower than what comes."""
        self.live = False
        self.cursor = cursor
        self.touched = True

    def wake(self) -> None:
        if not self._waking:
            self._waking = True
            self.turn.later(self._step)

    def _step(self) -> None:
        self._waking = False
        session = self.session
        connection = session.connection
        if connection is None or self.live or self._asked or self._holds or session.replay is not self:
            return
        session.pump()
        if not session.room or connection.full:
            return  # goes on with an acknowledgement, or when the client has read
        if self._piece:
            self._use(self._piece)
            return
        if self.cursor < self.commits.recent.first:
            self._ask()
            return
        rows = 0
        for base, columns in self.commits.recent.since(self.cursor):
            if rows > STEP_ROWS:
                self.wake()
                return
            if not self._offer(columns, range(base, base + len(columns))):
                self._go_on()
                return
            rows += len(columns)
        self.cursor = self.commits.recent.next
        self._caught_up()
        session.pump()

    def _go_on(self) -> None:
        """There was no room: with another step, or with the acknowledgement that the next message waits for."""
        session = self.session
        session.pump()
        if session.queue or len(session.inflight) < session.window:
            self.wake()
        else:
            self.turn.begin()  # what was sent leaves

    def _caught_up(self) -> None:
        self.live = True
        self.high = self.cursor
        self.done = {offset for offset in self.done if self._overtakes(offset)}
        for offset in [offset for offset, (_, received) in self.pending.items() if not received]:
            del self.pending[offset]  # not in the log any more

    def _offer(self, columns: Columns, offsets: Sequence[int]) -> bool:
        """Sends or queues what is meant, from the cursor on, which moves; whether there was room for all."""
        session, row, rows = self.session, bisect_left(offsets, self.cursor), len(offsets)
        together = not self.done and not self.pending and rows and offsets[-1] - offsets[0] == rows - 1
        if together:
            columns.base = offsets[0]
        while row < rows:
            if together and offsets[row] >= self.high and not session.queue:
                sent = self._send_run(columns, row)
                if sent > row:
                    self.cursor, row = offsets[sent - 1] + 1, sent
                    continue
                matching = session.matching(columns.topics[row])
                if len(matching) == 1 and self._must_wait(columns, row, matching[0]):
                    return False
            if not session.room:
                session.pump()
                if not session.room:
                    return False
            self.cursor = offsets[row] + 1
            self._look_at(columns, row, offsets[row])
            row += 1
        return True

    def _send_run(self, columns: Columns, row: int) -> int:
        """Sends messages of one topic together, from this row on; the first row that is left."""
        topics, topic = columns.topics, columns.topics[row]
        matching = self.session.matching(topic)
        if len(matching) != 1:
            return row
        wire = columns.wire_at(row)
        end = wire.end if wire else row + 1
        while not wire and end < len(topics) and topics[end] == topic:
            end += 1
        self.touched = True
        return self.session.send_run(columns, row, end, matching[0])

    def _look_at(self, columns: Columns, row: int, offset: int) -> None:
        session = self.session
        if offset in self.done or (offset < self.high and offset not in self.pending):
            return
        item = session.item_of(columns, row, session.matching(columns.topics[row]), offset)
        pending = self.pending.pop(offset, None)
        if item is None and session.grant.limited and not session.grant.subscribes[columns.topics[row]]:
            pending = pending if pending and pending[1] else None
        if pending is not None:
            qos, received = pending
            if received:
                self.pending[offset] = pending
                return
            item = item or Item(
                offset, columns.topics[row], columns.payloads[row], columns.extras.get(row) or NO_EXTRA, qos
            )
            item = item._replace(qos=qos, dup=True)
        elif item is None or (not item.qos and offset < self.fresh):
            return
        session.push(item)

    # --- history ---

    def _ask(self) -> None:
        self._asked = True
        filters = frozenset(one.pattern for one in self.session.known.own)
        if self.pending:
            filters |= self.ended
        if not filters:
            self._asked = False
            self.cursor = self.commits.recent.first
            self.wake()
            return
        request = self._going_on
        if request is None or request.start != self.cursor or request.filters != filters:
            request = Request(self._reading, self.cursor, self.commits.recent.next, None, filters)
        asked = request
        self.history.ask(asked, lambda answer: self._answered(asked, answer))

    def _answered(self, asked: Request, answer: Piece | Failed) -> None:
        self._asked = False
        if isinstance(answer, Piece):
            self._going_on = asked.after(answer)
            self._use(answer)
            return
        reason = "cursor_behind" if answer.code == "gone" else "log_damaged"
        self.commits.stats.dropped[reason] += 1
        self.turn.console.warn(reason, f"mqtt {self.session.name}: {answer.text}; it goes on at {answer.next}")
        self.cursor = max(self.cursor, answer.next)
        self.session.pump()
        self.wake()

    def _use(self, piece: Piece) -> None:
        """What there is no room for is kept for the next step."""
        self._piece = piece
        if not self._offer(piece.columns, piece.offsets):
            self._go_on()
            return
        self._piece = None
        self.cursor = max(self.cursor, piece.next)
        self.session.pump()
        self.wake()

    def _withdraw(self) -> None:
        """An answer that is on its way will not be taken for one to a later question."""
        if self._asked:
            self.history.forget(self._reading)
            self._reading = self.history.new_reading()
            self._asked = False
        self._going_on = self._piece = None

    # --- the client comes and goes ---

    def attach(self) -> None:
        self.fresh = self.commits.recent.next
        self.wake()

    def detach(self) -> None:
        """Only numbers stay: the messages are in the log."""
        self._withdraw()
        self._unqueue()
        self.live = False
        for number, flight in self.session.inflight:
            item = flight.item
            if item.offset >= 0 and not flight.received:
                self.pending[item.offset] = item.qos, False
                del self.session.inflight[number]
        self.cursor = self._lowest()
        self.touched = True

    def _unqueue(self) -> None:
        """Gives the queue back to the log."""
        self.high = self._never_sent(self.pending)
        self.session.drop_queue()

    def _never_sent(self, pending: dict[int, tuple[int, bool]]) -> int:
        """The first offset that was never sent, if the queue is not; what is to be sent again goes to `pending`."""
        high = max(self.position, self.high)
        for item in self.session.queue:
            if item.offset >= 0:
                if item.dup:
                    pending[item.offset] = item.qos, False
                else:
                    high = min(high, item.offset)
        return high

    def _lowest(self) -> int:
        return min((offset for offset, (_, done) in self.pending.items() if not done), default=self.high)

    def saved(self) -> tuple[int, int, list[tuple[int, int, bool]]]:
        """The cursor, `high`, and what is pending: enough to go on after a restart."""
        pending = dict(self.pending)
        high = self._never_sent(pending)
        for _, flight in self.session.inflight:
            if flight.item.offset >= 0:
                pending[flight.item.offset] = flight.item.qos, flight.received
        if not pending:
            self.ended = frozenset()
        cursor = min((offset for offset, (_, done) in pending.items() if not done), default=high)
        return cursor, high, [(offset, qos, done) for offset, (qos, done) in sorted(pending.items())]

    def restore(self, high: int, pending: list[tuple[int, int, bool]]) -> None:
        self.high = max(high, self.cursor)
        for offset, qos, received in pending:
            self.received(offset, qos) if received else self.pending.setdefault(offset, (qos, False))

    def received(self, offset: int, qos: int = 2) -> None:
        """From before a restart: PUBREC has come, so the message must not be sent again; PUBREL must."""
        self.pending[offset] = qos, True
        item = Item(offset, b"", b"", NO_EXTRA, qos)
        self.session.inflight[(offset - self.session.first) % KEPT_IDS + 1] = Flight(item, received=True)

    def acknowledged(self, first: int, count: int = 1) -> None:
        """So many messages, from that offset on."""
        end = first + count
        if not self.pending and (self.live or (end <= self.cursor and not self._overtakes(end - 1))):
            return
        for offset in range(first, end):
            self.pending.pop(offset, None)
            if (not self.live and offset >= self.cursor) or self._overtakes(offset):
                self.done.add(offset)

    def _overtakes(self, offset: int) -> bool:
        """Whether one before it waits: the queue may be given back to the log, from there on."""
        queue = self.session.queue
        return bool(queue) and 0 <= queue[0].offset < offset
