"""Which stretches of the log's unsealed end hold a topic, so that not every reading looks at all of it.

Sealed segments have an index on disk. For tails, whoever reads much keeps this in memory: it is made
from the rows themselves, once, and grows with the log. What is below the mark never changes.
"""

from array import array
from bisect import bisect_left
from collections.abc import Iterator
from collections.abc import Set as AbstractSet

import pyarrow as pa
import pyarrow.compute as pc

from smbroker.log.reader import LogReader
from smbroker.model.errors import LogError
from smbroker.model.topic import Topic

STEP = 16_384  # messages learnt at a time: some 30 ms, so that no question waits for long
BITS = 10  # a stretch is 1,024 offsets
MAX_TOPICS = 100_000  # topics are attackers' text; further ones are looked for wherever there are such


class Stretches:
    def __init__(self, reader: LogReader) -> None:
        self._reader = reader
        self._begin = self._end = 0  # this much is known
        self._of: dict[str, array[int]] = {}  # numbers of stretches, in order
        self._others = array("Q")  # those with topics that there was no room for

    def holding(self, topics: AbstractSet[Topic], start: int, end: int) -> list[tuple[int, int]]:
        """[start, end) without the stretches that are known to hold none of the topics.

        A list, made at once: what is known is forgotten when it is sealed, while the reading still goes on."""
        self.extend(end)  # by a little: what is not known yet is looked through
        begin, known = max(start, self._begin), min(end, self._end)
        numbers = set(self._others).union(*(self._of.get(topic.decode(), ()) for topic in topics))
        found = [(start, min(begin, end))]
        found += [(max(first << BITS, begin), min((last + 1) << BITS, known)) for first, last in _runs(sorted(numbers))]
        found.append((max(begin, known), end))
        return [(low, high) for low, high in found if low < high]

    def extend(self, end: int) -> bool:
        """One step towards `end`; whether there is more to learn."""
        view = self._reader.view()
        self._drop_before(next((part.base for part in view.segments if not part.sealed), view.next))
        limit = min(end, view.next, self._end + STEP)
        try:
            for batch in self._reader.read(self._end, limit, None, ("offset", "topic")):
                self._add(batch)
                self._end = batch.column("offset")[-1].as_py() + 1
            self._end = max(self._end, limit)
        except LogError:  # who reads there is told
            return False
        return self._end < min(end, view.next)

    def _drop_before(self, offset: int) -> None:
        if offset <= self._begin:
            return
        self._begin, self._end = offset, max(offset, self._end)
        first = offset >> BITS
        kept = {topic: numbers[bisect_left(numbers, first) :] for topic, numbers in self._of.items()}
        self._of = {topic: numbers for topic, numbers in kept.items() if numbers}
        self._others = self._others[bisect_left(self._others, first) :]

    def _add(self, batch: pa.RecordBatch) -> None:
        numbers = pc.shift_right(batch.column("offset"), pa.scalar(BITS, pa.int64()))
        pairs = pa.table({"number": numbers, "topic": batch.column("topic")}).group_by(["number", "topic"])
        found = pairs.aggregate([]).sort_by("number")
        for number, topic in zip(found.column("number").to_pylist(), found.column("topic").to_pylist(), strict=True):
            there = self._of.get(topic)
            if there is None:
                there = self._others
                if len(self._of) < MAX_TOPICS:
                    there = self._of[topic] = array("Q")
            if not there or there[-1] != number:
                there.append(number)


def _runs(numbers: list[int]) -> Iterator[tuple[int, int]]:
    """First and last of each run of neighbours."""
    for index, number in enumerate(numbers):
        if index == 0 or numbers[index - 1] != number - 1:
            first = number
        if index + 1 == len(numbers) or numbers[index + 1] != number + 1:
            yield first, number
