"""A range of the log as rows for Spark: cut into splits where it is planned, read where a task runs.

A split is a range of offsets and nothing else. Where the cuts fall depends on how the log is stored
at that moment; which rows a range holds never does. So a batch that Spark plans again after a crash
has the same rows, whatever has been sealed meanwhile.
"""

import gc
import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
from pyspark.sql.datasource import InputPartition

from smbroker.log.reader import LogReader, View
from smbroker.log.seal import GROUP_ROWS
from smbroker.log.topics import Topics
from smbroker.model.errors import LogError
from smbroker.model.filter import Filter, exact_topic, matches
from smbroker.spark.options import Position, ReadOptions

LEAST_ROWS = 200_000  # of a split: a task costs as much as some 50,000
LEAST_ROWS_BY_TOPIC = 1_000_000  # a few topics are found fast: opening a segment costs more than reading on
MOST_SPLITS = 12  # so many, or more where one would be larger than LARGEST
LARGEST = 4_000_000  # rows of a split: what a lost task costs to read again
BATCH_BYTES = 16 << 20  # of a batch handed to Spark, but always at least one row
PATIENCE = 10.0  # seconds for this machine to see what was planned on another (shared storage lags)

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class Split(InputPartition):
    """The offsets in [start, end), for one task."""

    def __init__(self, start: int, end: int) -> None:
        super().__init__((start, end))
        self.start = start
        self.end = end


@dataclass(frozen=True, slots=True)
class Reading:
    """What both readers share. Small and picklable: it travels to the tasks."""

    options: ReadOptions

    @property
    def log(self) -> LogReader:
        return _log_of(self.options.directory)

    def offset_of(self, position: Position) -> int:
        if position == "earliest":
            return self.log.first_offset
        if position == "latest":
            return self.log.next_offset
        if isinstance(position, datetime):
            return self.log.offset_at((position - _EPOCH) // timedelta(microseconds=1))
        return position

    def kept(self, start: int) -> int:
        """`start`, or the first offset there is if that is later and may be gone on with. Raises LogError."""
        view = self.log.view()
        if start > view.next:
            raise LogError("ahead", f"offset {start} is past the log's end, {view.next}: is it another log?")
        if start >= view.first:
            return start
        if self.options.fail_on_data_loss:
            raise _gone(start, view.first)
        return view.first

    def splits(self, start: int, end: int) -> list[Split]:
        least = LEAST_ROWS if self.options.filters is None else LEAST_ROWS_BY_TOPIC
        rows = min(max(least, -(-(end - start) // MOST_SPLITS)), LARGEST)
        view = self.log.view()
        found: list[Split] = []
        while start < end:
            cut = end if end - start < rows + rows // 2 else min(_cut(view, start + rows), end)
            found.append(Split(start, cut))
            start = cut
        return found

    def rows(self, split: Split) -> Iterator[pa.RecordBatch]:
        """The split's rows of the wanted topics, in order."""
        _settle()
        log, topics = self.log, _topics(self.options.filters)
        _await(log, split.end)
        cursor = split.start
        while cursor < split.end:
            try:
                for batch in log.read(cursor, split.end, topics):
                    yield from _pieces(batch)
                    cursor = batch.column("offset")[-1].as_py() + 1
                return
            except LogError as error:
                if error.code != "gone":
                    raise
                first = log.first_offset
                if self.options.fail_on_data_loss:
                    raise _gone(cursor, first) from error
                cursor = max(cursor, first)


def _cut(view: View, offset: int) -> int:
    """Where to cut, at `offset` or soon after: within a sealed segment no row group is read twice."""
    segment = view.holding(offset)
    if segment is None or segment.base >= offset or not segment.sealed:
        return offset
    group_end = segment.base - (segment.base - offset) // GROUP_ROWS * GROUP_ROWS
    return group_end if segment.end is None else min(group_end, segment.end)


def _pieces(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    rows = max(1, len(batch) * BATCH_BYTES // max(batch.nbytes, 1))
    for start in range(0, len(batch), rows):
        yield batch.slice(start, rows)


def _topics(filters: tuple[Filter, ...] | None) -> Topics | None:
    if filters is None:
        return None
    topics = [exact_topic(each) for each in filters]
    if all(topic is not None for topic in topics):
        return {topic for topic in topics if topic is not None}
    return lambda topic: any(matches(each, topic) for each in filters)


_settled = False


def _settle() -> None:
    """What the process has imported is not garbage: Spark has a worker collect after each task, 50 ms for all of it."""
    global _settled
    if not _settled:
        gc.freeze()
        _settled = True


def _await(log: LogReader, end: int) -> None:
    """Reading stops at the mark without a word: so it must be seen here before a range is read up to it."""
    give_up = time.monotonic() + PATIENCE
    while log.next_offset < end:
        if time.monotonic() > give_up:
            raise LogError("behind", f"the log in {log.directory} ends at {log.next_offset} here, before offset {end}")
        time.sleep(0.05)


def _gone(offset: int, first: int) -> LogError:
    text = f"offset {offset} is gone; the first there is is {first} (failOnDataLoss=false goes on there)"
    return LogError("gone", text)


_known: dict[Path, tuple[LogReader, int]] = {}  # and how far each had gone


def _log_of(directory: Path) -> LogReader:
    """One reader per process and log, kept: it remembers where the messages of a tail stand."""
    reader, mark = _known.get(directory, (None, 0))
    if reader is not None and directory.is_dir() and (now := reader.next_offset) >= mark:
        _known[directory] = (reader, now)
        return reader
    reader = LogReader(directory)  # the first time, or another log stands there now
    _known[directory] = (reader, reader.next_offset)
    return reader
