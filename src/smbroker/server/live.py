"""What a page that is open sees: figures once a second, and a sample of the messages, bounded whatever their rate.

A sample looks at the last few thousand messages since the one before it, and shows the last few of those that are
wanted; it tells how many there were and how many it did not look at.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from smbroker.log.rows import message_at
from smbroker.model.filter import Filter, matches
from smbroker.model.grant import Grant
from smbroker.model.message import Columns
from smbroker.model.topic import Topic
from smbroker.server.recent import Recent

TICK = 0.25  # seconds between samples
FIGURES = 4  # ticks between figures
MOST = 25  # messages of one sample
SCAN = 4_000  # messages that one sample looks at
MAX_KNOWN = 10_000  # topics that are remembered to be wanted or not
MAX_LIVE = 50  # pages at once: each costs some work every second


@dataclass(frozen=True, slots=True)
class Sample:
    seen: int  # messages that were wanted
    skipped: int  # that were not looked at
    messages: list[dict[str, Any]]  # the last of those that were wanted, oldest first

    @property
    def told(self) -> dict[str, Any]:
        return {"seen": self.seen, "skipped": self.skipped, "messages": self.messages}


class Sampler:
    def __init__(self, pattern: Filter | None, cursor: int, grant: Grant, *, kept: bool) -> None:
        """Without a log (`kept`) messages have no offset."""
        self._grant = grant
        self._pattern = pattern
        self._cursor = cursor
        self._kept = kept
        self._known: dict[Topic, bool] = {}

    def take(self, recent: Recent) -> Sample:
        """What came since the last time."""
        start = max(self._cursor, recent.first, recent.next - SCAN)
        skipped = max(start - self._cursor, 0)
        seen, last = 0, deque[tuple[int, Columns, int]](maxlen=MOST)
        for base, columns in recent.since(start):
            rows: Sequence[int] = range(max(start - base, 0), len(columns))
            if self._pattern is not None or self._grant.limited:
                rows = [row for row in rows if self._wants(columns.topics[row])]
            seen += len(rows)
            last.extend((base, columns, row) for row in rows[-MOST:])
        self._cursor = recent.next
        return Sample(seen, skipped, [self._shown(*one) for one in last])

    def _wants(self, topic: Topic) -> bool:
        known = self._known.get(topic)
        if known is None:
            if len(self._known) >= MAX_KNOWN:
                self._known.clear()
            known = self._known[topic] = self._pattern is None or matches(self._pattern, topic)
        return known and (not self._grant.limited or self._grant.subscribes[topic])

    def _shown(self, base: int, columns: Columns, row: int) -> dict[str, Any]:
        return message_at(row, columns, base + row if self._kept else None, short=True)
