"""The broker's log: append, rotate, retain; reading goes through `LogReader`.

    append   write, fdatasync, then publish the mark: in this order, and only then acknowledge; small ones go
             into room made before, since a sync that need not change the file's size is a shorter one
    failure  of any of these: the tail is given up for good (cut, marked as cut, closed) and the next
             append begins a new one at the same offset; a file whose sync failed is never trusted again
    rotate   a new tail is begun; from the moment its name may exist nothing goes into an older one

One process at a time (`lock`). Methods may be called from any thread; one append runs at a time.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from pathlib import Path
from secrets import randbits
from threading import RLock
from typing import TYPE_CHECKING, NamedTuple

import pyarrow as pa

from smbroker.log import flood, many
from smbroker.log.arrays import batch_of, groups_of, times_of
from smbroker.log.disk import Disk, write_all
from smbroker.log.few import encoded, go_on
from smbroker.log.format import Frame, Note, encode, head
from smbroker.log.index import read_header
from smbroker.log.layout import Message, Piece
from smbroker.log.lock import LOCK, Lock
from smbroker.log.mark import MarkFile
from smbroker.log.past_cache import Memory, PastCache, new_memory
from smbroker.log.recover import OpenTail, recover
from smbroker.log.segments import INDEX, SEALED, TAIL, TEMPORARY, Segment, bases, file_of, segments_in
from smbroker.log.settings import LogSettings
from smbroker.log.tail import TailIndex, read_notes
from smbroker.model.errors import LogError
from smbroker.model.message import Columns

if TYPE_CHECKING:
    from smbroker.log.reader import LogReader
    from smbroker.log.topics import Topics

MAX_APPENDS = 50_000  # of a tail: each is checked by itself when a log is opened, some 8 µs
SMALL = 512 << 10  # bytes; a smaller append makes room for more of its kind
LARGE = 512 << 10  # bytes; a larger one goes past the page cache
PLENTY = 256 << 20  # free bytes of a disk that has room to make
_ZEROS = bytes(1 << 20)


class Sizes(NamedTuple):
    """What the log takes, for people and gauges."""

    segments: int
    messages: int
    bytes: int


class Log:
    def __init__(self, directory: Path, settings: LogSettings, disk: Disk, lock: Lock) -> None:
        """For `open`."""
        self.directory = directory
        self._settings = settings
        self._disk = disk
        self._lock = lock
        self._busy = RLock()
        self._memory: Memory | None = None  # of the tail's `past_cache`, once there was a large append
        found = recover(disk, directory)
        self.recovered = found.said  # what recovery dropped or repaired, in sentences; empty if all was well
        self._tail: OpenTail | None = found.tail
        self._mark = MarkFile(disk, directory, found.mark)
        self._ends: dict[int, int] = {}  # of sealed segments
        self.begun = 0  # tails since the log was opened: as often one was closed
        if self._tail is None:
            self._begin_tail()

    @classmethod
    def open(cls, directory: Path, settings: LogSettings | None = None, disk: Disk | None = None) -> "Log":
        """Recovers what is there; begins a log where there is none. Raises LogError (`locked`, `disk`)."""
        disk = disk or Disk()
        lock = None
        try:
            disk.make_directory(directory)
            lock = Lock(directory / LOCK)
            return cls(directory, settings or LogSettings(), disk, lock)
        except OSError as error:
            if lock:
                lock.release()
            raise _refused(error, "opened") from error
        except BaseException:
            if lock:
                lock.release()
            raise

    def close(self) -> None:
        """Everything appended is on disk already; this spares the next start some work."""
        with self._busy:
            try:
                self._mark.sync()
            except OSError as error:
                raise _refused(error, "closed") from error
            finally:
                if self._tail:
                    self._close_tail(self._tail)
                    self._tail = None
                self._mark.close()
                self._lock.release()

    @property
    def next_offset(self) -> int:
        """The durable mark: the offset that the next message will get."""
        return self._mark.mark.next

    @property
    def first_offset(self) -> int:
        """The first offset that retention has left."""
        return self._mark.mark.first

    def append(self, turns: Sequence[Columns], notes: Sequence[Note] = (), breathe: Callable[[], None] = go_on) -> int:
        """All of it is on disk, or LogError and none of it is in the log. Returns the first message's offset.

        `breathe` is called now and then while few messages are laid out, and once they are on disk."""
        with self._busy:
            base = self.next_offset
            if not notes and not any(map(len, turns)):
                return base
            try:
                tail = self._tail or self._begin_tail()
            except OSError as error:
                raise _refused(error, "appended to") from error
            messages, next_, first_ts = _encoded(turns, notes, base, tail.tail, breathe)
            try:
                length = self._write(tail, messages)
                if length > tail.room and length - tail.length < SMALL:
                    self._make_room(tail, length)
                self._disk.sync_data(tail.handle)
                breathe()
                self._mark.publish(self._mark.mark._replace(next=next_, tail=tail.tail, tail_bytes=length, cut=False))
            except OSError as error:
                self._give_up(tail)
                raise _refused(error, "appended to") from error
            except BaseException:  # a bug, with some of it written
                self._give_up(tail)
                raise
            tail.length = length
            tail.appends += 1
            if first_ts:  # there are rows, not only notes
                tail.first_ts = min(tail.first_ts, first_ts) if tail.first_ts else first_ts
            return base

    def _write(self, tail: OpenTail, messages: Sequence[Piece | Message]) -> int:
        """Returns the position after them."""
        if sum(one.frame.length if isinstance(one, Message) else len(one) for one in messages) >= LARGE:
            if tail.past_cache is None:
                self._memory = self._memory or new_memory()
                tail.past_cache = PastCache(self._disk, tail.handle, self._memory)
            return tail.past_cache.write(messages, tail.length)
        length = tail.length
        for one in messages:
            length = write_all(self._disk, tail.handle, _joined(one), length)
        return length

    def _make_room(self, tail: OpenTail, length: int) -> None:
        """Zeros for the appends to come. Where the disk has little room they go on without."""
        try:
            if self._disk.free(tail.handle) > PLENTY:
                tail.room = write_all(self._disk, tail.handle, _ZEROS, length)
        except OSError:
            pass

    def _close_tail(self, tail: OpenTail) -> None:
        """Without the room that it did not use; zeros that stay there harm nobody."""
        try:
            self._disk.truncate(tail.handle, tail.length)
        except OSError:
            pass
        self._disk.close(tail.handle)

    def _give_up(self, tail: OpenTail) -> None:
        """What failed must not come back: cut it off, and should that fail too the mark tells recovery to."""
        self._tail = None
        cut = self._mark.mark._replace(tail=tail.tail, tail_bytes=tail.length, cut=True)
        attempts: list[Callable[[], None]] = [
            lambda: self._disk.truncate(tail.handle, tail.length),
            lambda: self._mark.publish(cut),
            self._mark.sync,
            lambda: self._disk.close(tail.handle),
        ]
        for attempt in attempts:
            try:
                attempt()
            except OSError:  # the caller raises what came first
                pass

    def _begin_tail(self) -> OpenTail:
        """A new tail at the next offset, in place of any that stands there without an acknowledged message: it takes
        over the notes of that one."""
        base, old = self.next_offset, self._tail
        path = file_of(self.directory, base, TAIL)
        carried = self._notes_in(path, base)
        temporary = path.with_name(path.name + TEMPORARY)
        tail = OpenTail(self._disk.create(temporary), base, randbits(63) | 1, 0)
        try:
            tail.length = write_all(self._disk, tail.handle, head(base, tail.tail), 0)
            for message in _encoded([], carried, base, tail.tail)[0] if carried else ():
                tail.length = write_all(self._disk, tail.handle, _joined(message), tail.length)
            self._disk.sync_data(tail.handle)
            self._tail = None  # from here on the new name may exist: nothing may go into the old tail
            self._disk.rename(temporary, path)
            self._disk.sync_directory(self.directory)
            self._mark.publish(self._mark.mark._replace(tail=tail.tail, tail_bytes=tail.length, cut=False))
        except OSError:
            self._disk.close(tail.handle)
            try:
                self._disk.unlink(temporary)
            except OSError:  # recovery removes it
                pass
            raise
        finally:
            if old and self._tail is None:
                self._close_tail(old)
        self._tail = tail
        self.begun += 1
        return tail

    def _notes_in(self, path: Path, base: int) -> list[Note]:
        """Of a tail without messages, as far as it is sound."""
        found: list[Note] = []
        try:
            handle = self._disk.open(path)
        except FileNotFoundError:
            return found
        try:
            index = TailIndex(base)
            index.extend(self._disk, handle, base)
            for _, notes in read_notes(self._disk, handle, path, index, base):
                found += notes
        except LogError:
            pass
        finally:
            self._disk.close(handle)
        return found

    @property
    def ready(self) -> bool:
        """There is a tail to append to; false after a failure until `probe` or an append begins a new one."""
        return self._tail is not None

    def probe(self) -> None:
        """After a failure: begins a new tail if the disk lets it, else raises LogError."""
        with self._busy:
            if self._tail is None:
                try:
                    self._begin_tail()
                except OSError as error:
                    raise _refused(error, "appended to") from error

    def rotate(self) -> None:
        """Closes the tail, so that it can be sealed, and begins a new one."""
        with self._busy:
            if self._tail is None or self.next_offset > self._tail.base:
                try:
                    self._begin_tail()
                except OSError as error:
                    raise _refused(error, "rotated") from error

    def due(self, now: float) -> bool:
        """Whether the tail has the rows, the bytes or the age (`now`: seconds since 1970) that seal it."""
        tail, settings = self._tail, self._settings
        if tail is None or self.next_offset == tail.base:
            return False
        aged = settings.seal_age and now - tail.first_ts / 1e6 >= settings.seal_age
        full = self.next_offset - tail.base >= settings.seal_rows or tail.length >= settings.seal_bytes
        return bool(full or aged or tail.appends >= MAX_APPENDS)

    def rotate_if_due(self, now: float) -> bool:
        if not self.due(now):
            return False
        self.rotate()
        return True

    @property
    def pending_seals(self) -> list[int]:
        """The first offsets of the closed tails, oldest first."""
        return [segment.base for segment in self.closed_tails]

    @property
    def closed_tails(self) -> list[Segment]:
        """Those that are to be sealed (`seal.seal_segment`), oldest first."""
        return [segment for segment in self._segments() if not segment.sealed and segment.end is not None]

    def _segments(self) -> list[Segment]:
        found = segments_in(self._disk, self.directory, self._ends)
        return [segment for segment in found if segment.end is None or segment.end > self.first_offset]

    def retain(self, now: float) -> list[int]:
        """Removes sealed segments, oldest first, that are too old or too much. Returns their first offsets."""
        with self._busy:
            removed = self._expired(now)
            if not removed:
                return []
            try:
                self._mark.publish(self._mark.mark._replace(first=removed[-1].end))
                self._mark.sync()
                given_up = range(removed[0].base, removed[-1].end)
                names = self._disk.names(self.directory)
                for suffix in (TAIL, SEALED, INDEX):  # tails: leftovers of sealing
                    for base in bases(names, suffix):
                        if base in given_up:
                            self._disk.unlink(file_of(self.directory, base, suffix))
            except OSError as error:
                raise _refused(error, "shortened") from error
            return [segment.base for segment in removed]

    def _expired(self, now: float) -> list["_Range"]:
        settings = self._settings
        if not settings.retain_age and not settings.retain_bytes:
            return []
        total = self.sizes.bytes if settings.retain_bytes else 0
        expired: list[_Range] = []
        for segment in self._segments():
            if not segment.sealed or segment.end is None:
                break
            last_ts, size = self._newest(segment)
            aged = settings.retain_age and last_ts < round((now - settings.retain_age) * 1e6)
            if not aged and not (settings.retain_bytes and total > settings.retain_bytes):
                break
            total -= size
            expired.append(_Range(segment.base, segment.end))
        return expired

    def _newest(self, segment: Segment) -> tuple[int, int]:
        """Of a sealed segment the greatest ts, and its bytes; without its index, when it was sealed must do."""
        if header := read_header(self._disk, file_of(self.directory, segment.base, INDEX)):
            return header.last_ts, header.file_bytes
        found = file_of(self.directory, segment.base, SEALED).stat()
        return found.st_mtime_ns // 1000, found.st_size

    @property
    def sizes(self) -> Sizes:
        names = [name for name in self._disk.names(self.directory) if name.endswith((TAIL, SEALED, INDEX))]
        total = 0
        for name in names:
            try:
                total += (self.directory / name).stat().st_size
            except FileNotFoundError:  # sealed or removed meanwhile
                pass
        segments = sum(not name.endswith(INDEX) for name in names)
        return Sizes(segments, self.next_offset - self.first_offset, total)

    @cached_property
    def _reader(self) -> "LogReader":
        from smbroker.log.reader import LogReader  # slow to import: a start should not wait for it

        return LogReader(self.directory, self._disk)

    def read(
        self, start: int, end: int | None = None, topics: "Topics | None" = None, columns: Sequence[str] | None = None
    ) -> Iterator[pa.RecordBatch]:
        """As `LogReader.read`."""
        return self._reader.read(start, end, topics, columns)

    def beyond(self, offset: int) -> int:
        """As `LogReader.beyond`."""
        return self._reader.beyond(offset)

    def offset_at(self, ts: int) -> int:
        """As `LogReader.offset_at`."""
        return self._reader.offset_at(ts)

    def notes(self, start: int = 0, until: int | None = None) -> Iterator[tuple[int, list[Note]]]:
        """As `LogReader.notes`."""
        return self._reader.notes(start, until)


class _Range(NamedTuple):
    base: int
    end: int


def _encoded(
    turns: Sequence[Columns], notes: Sequence[Note], base: int, tail: int, breathe: Callable[[], None] = go_on
) -> tuple[list[Piece | Message], int, int]:
    """The messages of one append, the offset after them and the least ts. Notes go with the last one."""
    few = None if notes else encoded(turns, base, tail, breathe)
    if few:
        message, rows, first_ts = few
        return [message], base + rows, first_ts
    groups = list(groups_of(turns))
    messages: list[Piece | Message] = []
    for left, (group, rows) in zip(range(len(groups) - 1, -1, -1), groups, strict=True):
        frame = Frame(base, tail, *times_of(group), rows, left)
        if notes and not left:
            messages.append(encode(batch_of(group, rows, base).rows, frame, notes))
        else:
            messages.append(flood.laid_out(group, frame) or many.laid_out(batch_of(group, rows, base).rows, frame))
        base += rows
    return messages, base, min((times_of(group)[0] for group, rows in groups if rows), default=0)


def _joined(message: Piece | Message) -> Piece:
    return b"".join(message.stamped()) if isinstance(message, Message) else message


def _refused(error: OSError, verb: str) -> LogError:
    return LogError("disk", f"the log cannot be {verb}: {error.strerror or error}")
