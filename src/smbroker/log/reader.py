"""Reading the log, from any process: no lock, never past the mark, while it is sealed and retained.

The mark is read before the directory is listed: a tail begun after a failed sync has its name
before the mark moves on, so that no reader takes the failed rows for those that replaced them. A
file that vanishes between listing and opening was just sealed or removed: look again.
"""

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from contextlib import closing, suppress
from pathlib import Path
from threading import Lock
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from smbroker.log import mark as marks
from smbroker.log.disk import Disk
from smbroker.log.format import Bad, Note
from smbroker.log.index import read_header
from smbroker.log.sealed import SealedFile
from smbroker.log.segments import INDEX, SEALED, TAIL, UNDECODABLE, Segment, damage_told, file_of, segments_in
from smbroker.log.tail import TailIndex, read_notes, read_rows
from smbroker.log.topics import TopicChoice, Topics
from smbroker.model.errors import LogError

_ATTEMPTS = 100  # to open a file that vanishes each time; sealing happens once in a while


class View(NamedTuple):
    """The log at one moment."""

    first: int
    next: int
    segments: list[Segment]

    def holding(self, offset: int) -> Segment | None:
        """The segment of `offset`, or the first one after it."""
        return next((part for part in self.segments if part.end is None or part.end > offset), None)

    def limit(self, segment: Segment) -> int:
        """No offset of the segment counts from here on."""
        return self.next if segment.end is None else min(segment.end, self.next)


class SegmentInfo(NamedTuple):
    """A line of `smb log ls`."""

    name: str
    state: str  # "sealed", "closed" (waits to be sealed) or "tail"
    base: int
    end: int
    rows: int
    bytes: int
    first_ts: int  # least and greatest, in microseconds since 1970 UTC; 0 without rows
    last_ts: int


class LogReader:
    """May be used by several threads at once."""

    def __init__(self, directory: Path, disk: Disk | None = None) -> None:
        self.directory = Path(directory)
        self._disk = disk or Disk()
        self._ends: dict[int, int] = {}
        self._tails: dict[int, TailIndex] = {}
        self._lock = Lock()  # for the two dicts and what is in them
        if not self.directory.is_dir():
            raise LogError("no_log", f"there is no log in {self.directory}")

    @property
    def next_offset(self) -> int:
        """The durable mark: the offset that the next message will get."""
        return self.view().next

    @property
    def first_offset(self) -> int:
        """The first offset that is still there."""
        return self.view().first

    def view(self) -> View:
        mark = marks.read(self._disk, self.directory)
        with self._lock:
            segments = segments_in(self._disk, self.directory, self._ends)
            kept = {segment.base for segment in segments if not segment.sealed}
            for base in [base for base in self._tails if base not in kept]:
                del self._tails[base]
        if mark is None:  # what is sealed was below the mark in any case
            known = [segment.end or segment.base for segment in segments if segment.sealed]
            return View(segments[0].base if segments else 0, max(known, default=0), segments)
        there = [part for part in segments if part.end is None or part.end > mark.first]
        return View(mark.first, mark.next, there)

    def read(
        self,
        start: int,
        end: int | None = None,
        topics: Topics | None = None,
        columns: Sequence[str] | None = None,
    ) -> Iterator[pa.RecordBatch]:
        """The messages with offsets in [start, end), of these topics, in order; up to the mark without `end`.

        Steps over gaps. Raises LogError: `gone` if retention has removed what is asked for, `damaged`.
        """
        choice = None if topics is None else TopicChoice(topics)
        view = self._from(start)
        limit = view.next if end is None else min(end, view.next)
        for batch in self._batches(view, start, limit, choice, columns):
            yield batch if columns is None else batch.select(list(columns))

    def _batches(
        self, view: View, cursor: int, limit: int, choice: TopicChoice | None, columns: Sequence[str] | None
    ) -> Iterator[pa.RecordBatch]:
        attempts, sure_of_gap = 0, -1
        while cursor < limit:
            segment = view.holding(cursor)
            if segment is None or segment.base > cursor:
                if sure_of_gap != cursor:  # a listing may miss a file that is renamed meanwhile
                    view, sure_of_gap = self._from(cursor), cursor
                elif segment is None:
                    return
                else:
                    cursor = segment.base
                continue
            stop = limit if segment.end is None else min(limit, segment.end)
            batches = self._segment(view, segment, cursor, stop, choice, columns)
            try:
                first = next(batches, None)
            except FileNotFoundError:
                attempts += 1
                if attempts == _ATTEMPTS:
                    raise LogError("damaged", f"the segment of offset {cursor} is listed but not there") from None
                view = self._from(cursor)
                continue
            if first is not None:
                yield first
                yield from batches
            cursor = stop

    def _from(self, offset: int) -> View:
        view = self.view()
        if offset < view.first:
            raise LogError("gone", f"offset {offset} is gone; the first there is is {view.first}")
        return view

    def _segment(
        self,
        view: View,
        segment: Segment,
        start: int,
        end: int,
        choice: TopicChoice | None,
        columns: Sequence[str] | None,
    ) -> Iterator[pa.RecordBatch]:
        if segment.sealed:
            with closing(SealedFile(self._disk, self.directory, segment.base, plain=choice is None)) as file:
                yield from file.read(start, end, choice, columns)
            return
        path = file_of(self.directory, segment.base, TAIL)
        handle = self._disk.open(path)
        try:
            with damage_told(path):
                index, stopped = self._tail_index(handle, segment.base, view.limit(segment))
                yield from read_rows(self._disk, handle, path, index, start, min(end, index.end), choice)
            if index.end < end and (stopped or segment.end is None):
                reason = stopped.reason if stopped else "missing"
                raise LogError("damaged", f"{path.name}: at byte {index.length} a message {reason}")
        finally:
            self._disk.close(handle)

    def _tail_index(self, handle: int, base: int, limit: int) -> tuple[TailIndex, Bad | None]:
        with self._lock:
            index = self._tails.get(base)
            if index is None or not index.bases:  # an empty tail may have been replaced by another
                index = self._tails[base] = TailIndex(base)
            return index, index.extend(self._disk, handle, limit) if index.end < limit else None

    def beyond(self, offset: int) -> int:
        """Where reading can go on if the segment of `offset` is damaged."""
        view = self.view()
        segment = view.holding(offset)
        return view.next if segment is None or segment.end is None else max(segment.end, offset + 1)

    def offset_at(self, ts: int) -> int:
        """The first offset whose ts (microseconds since 1970 UTC) is `ts` or later; else the mark."""
        for _ in range(_ATTEMPTS):
            view = self.view()
            try:
                return next(
                    (found for part in view.segments if (found := self._at(view, part, ts)) is not None), view.next
                )
            except FileNotFoundError:
                continue
        raise LogError("damaged", "a segment is listed but not there")

    def _at(self, view: View, segment: Segment, ts: int) -> int | None:
        end = view.limit(segment)
        if segment.sealed:
            header = read_header(self._disk, file_of(self.directory, segment.base, INDEX))
            if header and header.last_ts < ts:
                return None
            with closing(SealedFile(self._disk, self.directory, segment.base)) as file:
                return file.offset_at(ts)
        path = file_of(self.directory, segment.base, TAIL)
        handle = self._disk.open(path)
        try:
            with damage_told(path):
                index, _ = self._tail_index(handle, segment.base, end)
                message = bisect_left(index.latest, ts)
                if message == len(index.bases):
                    return None
                for batch in read_rows(self._disk, handle, path, index, index.bases[message], end, None):
                    found = pc.index(pc.greater_equal(batch.column("ts").cast(pa.int64()), ts), True).as_py()
                    if found >= 0:
                        return int(batch.column("offset")[found].as_py())
                return None
        finally:
            self._disk.close(handle)

    def reach(self, start: int, end: int, size: int) -> int:
        """Up to where the messages from `start` on have some `size` bytes: at least one, at most those before `end`.

        By what they take up in their files before compression, as if all of a row group were of one length."""
        for _ in range(_ATTEMPTS):
            try:
                return self._reach(start, end, size)
            except FileNotFoundError:
                continue
        raise LogError("damaged", "a segment is listed but not there")

    def _reach(self, start: int, end: int, size: int) -> int:
        view, left = self.view(), float(size)
        for segment in view.segments:
            if view.limit(segment) <= start or segment.base >= end:
                continue
            for first, last, weight in self._weights(view, segment, start):
                low, each = max(first, start), weight / (last - first)
                taken = each * (last - low)
                if taken > left:
                    return min(max(low + int(left / each), start + 1), end)
                left -= max(taken, 0.0)
        return end

    def _weights(self, view: View, segment: Segment, start: int) -> Iterator[tuple[int, int, int]]:
        """Parts of the segment, from that of `start` on: first offset, the one after the last, bytes."""
        if segment.sealed:
            with closing(SealedFile(self._disk, self.directory, segment.base)) as file:
                yield from (part for part in file.weights() if part[1] > start)
            return
        handle = self._disk.open(file_of(self.directory, segment.base, TAIL))
        try:
            index, _ = self._tail_index(handle, segment.base, view.limit(segment))
        finally:
            self._disk.close(handle)
        count = len(index.bases)
        for message in range(index.at(start), count):
            last = index.bases[message + 1] if message + 1 < count else index.end
            if last > index.bases[message]:
                yield index.bases[message], last, index.position(message + 1) - index.positions[message]

    def notes(self, start: int = 0, until: int | None = None) -> Iterator[tuple[int, list[Note]]]:
        """The notes of all messages from offset `start` on that are not sealed yet, with the offset after each.

        Of appends that go past `until` they are left out, and of a damaged tail those from the damage on: they are
        lost as its messages are, and are no reason not to seal it. Raises LogError (`disk`) for those that the disk
        does not give: they may be there the next time, and without them something would be done twice."""
        view = self.view()
        for segment in view.segments:
            end = view.limit(segment) if until is None else min(view.limit(segment), until)
            if segment.sealed or end < max(start, segment.base):
                continue
            path = file_of(self.directory, segment.base, TAIL)
            try:
                yield from self._notes_in(path, segment.base, start, end)
            except OSError as error:
                raise LogError("disk", f"{path.name} cannot be read: {error.strerror or error}") from error

    def _notes_in(self, path: Path, base: int, start: int, end: int) -> Iterator[tuple[int, list[Note]]]:
        handle = self._disk.open(path)
        try:
            with suppress(LogError, *UNDECODABLE):
                index = TailIndex(base)
                index.extend(self._disk, handle, end)
                yield from read_notes(self._disk, handle, path, index, start)
        finally:
            self._disk.close(handle)

    def segments(self) -> list[SegmentInfo]:
        """All segments in order, for people."""
        view = self.view()
        return [self._info(view, segment) for segment in view.segments]

    def _info(self, view: View, segment: Segment) -> SegmentInfo:
        path = file_of(self.directory, segment.base, SEALED if segment.sealed else TAIL)
        end = view.next if segment.end is None else segment.end
        try:
            handle = self._disk.open(path)
        except FileNotFoundError:
            return SegmentInfo(path.name, "removed", segment.base, end, 0, 0, 0, 0)
        try:
            if segment.sealed:
                size = self._disk.size(handle)
                header = read_header(self._disk, file_of(self.directory, segment.base, INDEX))
                times = (header.first_ts, header.last_ts) if header else (0, 0)
                return SegmentInfo(path.name, "sealed", segment.base, end, end - segment.base, size, *times)
            index, _ = self._tail_index(handle, segment.base, view.limit(segment))
            state = "tail" if segment.end is None else "closed"
            last = index.latest[-1] if index.latest else 0
            rows = index.end - segment.base
            return SegmentInfo(path.name, state, segment.base, index.end, rows, index.length, index.first_ts, last)
        finally:
            self._disk.close(handle)
