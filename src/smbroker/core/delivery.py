"""Delivery: columns of messages in, frames in the outboxes of all matching subscribers out.

A route is what a topic leads to: the outboxes, grouped by dialect (or finer, where a dialect has several
framings), each group with the framer of that topic. Who may not have the topic is left out. Routes are cached
by topic; a change of subscriptions drops what it may have changed, a change of rights drops all. It makes no
difference where columns come from: a turn's input or the log.
"""

from collections import Counter
from collections.abc import Callable, Container, Hashable, Iterator, Mapping

from smbroker.core.outbox import Outbox
from smbroker.core.router import Router
from smbroker.core.sessions import Receive, Session
from smbroker.model.errors import Unfit
from smbroker.model.filter import Filter, exact_topic
from smbroker.model.framing import Framer, FramerOf
from smbroker.model.message import Columns, Dialect
from smbroker.model.stats import Stats
from smbroker.model.topic import Topic

MAX_ROUTES = 100_000  # topics are attackers' text: the cache must not grow with them
MAX_ENTRIES = 2_000_000  # nor with subscribers of them, of which each route has a list
MAX_CACHED_TOPIC = 1_024  # bytes; longer ones are routed afresh, which is rare and costs little


class Group:
    """Subscribers of a topic who take the same frames."""

    __slots__ = ("dialect", "framer", "outboxes")

    def __init__(self, dialect: Dialect, framer: Framer, outboxes: list[Outbox]) -> None:
        self.dialect = dialect
        self.framer = framer
        self.outboxes = outboxes


class _Route:
    __slots__ = ("framing", "groups", "single", "unfit")

    def __init__(self) -> None:
        self.groups: list[Group] = []
        self.framing: Hashable = None  # of all subscribers, if they have the same
        self.single: list[Receive] = []  # sessions that take messages themselves
        self.unfit: list[tuple[Dialect, str, int]] = []  # dialect, reason, subscribers that go without


class Delivery:
    """One feed of messages and those who are subscribed to it."""

    def __init__(
        self, framers: Mapping[Hashable, FramerOf], stats: Stats, on_change: Callable[[], None] = lambda: None
    ) -> None:
        """`on_change` hears when it may have changed who gets what."""
        self._router: Router[Session] = Router()
        self._framers = framers
        self._stats = stats
        self._on_change = on_change
        self._routes: dict[Topic, _Route] = {}
        self._entries = 0  # subscribers in those routes, or in some that were there
        self.dirty: list[Outbox] = []  # outboxes with something in them, each once

    @property
    def empty(self) -> bool:
        """Whether nobody is subscribed."""
        return self._router.empty

    def put(self, outbox: Outbox, frame: bytes) -> None:
        """One frame for one client: a reply."""
        if not outbox.frames:
            self.dirty.append(outbox)
        outbox.frames.append(frame)

    def flush(self) -> None:
        """Lets every outbox that got something send it."""
        dirty, self.dirty = self.dirty, []
        for outbox in dirty:
            outbox.flush()

    def add(self, pattern: Filter, session: Session) -> None:
        self._router.subscribe(pattern, session)
        self.changed(pattern)

    def remove(self, pattern: Filter, session: Session) -> None:
        self._router.unsubscribe(pattern, session)
        self.changed(pattern)

    def attached(self, pattern: Filter, _session: Session) -> None:
        self.changed(pattern)

    def changed(self, pattern: Filter) -> None:
        """The subscribers of this filter, or their outboxes, have changed."""
        self._on_change()
        topic = exact_topic(pattern)
        if topic is None:
            self._clear_routes()
        else:
            self._routes.pop(topic, None)

    def forget_routes(self) -> None:
        """Rights have changed: what a topic leads to is decided anew."""
        self._on_change()
        self._clear_routes()

    def deliver(self, columns: Columns) -> None:
        """Runs of one topic are framed and delivered together."""
        topics = columns.topics
        if self._router.empty:
            return
        if len(topics) == 1:
            self._deliver_run(topics[0], columns, 0, 1)
            return
        topic = columns.topic
        if topic is not None:
            self._deliver_run(topic, columns, 0, len(topics))
            return
        came = [(topics[run.first], run.first, run.end) for run in columns.runs]
        for topic, start, end in came or _runs(topics):
            self._deliver_run(topic, columns, start, end)

    def subscribers(self, topic: Topic, framing: Hashable) -> Group | None:
        """All those of a topic, if there are any and all have this framing."""
        if self._router.empty:
            return None
        route = self._routes.get(topic) or self._new_route(topic)
        return route.groups[0] if route.framing == framing else None

    def reaches(self, topic: Topic, outboxes: Container[Outbox]) -> bool:
        """Whether what is published to the topic goes to any of them."""
        route = self._routes.get(topic) or self._new_route(topic)
        return any(outbox in outboxes for group in route.groups for outbox in group.outboxes)

    def _clear_routes(self) -> None:
        self._routes.clear()
        self._entries = 0

    def framed(self, columns: Columns, dialect: Dialect) -> list[bytes]:
        """All of the messages for one subscriber of that dialect."""
        frames: list[bytes] = []
        for topic, start, end in _runs(columns.topics):
            unfit: list[str] = []
            try:
                frames += self._framers[dialect](topic)(columns, start, end, unfit)
            except Unfit as error:
                unfit = [error.code] * (end - start)
            for reason in unfit:
                self._stats.undeliverable[dialect, reason] += 1
        self._stats.delivered[dialect] += len(frames)
        return frames

    def _deliver_run(self, topic: Topic, columns: Columns, start: int, end: int) -> None:
        route = self._routes.get(topic) or self._new_route(topic)
        dirty = self.dirty
        for group in route.groups:
            unfit: list[str] = []
            frames = group.framer(columns, start, end, unfit)
            outboxes = group.outboxes
            for outbox in outboxes:
                waiting = outbox.frames
                if not waiting:
                    dirty.append(outbox)
                waiting += frames
            self._stats.delivered[group.dialect] += (end - start - len(unfit)) * len(outboxes)
            if unfit:
                self._count_unfit(group, unfit)
        for receive in route.single:
            receive(topic, columns, start, end)
        for dialect, reason, subscribers in route.unfit:
            self._stats.undeliverable[dialect, reason] += subscribers * (end - start)

    def _count_unfit(self, group: Group, unfit: list[str]) -> None:
        for reason, messages in Counter(unfit).items():
            self._stats.undeliverable[group.dialect, reason] += messages * len(group.outboxes)

    def _new_route(self, topic: Topic) -> _Route:
        route = _Route()
        by_group: dict[tuple[Dialect, Hashable], list[Outbox]] = {}
        for session in self._router.match(topic):
            if session.grant.limited and not session.grant.subscribes[topic]:
                continue
            if session.receive is not None:
                route.single.append(session.receive)
            elif session.outbox is not None:
                by_group.setdefault((session.dialect, session.group), []).append(session.outbox)
        for (dialect, group), outboxes in by_group.items():
            try:
                route.groups.append(Group(dialect, self._framers[group](topic), outboxes))
            except Unfit as unfit:
                route.unfit.append((dialect, unfit.code, len(outboxes)))
        if len(route.groups) == len(by_group) == 1 and not route.single:
            ((_, route.framing),) = by_group
        if len(topic) <= MAX_CACHED_TOPIC:
            entries = len(route.single) + sum(len(group.outboxes) for group in route.groups)
            if len(self._routes) >= MAX_ROUTES or self._entries + entries > MAX_ENTRIES:
                self._clear_routes()
            self._entries += entries
            self._routes[topic] = route
        return route


def _runs(topics: list[Topic]) -> Iterator[tuple[Topic, int, int]]:
    """Neighbours of equal topic: the topic, the first row and the end."""
    if not topics:
        return
    start, current = 0, topics[0]
    for position, topic in enumerate(topics):
        if topic != current:
            yield current, start, position
            start, current = position, topic
    yield current, start, len(topics)
