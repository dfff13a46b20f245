"""A stream: one subscriber of server-sent events, which is a filter and a cursor and nothing more.

No message is queued for it, so a slow one costs no memory: it falls behind and is then served from the log.

One that has all there is rests, and costs nothing until something comes that it wants: each commit is looked at
once for all of them (`Resting`).
"""

import asyncio
from collections.abc import Iterable, Iterator

from smbroker.core.router import Router
from smbroker.log.questions import Form
from smbroker.log.rows import formed, message_at
from smbroker.model.filter import Filter, matches
from smbroker.model.grant import Grant
from smbroker.model.message import Columns
from smbroker.model.rights import Permit
from smbroker.model.topic import Topic
from smbroker.server.recent import Recent

STEP = 200  # rows that one step makes JSON of: a millisecond or so
SCAN = 5_000  # rows that one step looks at
MAX_KNOWN = 10_000  # topics that a stream remembers to want or not


class Stream:
    def __init__(self, pattern: Filter | None, cursor: int, grant: Grant, seam: int = 0) -> None:
        """What is before the `seam` is history, which needs a right of its own."""
        self.pattern = pattern  # None: everything
        self.cursor = cursor
        self.grant = grant
        self.seam = seam
        self.rests = False
        self.news = asyncio.Event()
        self._known: dict[Topic, bool] = {}

    def from_memory(self, recent: Recent, *, kept: bool) -> tuple[int, bytes]:
        """The next messages that it wants, as so many events; without a log (`kept`) they have no offset."""
        events: list[bytes] = []
        for base, columns, row in self._ahead(recent):
            if self._wants(columns.topics[row]) and self._may_have(columns.topics[row], base + row):
                events.append(formed(message_at(row, columns, base + row if kept else None), Form.EVENTS))
                if len(events) == STEP:
                    break
        return len(events), b"".join(events)

    def _may_have(self, topic: Topic, offset: int) -> bool:
        grant = self.grant
        return not grant.limited or (grant.replays if offset < self.seam else grant.subscribes)[topic]

    def permit(self) -> tuple[Permit | None, int]:
        """What it may have from the log (None: all), and up to which offset that holds; 0: to the end."""
        if not self.grant.limited:
            return None, 0
        return (self.grant.replay(), self.seam) if self.cursor < self.seam else (self.grant.subscribes.permit, 0)

    def _ahead(self, recent: Recent) -> Iterator[tuple[int, Columns, int]]:
        """The rows from the cursor on, which moves with them."""
        start = self.cursor
        for base, columns in recent.since(start):
            for row in range(max(start - base, 0), len(columns)):
                self.cursor = base + row + 1
                yield base, columns, row
                if self.cursor - start >= SCAN:
                    return

    def _wants(self, topic: Topic) -> bool:
        if self.pattern is None:
            return True
        known = self._known.get(topic)
        if known is None:
            if len(self._known) >= MAX_KNOWN:
                self._known.clear()
            known = self._known[topic] = matches(self.pattern, topic)
        return known


class Resting:
    """The streams there are, and which of them a commit wakes."""

    def __init__(self) -> None:
        self._router: Router[Stream] = Router()
        self._all: dict[Stream, None] = {}
        self._of_everything: dict[Stream, None] = {}
        self._routes: dict[Topic, list[Stream]] = {}
        self._through = 0  # the offset that was looked at last, and one

    def __len__(self) -> int:
        return len(self._all)

    def add(self, stream: Stream, recent: Recent) -> None:
        if not self._all:
            self._through = recent.next
        self._all[stream] = None
        if stream.pattern is None:
            self._of_everything[stream] = None
        else:
            self._router.subscribe(stream.pattern, stream)
        self._routes.clear()

    def remove(self, stream: Stream) -> None:
        self._all.pop(stream, None)
        self._of_everything.pop(stream, None)
        if stream.pattern is not None:
            self._router.unsubscribe(stream.pattern, stream)
        self._routes.clear()

    async def rest(self, stream: Stream, seconds: float) -> bool:
        """Until something came that it wants; whether it did. What came meanwhile is passed over."""
        stream.rests = True
        stream.news.clear()
        try:
            await asyncio.wait_for(stream.news.wait(), seconds)
        except TimeoutError:
            if not stream.rests:  # it was woken at the last moment
                return True
            stream.cursor = max(stream.cursor, self._through)
            return False
        finally:
            stream.rests = False
        return True

    def look(self, recent: Recent) -> None:
        """After a commit."""
        if not self._all:
            return
        start, self._through = self._through, recent.next
        if start < recent.first:
            self._wake(list(self._all), start)
            return
        for base, columns in recent.since(start):
            woken = dict(self._of_everything)
            for topic in set(columns.topics):
                woken.update(dict.fromkeys(self._wanting(topic)))
            self._wake(woken, max(base, start))

    def wake_all(self) -> None:
        self._wake(list(self._all), self._through)

    def _wake(self, streams: Iterable[Stream], start: int) -> None:
        """They want nothing of what was before `start`."""
        for stream in streams:
            if stream.rests:
                stream.rests = False
                stream.cursor = max(stream.cursor, start)
                stream.news.set()

    def _wanting(self, topic: Topic) -> list[Stream]:
        found = self._routes.get(topic)
        if found is None:
            if len(self._routes) >= MAX_KNOWN:
                self._routes.clear()
            found = self._routes[topic] = self._router.match(topic)
        return found
