"""The columns that were committed last, in memory: the seam between history and what comes next.

A reader whose cursor is within them needs no disk to catch up, and can so go on without a gap.
"""

from collections import deque
from collections.abc import Iterator

from smbroker.model.message import Columns

MAX_BYTES = 4 << 20  # of payload; walking through all of it takes a few milliseconds
MAX_ROWS = 20_000


class Recent:
    def __init__(self, next_offset: int) -> None:
        self.first = next_offset  # the first offset that is here
        self.next = next_offset  # the offset after the last
        self._turns: deque[tuple[int, Columns, int]] = deque()  # first offset, columns, their bytes
        self._bytes = 0

    def add(self, base: int, columns: Columns) -> None:
        if base != self.next:  # a gap in the log: nothing before it can be gone on with from here
            self._turns.clear()
            self._bytes = 0
            self.first = base
        size = sum(map(len, columns.payloads))
        self._turns.append((base, columns, size))
        self._bytes += size
        self.next = base + len(columns)
        while self._bytes > MAX_BYTES or self.next - self.first > MAX_ROWS:
            _, oldest, size = self._turns.popleft()
            self._bytes -= size
            self.first += len(oldest)

    def since(self, cursor: int) -> Iterator[tuple[int, Columns]]:
        """The turns that hold offsets from `cursor` on."""
        found = []
        for base, columns, _ in reversed(self._turns):  # who asks is near the end, as a rule
            if base + len(columns) <= cursor:
                break
            found.append((base, columns))
        return reversed(found)
