"""A stream: one subscriber of server-sent events, which is a filter and a cursor and nothing more.

No message is queued for it, so a slow one costs no memory: it falls behind and is then served from the log.
"""

from collections.abc import Iterator

from smbroker.log.questions import Form
from smbroker.log.rows import formed, message
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
        self._known: dict[Topic, bool] = {}

    def from_memory(self, recent: Recent, *, kept: bool) -> tuple[int, bytes]:
        """The next messages that it wants, as so many events; without a log (`kept`) they have no offset."""
        events: list[bytes] = []
        for base, columns, row in self._ahead(recent):
            if self._wants(columns.topics[row]) and self._may_have(columns.topics[row], base + row):
                events.append(_event(base + row if kept else None, columns, row))
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


def _event(offset: int | None, columns: Columns, row: int) -> bytes:
    origin = columns.origins[row]
    shown = message(
        offset,
        columns.received,
        columns.topics[row].decode(),
        columns.payloads[row],
        columns.kinds[row].name.lower(),
        origin.dialect.value,
        origin.source,
        origin.client,
    )
    return formed(shown, Form.EVENTS)
