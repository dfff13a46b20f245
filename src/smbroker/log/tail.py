"""A tail file, for reading: where its messages stand, and their rows.

`TailIndex` is grown from the file's headers and never past a limit: the mark, or where the next
segment begins. Beyond that may stand what failed. Every message's CRC is checked when it is read.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa

from smbroker.log.disk import Disk, read_all
from smbroker.log.format import (
    BLANK,
    SCHEMA,
    WINDOW,
    Bad,
    Frame,
    Note,
    checked_frame_at,
    decode,
    decode_notes,
    decode_run,
    frame_at,
)
from smbroker.model.errors import LogError

if TYPE_CHECKING:
    from smbroker.log.topics import TopicChoice

READ_BYTES = 4 << 20  # read at once, but always at least one message
READ_ROWS = 65_536  # rows given out at once, where messages are small
SMALL = 512  # rows; messages that are smaller on average are decoded together
STRAY = Bad("is not there, but something else")  # among the zeros after the last message


class TailIndex:
    def __init__(self, base: int) -> None:
        self.base = base
        self.tail = 0  # the id in the head; 0 until the head was read
        self.bases: list[int] = []  # of each message, its first offset …
        self.positions: list[int] = []  # … and where it stands in the file
        self.latest: list[int] = []  # greatest ts up to and with it
        self.end = base  # the offset after the last message known
        self.length = 0  # the position after it
        self.first_ts = 0  # least ts; 0 while there are no rows
        self.more = 0  # so many messages are missing from the last append

    def add(self, frame: Frame) -> None:
        self.bases.append(frame.base)
        self.positions.append(self.length)
        latest = self.latest[-1] if self.latest else frame.last_ts
        self.latest.append(max(latest, frame.last_ts) if frame.rows else latest)
        if frame.rows:
            self.first_ts = min(self.first_ts, frame.first_ts) if self.first_ts else frame.first_ts
        self.end = frame.end
        self.length += frame.length
        self.more = frame.more

    def position(self, message: int) -> int:
        return self.positions[message] if message < len(self.positions) else self.length

    def at(self, offset: int) -> int:
        """The first message that may hold `offset` or what follows it."""
        found = bisect_right(self.bases, offset)
        return max(0, found - 1)

    def extend(self, disk: Disk, handle: int, limit: int) -> Bad | None:
        """Takes in all messages that end at `limit` or before. Returns why it stopped short of the file's end."""
        if not self.length:
            frame = _frame_in_file(disk, handle, 0)
            if isinstance(frame, Bad):
                return frame
            self.tail, self.length = frame.tail, frame.length
        window, start, size = b"", self.length, disk.size(handle)
        while True:
            frame = frame_at(window, self.length - start)
            if isinstance(frame, Bad):
                if start == self.length and window:
                    frame = _frame_in_file(disk, handle, self.length)
                else:
                    window, start = disk.pread(handle, WINDOW, self.length), self.length
                    if not window:
                        return None
                    continue
            if isinstance(frame, Bad):
                return None if window.startswith(BLANK) else frame
            if frame.tail != self.tail or frame.base != self.end:
                return Bad("that does not follow the one before it")
            if frame.end > limit or self.length + frame.length > size:
                return Bad("beyond the mark" if frame.end > limit else "cut short")
            self.add(frame)

    def check(self, disk: Disk, handle: int, size: int) -> Bad | None:
        """Takes in all whole, checked appends of the first `size` bytes. Returns why it stopped before those.

        Zeros up to `size` are room for messages to come (`Log.append`), not something that is missing."""
        bad = self._check_messages(disk, handle, size)
        whole = len(self.bases)
        while whole and self.more:
            whole -= 1
            self.end, self.length = self.bases.pop(), self.positions.pop()
            self.latest.pop()
            self.more = 0 if not whole else self._more_of(disk, handle, whole - 1)
        if self.length and _blank(disk, handle, self.length, min(self.length + len(BLANK), size)):
            return None if _blank(disk, handle, self.length, size) else STRAY
        return bad or (Bad("missing from the last append") if self.length < size else None)

    def _more_of(self, disk: Disk, handle: int, message: int) -> int:
        frame = _frame_in_file(disk, handle, self.positions[message])
        return 0 if isinstance(frame, Bad) else frame.more

    def _check_messages(self, disk: Disk, handle: int, size: int) -> Bad | None:
        window, start = b"", 0
        while self.length < size:
            frame = checked_frame_at(window, self.length - start)
            if (
                isinstance(frame, Bad)
                and frame.need
                and len(window) < min(frame.need, size - self.length) + (self.length - start)
            ):
                start, length = self.length, max(frame.need, READ_BYTES)
                window = read_all(disk, handle, min(length, size - start), start)
                continue
            if isinstance(frame, Bad):
                return frame
            if not self.length:
                self.tail, self.length = frame.tail, frame.length
                continue
            if frame.tail != self.tail or frame.base != self.end:
                return Bad("that does not follow the one before it")
            self.add(frame)
        return None


def _blank(disk: Disk, handle: int, start: int, end: int) -> bool:
    """Nothing but zeros from `start` to `end`."""
    while start < end:
        chunk = disk.pread(handle, min(READ_BYTES, end - start), start)
        if not chunk or chunk != bytes(len(chunk)):
            return False
        start += len(chunk)
    return True


def _frame_in_file(disk: Disk, handle: int, position: int) -> Frame | Bad:
    frame = frame_at(disk.pread(handle, WINDOW, position))
    if isinstance(frame, Bad) and frame.need > WINDOW:
        frame = frame_at(read_all(disk, handle, frame.need, position))
    return frame


def read_rows(
    disk: Disk, handle: int, path: Path, index: TailIndex, start: int, end: int, choice: "TopicChoice | None"
) -> Iterator[pa.RecordBatch]:
    """The rows of [start, end) that the index knows, in order."""
    ready: list[pa.RecordBatch] = []
    rows = size = 0
    try:
        for raw, run in _runs(disk, handle, path, index, index.at(start), end):
            for base, batch in _decoded(raw, run):
                first, last = max(start - base, 0), min(end - base, len(batch))
                if first >= last:
                    continue
                wanted = batch.slice(first, last - first)
                if choice:
                    wanted = wanted.filter(choice.mask(wanted.column("topic")))
                if len(wanted):
                    ready.append(wanted)
                    rows += len(wanted)
                    size += wanted.nbytes
                if rows >= READ_ROWS or size >= READ_BYTES:
                    yield from _together(ready)
                    ready, rows, size = [], 0, 0
            if not choice:
                yield from _together(ready)
                ready, rows, size = [], 0, 0
    except LogError:  # what is before the damage is sound
        yield from _together(ready)
        raise
    yield from _together(ready)


def _decoded(raw: bytes, run: list[tuple[Frame, int]]) -> Iterator[tuple[int, pa.RecordBatch]]:
    """First offset and rows, of each message or, where they are small, of all together."""
    (first, start), (last, position) = run[0], run[-1]
    if last.end - first.base < min(SMALL * len(run), READ_ROWS):
        yield first.base, decode_run(raw, start, position + last.length)
    else:
        for frame, position in run:
            yield frame.base, decode(raw, position, frame)


def read_notes(disk: Disk, handle: int, path: Path, index: TailIndex, start: int) -> Iterator[tuple[int, list[Note]]]:
    """The notes of all messages from offset `start` on, each with the offset after its message."""
    begin = bisect_right(index.bases, start - 1) if start else 0
    for raw, run in _runs(disk, handle, path, index, begin, index.end + 1):
        for frame, position in run:
            if notes := decode_notes(raw, position, frame):
                yield frame.end, notes


def _runs(
    disk: Disk, handle: int, path: Path, index: TailIndex, begin: int, end: int
) -> Iterator[tuple[bytes, list[tuple[Frame, int]]]]:
    """Messages from number `begin` on that start before offset `end`, checked: bytes, and what stands where in them.

    Raises LogError after those that are before the damage."""
    count = bisect_left(index.bases, end)
    while begin < count:
        at = index.positions[begin]
        stop = min(max(begin + 1, bisect_right(index.positions, at + READ_BYTES) - 1), count)
        raw = read_all(disk, handle, index.position(stop) - at, at)
        run: list[tuple[Frame, int]] = []
        for number in range(begin, stop):
            position = index.positions[number] - at
            frame = checked_frame_at(raw, position)
            if isinstance(frame, Bad) or frame.base != index.bases[number]:
                if run:
                    yield raw, run
                reason = frame.reason if isinstance(frame, Bad) else "that is another than before"
                raise LogError("damaged", f"{path.name}: at byte {at + position} a message {reason}")
            run.append((frame, position))
        yield raw, run
        begin = stop


def _together(batches: list[pa.RecordBatch]) -> list[pa.RecordBatch]:
    """The same rows in fewer batches, where they are many and small."""
    if len(batches) < 2 or sum(map(len, batches)) >= SMALL * len(batches):
        return batches
    joined: list[pa.RecordBatch] = pa.Table.from_batches(batches, SCHEMA).combine_chunks().to_batches()
    return joined
