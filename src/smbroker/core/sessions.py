"""Sessions: what we remember of clients, and how many subscriptions they may hold.

A session is one client as the subscriber of messages: a UDP peer, a padded connection, a typed id.
It has an outbox while the client can be reached; a typed session outlives its connection. All
subscriptions are made and ended here, so that feeds, counts and limits agree.

A subscription hangs on one of two feeds: `live`, what a turn brings, or `kept`, what the log has
committed, for those who must miss nothing: `padded`, which wants the history before it, and typed
subscriptions that are kept while the client is away. Without a log everything is live.
"""

from collections import Counter
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Protocol, TypeAlias

from smbroker.core.outbox import Outbox
from smbroker.model.errors import Refused
from smbroker.model.filter import Filter
from smbroker.model.grant import NOTHING
from smbroker.model.message import Columns, Dialect
from smbroker.model.topic import Topic

Receive: TypeAlias = Callable[[Topic, Columns, int, int], None]
"""Topic, columns, first row, end: messages of that topic."""

LEVEL_BYTES = 48  # what a level takes besides its characters


class Feed(Protocol):
    def add(self, pattern: Filter, session: "Session") -> None: ...

    def remove(self, pattern: Filter, session: "Session") -> None: ...

    def attached(self, pattern: Filter, session: "Session") -> None:
        """The session's outbox came or went."""


class Remember(Protocol):
    """Is told of subscriptions, so that they survive a restart."""

    def subscribed(self, session: "Session", pattern: Filter, keep: bool) -> None: ...

    def unsubscribed(self, session: "Session", pattern: Filter) -> None: ...


class Session:
    """`subscriptions` maps each filter to whether messages are kept while the client is away."""

    __slots__ = (
        "dialect", "grant", "group", "host", "lingering", "listener", "name", "outbox", "receive", "subscriptions",
    )  # fmt: skip

    def __init__(self, dialect: Dialect, name: str, host: str = "", listener: str = "") -> None:
        self.dialect = dialect
        self.name = name  # `host:port`, or the client's id
        self.host = host
        self.listener = listener  # of a UDP peer: the socket that it knows
        self.grant = NOTHING  # what it may do; set by whoever knows who it is
        self.group: Hashable = dialect  # sessions of one group get the same bytes
        self.receive: Receive | None = None  # takes messages itself, one session at a time, also without an outbox
        self.outbox: Outbox | None = None
        self.subscriptions: dict[Filter, bool] = {}
        self.lingering: set[Filter] = set()  # kept no more, but on that feed until the client leaves

    @property
    def udp(self) -> bool:
        return bool(self.listener)

    @property
    def lasting(self) -> bool:
        """Whether it survives a restart of the broker; a padded session ends with its connection."""
        return self.udp or self.dialect is Dialect.TYPED


@dataclass(frozen=True, slots=True)
class Limits:
    udp_subscriptions: int = 200_000
    udp_subscriptions_per_address: int = 20_000
    udp_filter_bytes_per_address: int = 16 << 20  # subscriptions may be long: what they may hold together
    session_subscriptions: int = 20_000  # of one connection or id
    semicolon_subscribers: int = 100
    typed_sessions: int = 100_000
    filter_levels: int = 200  # of a filter with wildcards: each level is a node


class Sessions:
    def __init__(self, live: Feed, kept: Feed | None, limits: Limits) -> None:
        self._live = live
        self._kept = kept
        self._limits = limits
        self.by_dialect: Counter[Dialect] = Counter()  # subscriptions
        self.subscribed: dict[Session, None] = {}  # all that hold a subscription, in the order in which they came
        self._udp_total = 0
        self._udp_by_host: Counter[str] = Counter()
        self._udp_bytes_by_host: Counter[str] = Counter()
        self._typed: dict[str, Session] = {}
        self._semicolon: set[Session] = set()
        self.remember: Remember | None = None

    def subscribe(self, session: Session, pattern: Filter, keep: bool = False) -> bool:
        """Whether the subscription is new. Repeating one only updates `keep`."""
        known = session.subscriptions.get(pattern)
        if known is keep:
            return False
        if known is None:
            self._check(session, pattern)
            self._count(session, pattern, 1)
        before = self._feed(session, pattern) if known is not None else None
        session.subscriptions[pattern] = keep
        if known and self._kept and session.outbox is not None:
            session.lingering.add(pattern)  # what was kept still comes, and in order
        else:
            session.lingering.discard(pattern)
        feed = self._feed(session, pattern)
        if feed is not before:
            if before:
                before.remove(pattern, session)
            feed.add(pattern, session)
        if self.remember:
            self.remember.subscribed(session, pattern, keep)
        return known is None

    def restore_kept(self, session: Session, pattern: Filter) -> None:
        """A kept subscription from before a restart; its feed has its cursor."""
        session.subscriptions[pattern] = True
        self._count(session, pattern, 1)

    def unsubscribe(self, session: Session, pattern: Filter) -> bool:
        if pattern not in session.subscriptions:
            return False
        self._feed(session, pattern).remove(pattern, session)
        del session.subscriptions[pattern]
        session.lingering.discard(pattern)
        self._count(session, pattern, -1)
        if self.remember:
            self.remember.unsubscribed(session, pattern)
        return True

    def _feed(self, session: Session, pattern: Filter) -> Feed:
        keep = session.subscriptions[pattern] or pattern in session.lingering
        return self._kept if self._kept and (keep or session.dialect is Dialect.PADDED) else self._live

    def forget(self, session: Session) -> int:
        """Ends all subscriptions of the session; returns how many there were."""
        patterns = list(session.subscriptions)
        for pattern in patterns:
            self.unsubscribe(session, pattern)
        return len(patterns)

    def forget_semicolon(self) -> list[Session]:
        """Ends every semicolon subscription; returns whose they were."""
        sessions = list(self._semicolon)
        for session in sessions:
            self.forget(session)
        return sessions

    def typed(self, client: str) -> Session:
        """The session of a typed id; made when the id is new and there is room for it."""
        session = self._typed.get(client)
        if session is None:
            most = self._limits.typed_sessions
            if len(self._typed) >= most and not self._drop_an_empty_typed():
                raise Refused("too_many_sessions", f"no room for another id, there are {most} (typed.max_sessions)")
            session = self._typed[client] = Session(Dialect.TYPED, client)
        return session

    def attach(self, session: Session, outbox: Outbox | None) -> None:
        """The session's client came (its outbox) or went (None)."""
        session.outbox = outbox
        lingering, session.lingering = session.lingering, set()
        for pattern in lingering:
            assert self._kept
            self._kept.remove(pattern, session)
            self._live.add(pattern, session)
        for pattern in session.subscriptions:
            self._feed(session, pattern).attached(pattern, session)

    def _drop_an_empty_typed(self) -> bool:
        """Makes room: an id that is away and subscribed to nothing is worth nothing."""
        for client, session in self._typed.items():
            if session.outbox is None and not session.subscriptions:
                del self._typed[client]
                return True
        return False

    def _check(self, session: Session, pattern: Filter) -> None:
        limits = self._limits
        if len(pattern) > limits.filter_levels and not all(isinstance(level, bytes) for level in pattern):
            raise Refused("too_many_levels", f"a filter with wildcards has at most {limits.filter_levels} levels")
        if not session.udp and len(session.subscriptions) >= limits.session_subscriptions:
            raise Refused("too_many_subscriptions", f"at most {limits.session_subscriptions} subscriptions per client")
        if session.dialect is Dialect.SEMICOLON and self.by_dialect[Dialect.SEMICOLON] >= limits.semicolon_subscribers:
            most = limits.semicolon_subscribers
            raise Refused("too_many_subscribers", f"there are {most} subscribers already; -s sets the limit")
        if session.udp:
            self._check_udp(session, pattern)

    def _check_udp(self, session: Session, pattern: Filter) -> None:
        limits = self._limits
        if self._udp_total >= limits.udp_subscriptions:
            raise Refused("too_many_subscriptions", f"there are {limits.udp_subscriptions} UDP subscriptions already")
        if self._udp_by_host[session.host] >= limits.udp_subscriptions_per_address:
            most = limits.udp_subscriptions_per_address
            raise Refused("too_many_subscriptions", f"{session.host} has {most} subscriptions already")
        if self._udp_bytes_by_host[session.host] + _size(pattern) > limits.udp_filter_bytes_per_address:
            raise Refused("too_many_subscriptions", f"the subscriptions of {session.host} are too long together")

    def _count(self, session: Session, pattern: Filter, step: int) -> None:
        self.by_dialect[session.dialect] += step
        if step > 0:
            self.subscribed[session] = None
        elif not session.subscriptions:
            self.subscribed.pop(session, None)
        if session.dialect is Dialect.SEMICOLON:
            (self._semicolon.add if session.subscriptions or step > 0 else self._semicolon.discard)(session)
        if session.udp:
            self._udp_total += step
            self._udp_by_host[session.host] += step
            self._udp_bytes_by_host[session.host] += step * _size(pattern)
            if not self._udp_by_host[session.host]:
                del self._udp_by_host[session.host], self._udp_bytes_by_host[session.host]


def _size(pattern: Filter) -> int:
    """What a filter takes in memory, about: an object for each level."""
    return sum(LEVEL_BYTES + (len(level) if isinstance(level, bytes) else 0) for level in pattern)
