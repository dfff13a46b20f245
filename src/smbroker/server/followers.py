"""Followers: subscribers that are fed from the log, by a cursor, and so miss nothing.

`padded` subscriptions begin with all stored messages of their title. Typed subscriptions with `sf` = 1
go on where the client left. A follower is in one of these states:

    AWAY        its client is gone; only the cursor stays
    REPLAYING   behind: the next piece of history has been asked for
    WAITING     its outbox is full: it goes on when the client has read
    LIVE        level with the log: fed at every commit, like any other route

It becomes LIVE when its cursor lies within the recent columns, in one step and so without a gap; when
its client does not keep up it falls back to its cursor. No message is queued for it anywhere.
"""

from collections.abc import Callable
from enum import Enum

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


class Mode(Enum):
    AWAY = "away"
    REPLAYING = "replaying"
    WAITING = "waiting"
    LIVE = "live"


class Follower:
    __slots__ = ("cursor", "mode", "reading", "safe", "session", "starts")

    def __init__(self, session: Session, reading: int, cursor: int) -> None:
        self.session = session
        self.reading = reading
        self.cursor = cursor  # the next offset to send; while LIVE: see Followers.position
        self.safe = cursor  # everything before it has left for the client
        self.starts: dict[Topic, int] = {}  # topics, each with the first offset that is meant
        self.mode = Mode.AWAY


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
        self.moved: Callable[[Session, Topic, int], None] = lambda _session, _topic, _start: None

    # --- the feed of `Sessions` ---

    def add(self, pattern: Filter, session: Session) -> None:
        topic = exact_topic(pattern)
        assert topic is not None, "only dialects without wildcards are fed from the log"
        mine = self._of.setdefault(session, {})
        if session.dialect is Dialect.PADDED:
            follower = mine[topic] = Follower(session, self._history.new_reading(), self._commits.first_offset)
            follower.starts[topic] = 0
            self._later(lambda: self._advance(follower))
        else:
            new = Follower(session, self._history.new_reading(), self._commits.recent.next)
            follower = mine.setdefault(None, new)
            follower.starts[topic] = PENDING
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
            self._history.forget(follower.reading)
            follower.mode = Mode.AWAY
            del mine[key]
            if not mine:
                del self._of[session]

    def attached(self, _pattern: Filter, session: Session) -> None:
        for follower in self._of.get(session, {}).values():
            if session.outbox is None:
                self._leave(follower)
            elif follower.mode is Mode.AWAY:
                self._advance(follower)

    # --- what the server tells ---

    def restore(self, session: Session, cursor: int, starts: dict[Topic, int]) -> None:
        """A session from before the broker's restart; its client is away."""
        follower = Follower(session, self._history.new_reading(), cursor)
        follower.starts = starts
        self._of[session] = {None: follower}

    def full(self, session: Session) -> None:
        """The client does not read as fast as messages come: fall back to the cursor."""
        for follower in self._of.get(session, {}).values():
            if follower.mode is Mode.LIVE:
                follower.cursor = self.position(follower)
                self._unroute(follower)
                follower.mode = Mode.WAITING

    def drained(self, session: Session) -> None:
        for follower in self._of.get(session, {}).values():
            follower.safe = self.position(follower)
            if follower.mode is Mode.WAITING:
                self._advance(follower)

    def flushed(self, session: Session) -> None:
        """All that was in the outbox has been taken by the system."""
        for follower in self._of.get(session, {}).values():
            follower.safe = self.position(follower)

    def position(self, follower: Follower) -> int:
        return self._commits.recent.next if follower.mode is Mode.LIVE else follower.cursor

    def cursor_of(self, session: Session) -> int | None:
        """What to remember of a typed session: the offset to go on from."""
        follower = self._of.get(session, {}).get(None)
        return follower.safe if follower else None

    def kept(self) -> list[Session]:
        """The sessions that a restart must find again."""
        return [session for session, mine in self._of.items() if None in mine]

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
        self.moved(session, topic, now)
        if follower.mode is Mode.LIVE:
            self._delivery.add(exact(topic), session)
        elif follower.mode is Mode.AWAY and session.outbox is not None:
            self._advance(follower)

    def _leave(self, follower: Follower) -> None:
        if follower.mode is Mode.LIVE:
            self._unroute(follower)
        self._history.forget(follower.reading)
        follower.cursor = follower.safe
        follower.mode = Mode.AWAY

    def _unroute(self, follower: Follower) -> None:
        for topic in follower.starts:
            self._delivery.remove(exact(topic), follower.session)

    def _advance(self, follower: Follower) -> None:
        """One step towards the log's end: from memory if it is near enough, else by a piece of history."""
        client, recent = follower.session.outbox, self._commits.recent
        if client is None or not follower.starts or follower.mode is Mode.LIVE:
            return
        assert isinstance(client, Client)
        if client.full:
            follower.mode = Mode.WAITING
        elif follower.cursor >= recent.first:
            for base, columns in recent.since(follower.cursor):
                self._send(follower, columns, list(range(base, base + len(columns))))
            follower.cursor = recent.next
            follower.mode = Mode.LIVE
            for topic, start in follower.starts.items():
                if start != PENDING:
                    self._delivery.add(exact(topic), follower.session)
        else:
            follower.mode = Mode.REPLAYING
            request = Request(follower.reading, follower.cursor, recent.next, frozenset(follower.starts))
            self._history.ask(request, lambda answer: self._answered(follower, answer))

    def _answered(self, follower: Follower, answer: Piece | Failed) -> None:
        if follower.mode is not Mode.REPLAYING:
            return
        if isinstance(answer, Piece):
            self._send(follower, answer.columns, answer.offsets)
            follower.cursor = answer.next
        elif answer.code == "gone":
            self._commits.stats.dropped["cursor_behind"] += 1
            self._console.warn("cursor_behind", f"{follower.session.name}: messages before {answer.next} are gone")
            follower.cursor = answer.next
        else:
            self._commits.stats.dropped["log_damaged"] += 1
            text = f"history for {follower.session.name}: {answer.text}; it goes on at offset {answer.next}"
            self._console.warn("log_damaged", text)
            follower.cursor = answer.next
        self._later(lambda: self._advance(follower))

    def _send(self, follower: Follower, columns: Columns, offsets: list[int]) -> None:
        starts, cursor = follower.starts, follower.cursor
        never = offsets[-1] + 1 if offsets else 0
        rows = [
            row
            for row, (offset, topic) in enumerate(zip(offsets, columns.topics, strict=True))
            if offset >= cursor and offset >= starts.get(topic, never)
        ]
        client = follower.session.outbox
        if rows and client is not None:
            for frame in self._delivery.framed(columns.rows(rows), follower.session.dialect):
                self._delivery.put(client, frame)
