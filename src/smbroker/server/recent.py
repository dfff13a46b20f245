"""The columns that were committed last, in memory: the seam between history and what comes next.

A reader whose cursor is within them needs no disk to catch up, and can so go on without a gap.
"""

from bisect import bisect_right
from collections.abc import Iterator

from smbroker.model.message import Columns

MAX_ROWS = 100_000
LEAST_BYTES = 1_000_000  # streams live from it, also where there is no log


class Recent:
    def __init__(self, next_offset: int, most: int) -> None:
        """`most`: bytes that are kept; not fewer than LEAST_BYTES."""
        self._most = max(most, LEAST_BYTES)
        self.first = next_offset  # the first offset that is here
        self.next = next_offset  # the offset after the last
        self._turns: list[tuple[Columns, int]] = []  # columns, their bytes …
        self._bases: list[int] = []  # … and first offsets
        self._begin = 0  # so many of them count no more
        self._bytes = 0

    def add(self, base: int, columns: Columns, size: int) -> None:
        """`size`: the bytes that the columns take."""
        if base != self.next:  # a gap in the log: nothing before it can be gone on with from here
            self._turns, self._bases, self._begin, self._bytes = [], [], 0, 0
            self.first = base
        self._turns.append((columns, size))
        self._bases.append(base)
        self._bytes += size
        self.next = base + len(columns)
        while self._bytes > self._most or self.next - self.first > MAX_ROWS:
            self._drop_oldest()

    def _drop_oldest(self) -> None:
        columns, size = self._turns[self._begin]
        self._turns[self._begin] = Columns(), 0
        self._begin += 1
        self._bytes -= size
        self.first += len(columns)
        if 2 * self._begin > len(self._turns):
            del self._turns[: self._begin], self._bases[: self._begin]
            self._begin = 0

    def since(self, cursor: int) -> Iterator[tuple[int, Columns]]:
        """The turns that hold offsets from `cursor` on."""
        begin = max(bisect_right(self._bases, cursor) - 1, self._begin)
        for index in range(begin, len(self._turns)):
            base, (columns, _) = self._bases[index], self._turns[index]
            if base + len(columns) > cursor:
                yield base, columns
