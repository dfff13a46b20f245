"""Followers: subscribers that are fed from the log, by a cursor, and so miss nothing.

`padded` subscriptions begin with all stored messages of their title. Typed subscriptions with `sf` = 1
go on where the client left. A follower is in one of these states:

    AWAY        its client is gone; only the cursor stays
    REPLAYING   behind: it waits for its turn to take a step, or for a piece of history
    WAITING     its outbox is full: it goes on when the client has read
    LIVE        level with the log: fed at every commit, like any other route

It becomes LIVE when its cursor has come to the end of the recent columns, in one step and so without a
gap; when its client does not keep up it falls back to its cursor. No message is queued for it anywhere.

Steps are small and few per turn, so that those who are behind do not hold up the others, and a client
with many titles has one question to the history at a time, so that its answers fit into its outbox.
"""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from enum import Enum
from itertools import accumulate, islice

from smbroker.core.delivery import Delivery
from smbroker.core.sessions import Session
from smbroker.log.questions import Failed, Piece, Request
from smbroker.model.filter import Filter, exact, exact_topic
from smbroker.model.message import Columns, Dialect
from smbroker.model.topic import Topic
from smbroker.server.client import Client
from smbroker.server.commits import Commits
from smbroker.server.console import Console
from smbroker.server.history import History

PENDING = 1 << 62  # the start of a topic until it is known: no offset is as large
STEPS = 8  # followers that take a step in one turn
STEP_ROWS, STEP_BYTES = 5_000, 1 << 20  # that one looks at, and sends, in a step
IDLE_ROWS = 10_000  # a cursor moves on over so many messages that are not for it; less is not worth saving


class Mode(Enum):
    AWAY = "away"
    REPLAYING = "replaying"
    WAITING = "waiting"
    LIVE = "live"


class Follower:
    __slots__ = ("cursor", "going_on", "marks", "mode", "reading", "safe", "seam", "session", "starts")

    def __init__(self, session: Session, reading: int, cursor: int) -> None:
        self.session = session
        self.reading = reading
        self.cursor = cursor  # the next offset to send; while LIVE: see Followers.position
        self.safe = cursor  # everything before it has left for the client
        self.marks: deque[tuple[int, int]] = deque()  # once so many bytes have left: everything before an offset has
        self.starts: dict[Topic, int] = {}  # topics, each with the first offset that is meant
        self.going_on: Request | None = None  # the question that goes on with the last answer
        self.seam = 0  # what is before it is history, which needs a right of its own
        self.mode = Mode.AWAY

    def has_left(self, sent: int) -> None:
        while self.marks and self.marks[0][0] <= sent:
            self.safe = self.marks.popleft()[1]


class Followers:
    def __init__(
        self,
        delivery: Delivery,
        commits: Commits,
        history: History,
        console: Console,
        later: Callable[[Callable[[], None]], None],
    ) -> None:
        self._delivery = delivery
        self._commits = commits
        self._history = history
        self._console = console
        self._later = later  # calls back after the flush of this turn
        self._of: dict[Session, dict[Topic | None, Follower]] = {}  # by title for padded; one, under None, for typed
        self._here: dict[Session, None] = {}  # typed ones whose client is here, or was when cursors were last told
        self._due: dict[Follower, None] = {}  # have a step to take
        self._stepping = False
        self._asking: dict[Session, deque[Follower]] = {}  # the first is being answered
        self.moved: Callable[[Session, Topic, int], None] = lambda _session, _topic, _start: None

    # --- the feed of `Sessions` ---

    def add(self, pattern: Filter, session: Session) -> None:
        topic = exact_topic(pattern)
        assert topic is not None, "only dialects without wildcards are fed from the log"
        mine = self._of.setdefault(session, {})
        self._commits.followed = True
        if session.dialect is Dialect.PADDED:
            follower = mine[topic] = Follower(session, self._history.new_reading(), self._commits.first_offset)
            follower.seam = self._commits.recent.next
            if session.grant.limited and not session.grant.replays[topic]:
                follower.starts[topic] = PENDING
                self._commits.after(lambda: self._begin(follower, topic))
                return
            follower.starts[topic] = 0
            self._wake(follower)
        else:
            new = Follower(session, self._history.new_reading(), self._commits.recent.next)
            follower = mine.setdefault(None, new)
            follower.starts[topic] = PENDING
            self._here[session] = None
            # What was published before, but is not committed yet, is not meant.
            self._commits.after(lambda: self._begin(follower, topic))

    def remove(self, pattern: Filter, session: Session) -> None:
        topic = exact_topic(pattern)
        mine = self._of.get(session, {})
        key = topic if session.dialect is Dialect.PADDED else None
        follower = mine.get(key)
        if follower is None or topic is None:
            return
        follower.starts.pop(topic, None)
        if follower.mode is Mode.LIVE:
            self._delivery.remove(pattern, session)
        if not follower.starts:
            self._stop(follower)
            del mine[key]
            if not mine:
                del self._of[session]
                self._commits.followed = bool(self._of)

    def attached(self, _pattern: Filter, session: Session) -> None:
        for follower in self._of.get(session, {}).values():
            if session.outbox is None:
                self._stop(follower)
            elif follower.mode is Mode.AWAY:
                self._here[session] = None
                self._wake(follower)

    # --- what the server tells ---

    def restore(self, session: Session, cursor: int, starts: dict[Topic, int]) -> None:
        """A session from before the broker's restart; its client is away."""
        follower = Follower(session, self._history.new_reading(), cursor)
        follower.starts = starts
        self._of[session] = {None: follower}
        self._commits.followed = True

    def full(self, session: Session) -> None:
        """The client does not read as fast as messages come: fall back to the cursor."""
        for follower in self._of.get(session, {}).values():
            if follower.mode is Mode.LIVE:
                follower.cursor = self.position(follower)
                self._unroute(follower)
                follower.mode = Mode.WAITING

    def drained(self, session: Session) -> None:
        for follower in self._of.get(session, {}).values():
            if follower.mode is Mode.WAITING:
                self._wake(follower)

    def flushed(self, session: Session) -> None:
        """All that was in the outbox has been written; it leaves as fast as the client reads."""
        follower = self._of.get(session, {}).get(None)
        if follower and isinstance(session.outbox, Client):
            follower.marks.append((session.outbox.written, self.position(follower)))
            follower.has_left(session.outbox.left())

    def ended(self, session: Session) -> None:
        """The connection has ended: what has not left by now never does."""
        follower = self._of.get(session, {}).get(None)
        if follower and isinstance(session.outbox, Client):
            follower.has_left(session.outbox.left())

    def position(self, follower: Follower) -> int:
        return self._commits.recent.next if follower.mode is Mode.LIVE else follower.cursor

    def lag(self, session: Session) -> int | None:
        """Messages between the log's end and its cursor, the furthest one; None if the log does not feed it."""
        mine = self._of.get(session)
        if not mine:
            return None
        return max(self._commits.recent.next - self.position(follower) for follower in mine.values())

    def cursors(self) -> Iterator[tuple[Session, int]]:
        """What to remember of typed sessions: the offset to go on from, of those who are or were here meanwhile."""
        for session in list(self._here):
            follower = self._of.get(session, {}).get(None)
            if follower:
                yield session, self._safe(follower)
            if follower is None or session.outbox is None:
                del self._here[session]

    def _safe(self, follower: Follower) -> int:
        client = follower.session.outbox
        if isinstance(client, Client):
            follower.has_left(client.left())
            if not follower.marks and not client.frames and self.position(follower) - follower.safe > IDLE_ROWS:
                follower.safe = self.position(follower)
        return follower.safe

    def start_of(self, session: Session, topic: Topic) -> int | None:
        """The first offset that is meant, of a typed subscription that is kept; None while it is not known."""
        follower = self._of.get(session, {}).get(None)
        start = follower.starts.get(topic, PENDING) if follower else PENDING
        return None if start == PENDING else start

    # --- states ---

    def _begin(self, follower: Follower, topic: Topic) -> None:
        """A kept subscription begins at the offset that the next message gets."""
        session = follower.session
        if follower.starts.get(topic) != PENDING:
            return  # unsubscribed meanwhile
        now = self._commits.recent.next
        if all(start == PENDING for start in follower.starts.values()):
            follower.cursor = follower.safe = now
        follower.starts[topic] = now
        if session.lasting:
            self.moved(session, topic, now)
        if follower.mode is Mode.LIVE:
            self._delivery.add(exact(topic), session)
        elif follower.mode is Mode.AWAY and session.outbox is not None:
            self._wake(follower)

    def _stop(self, follower: Follower) -> None:
        if follower.mode is Mode.LIVE:
            self._unroute(follower)
        self._due.pop(follower, None)
        self._withdraw(follower)
        follower.going_on = None
        follower.marks.clear()
        follower.cursor = follower.safe
        follower.mode = Mode.AWAY

    def _unroute(self, follower: Follower) -> None:
        for topic in follower.starts:
            self._delivery.remove(exact(topic), follower.session)

    def _wake(self, follower: Follower) -> None:
        follower.mode = Mode.REPLAYING
        self._due[follower] = None
        if not self._stepping:
            self._stepping = True
            self._later(self._step)

    def _step(self) -> None:
        due = list(islice(self._due, STEPS))
        for follower in due:
            del self._due[follower]
        for follower in due:
            self._advance(follower)
        self._stepping = bool(self._due)
        if self._due:
            self._later(self._step)

    def _advance(self, follower: Follower) -> None:
        """One step towards the log's end: from memory if it is near enough, else by a piece of history."""
        client = follower.session.outbox
        if not isinstance(client, Client) or follower.mode is not Mode.REPLAYING:
            return
        if client.full:
            follower.mode = Mode.WAITING
        elif follower.cursor < self._commits.recent.first:
            self._ask(follower)
        elif self._catch_up(follower):
            follower.mode = Mode.LIVE
            for topic, start in follower.starts.items():
                if start != PENDING:
                    self._delivery.add(exact(topic), follower.session)
        else:
            self._wake(follower)

    def _catch_up(self, follower: Follower) -> bool:
        """Sends what is in memory; whether that was all."""
        rows = size = 0
        for base, columns in self._commits.recent.since(follower.cursor):
            if rows > STEP_ROWS or size > STEP_BYTES:
                return False
            size += self._send(follower, columns, range(base, base + len(columns)))
            rows += len(columns)
            follower.cursor = base + len(columns)
        follower.cursor = self._commits.recent.next
        return True

    def _send(self, follower: Follower, columns: Columns, offsets: Sequence[int]) -> int:
        """Puts what is meant for the follower into its outbox; how many bytes."""
        starts, cursor = follower.starts, follower.cursor
        if starts.keys().isdisjoint(columns.topics):
            return 0
        rows = [
            row
            for row, (offset, topic) in enumerate(zip(offsets, columns.topics, strict=True))
            if offset >= cursor and offset >= starts.get(topic, PENDING)
        ]
        grant, seam = follower.session.grant, follower.seam
        if grant.limited:
            topics = columns.topics
            rows = [row for row in rows if grant.subscribes[topics[row]]]
            rows = [row for row in rows if offsets[row] >= seam or grant.replays[topics[row]]]
        client = follower.session.outbox
        if not rows or not isinstance(client, Client):
            return 0
        before = client.written + sum(map(len, client.frames))
        frames = self._delivery.framed(columns.rows(rows), follower.session.dialect)
        for frame in frames:
            self._delivery.put(client, frame)
        ends = list(accumulate(map(len, frames), initial=before))
        if follower.session.lasting and len(frames) == len(rows):
            follower.marks.extend((end, offsets[row] + 1) for end, row in zip(ends[1:], rows, strict=True))
        return ends[-1] - before

    # --- history ---

    def _ask(self, follower: Follower) -> None:
        queue = self._asking.setdefault(follower.session, deque())
        queue.append(follower)
        if len(queue) == 1:
            self._put_question(follower)

    def _put_question(self, follower: Follower) -> None:
        topics, request = frozenset(follower.starts), follower.going_on
        if request is None or request.start != follower.cursor or request.topics != topics:
            request = Request(follower.reading, follower.cursor, self._commits.recent.next, topics)
        asked = request
        self._history.ask(asked, lambda answer: self._answered(follower, asked, answer))

    def _withdraw(self, follower: Follower) -> None:
        """An answer that is on its way will not be taken for one to a later question."""
        queue = self._asking.get(follower.session)
        if queue and follower in queue:
            if queue[0] is follower:
                self._history.forget(follower.reading)
                follower.reading = self._history.new_reading()
                queue.popleft()
                self._ask_again(follower.session)
            else:
                queue.remove(follower)

    def _ask_again(self, session: Session) -> None:
        """Those of the session that could not ask take another step."""
        for follower in self._asking.pop(session):
            self._wake(follower)

    def _answered(self, follower: Follower, asked: Request, answer: Piece | Failed) -> None:
        client = follower.session.outbox
        assert isinstance(client, Client)
        queue = self._asking[follower.session]
        queue.popleft()
        follower.going_on = None
        if client.full:  # the piece is read again when there is room for it
            follower.mode = Mode.WAITING
        else:
            self._take(follower, asked, answer)
            self._wake(follower)
        if queue and not client.full:
            self._put_question(queue[0])
        else:
            self._ask_again(follower.session)

    def _take(self, follower: Follower, asked: Request, answer: Piece | Failed) -> None:
        if isinstance(answer, Piece):
            self._send(follower, answer.columns, answer.offsets)
            if answer.next < asked.end:
                follower.going_on = replace(asked, start=answer.next)
        elif answer.code == "gone":
            self._commits.stats.dropped["cursor_behind"] += 1
            self._console.warn("cursor_behind", f"{follower.session.name}: messages before {answer.next} are gone")
        else:
            self._commits.stats.dropped["log_damaged"] += 1
            text = f"history for {follower.session.name}: {answer.text}; it goes on at offset {answer.next}"
            self._console.warn("log_damaged", text)
        follower.cursor = answer.next
