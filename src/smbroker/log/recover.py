"""What opening a log makes of what it finds: leftovers go, the tail keeps its whole, checked prefix.

Sealed segments and closed tails are not read here (sizes apart), so that opening takes as long as
checking one tail does. Whatever is dropped is said, in sentences for people. The argument why no
offset that a reader saw comes to mean another message is in docs/design/log.md.
"""

from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path

from smbroker.log import format as tail_format
from smbroker.log import mark as marks
from smbroker.log.disk import Disk, read_all, write_all
from smbroker.log.format import Bad
from smbroker.log.index import read_header
from smbroker.log.lock import Lock
from smbroker.log.mark import Mark
from smbroker.log.past_cache import PastCache
from smbroker.log.segments import DAMAGED, INDEX, SEALED, TAIL, TEMPORARY, bases, file_of, sealed_end, segments_in
from smbroker.log.tail import TailIndex
from smbroker.model.errors import LogError

SEAL_LOCK = "seal.lock"


@dataclass(slots=True)
class OpenTail:
    """The tail that is appended to."""

    handle: int
    base: int
    tail: int  # its id
    length: int  # bytes that are on disk
    room: int = 0  # zeros follow up to here: an append that fits is synced without a change of the file's size
    first_ts: int = 0  # least; 0 without rows
    appends: int = 0
    past_cache: PastCache | None = None  # for large appends, once there was one


@dataclass(slots=True)
class Recovered:
    mark: Mark
    tail: OpenTail | None  # None: the next append begins a new one
    said: list[str]


def recover(disk: Disk, directory: Path) -> Recovered:
    said: list[str] = []
    mark = marks.read(disk, directory)
    _settle(disk, directory, mark.first if mark else 0, said)
    names = disk.names(directory)
    tails, sealed = bases(names, TAIL), bases(names, SEALED)
    reached = max([sealed_end(disk, directory, base) or base for base in sealed], default=0)
    least = max(reached, mark.next if mark else 0)
    if tails:
        tail, next_ = _recover_tail(disk, directory, tails[-1], mark or Mark(), said)
        if tail and next_ < least:  # sealed further than the tail goes: not ours to go on with
            disk.close(tail.handle)
            tail = None
        next_ = max(least, next_)
    else:
        tail, next_ = None, least
        if mark and mark.next > reached:
            said.append(f"the tail is missing: offsets {reached} to {mark.next} are lost, appending goes on at {next_}")
    first = mark.first if mark else min([*tails, *sealed], default=next_)
    if mark is None and (tails or sealed):
        said.append(f"the mark was missing or damaged; by what is on disk the next offset is {next_}")
    return Recovered(
        Mark(first, next_, tail.tail if tail else 0, tail.length if tail else 0, sequence=mark.sequence if mark else 0),
        tail,
        said,
    )


def _settle(disk: Disk, directory: Path, first: int, said: list[str]) -> None:
    try:
        lock: Lock | None = Lock(directory / SEAL_LOCK)
    except LogError:
        lock = None  # a seal from before the restart still runs; what is unfinished is its own
    with lock or nullcontext():
        if lock:
            _remove_temporary(disk, directory, said)
        _settle_sealed(disk, directory, first, said)
        if lock:
            names = disk.names(directory)
            for base in set(bases(names, INDEX)) - set(bases(names, SEALED)):
                disk.unlink(file_of(directory, base, INDEX))


def _remove_temporary(disk: Disk, directory: Path, said: list[str]) -> None:
    for name in sorted(disk.names(directory)):
        if name.endswith(TEMPORARY):
            disk.unlink(directory / name)
            said.append(f"{name}: removed, something unfinished")


def _settle_sealed(disk: Disk, directory: Path, first: int, said: list[str]) -> None:
    """Each offset in one file: sealed if that is whole, else in the tail it was made from."""
    names = disk.names(directory)
    tails = set(bases(names, TAIL))
    for base in bases(names, SEALED):
        path = file_of(directory, base, SEALED)
        header = read_header(disk, file_of(directory, base, INDEX))
        size = _size(disk, path)
        whole = header.file_bytes == size if header else False
        if not whole and base in tails:
            disk.unlink(path)
            said.append(f"{path.name}: removed, an unfinished seal; its tail is still there")
        elif not size or (not whole and sealed_end(disk, directory, base) is None):
            disk.rename(path, path.with_name(path.name + DAMAGED))
            said.append(f"{path.name}: not readable, set aside as {path.name}{DAMAGED}; its messages are lost")
        elif header and header.end <= first:
            disk.unlink(path)
            said.append(f"{path.name}: removed, retention had given it up")
    _remove_tails(disk, directory, tails, first, said)


def _remove_tails(disk: Disk, directory: Path, tails: set[int], first: int, said: list[str]) -> None:
    """Those that were sealed, and closed ones from before the first offset."""
    segments = [segment for segment in segments_in(disk, directory, {}) if not segment.sealed]
    counted = {segment.base for segment in segments}
    given_up = {segment.base for segment in segments if segment.end is not None and segment.end <= first}
    for base in sorted(tails - counted | given_up):
        disk.unlink(file_of(directory, base, TAIL))
        said.append(f"{file_of(directory, base, TAIL).name}: removed, it was sealed already")


def _size(disk: Disk, path: Path) -> int:
    handle = disk.open(path)
    try:
        return disk.size(handle)
    finally:
        disk.close(handle)


def _recover_tail(disk: Disk, directory: Path, base: int, mark: Mark, said: list[str]) -> tuple[OpenTail | None, int]:
    """The tail to go on with, if any, and the offset after what it holds."""
    path = file_of(directory, base, TAIL)
    handle = disk.open(path, write=True)
    kept = False
    try:
        size = disk.size(handle)
        index = TailIndex(base)
        bad = index.check(disk, handle, size)
        if not index.length and (tail := _repaired_head(disk, handle, base)):
            said.append(f"{path.name}: its head was damaged and is written again")
            index = TailIndex(base)
            bad = index.check(disk, handle, size)
            index.tail = tail
        cut = mark.cut and mark.tail == index.tail
        if cut and index.length > mark.tail_bytes:
            index = TailIndex(base)
            bad = index.check(disk, handle, mark.tail_bytes) or Bad("that failed to be written")
        if index.end < mark.next:
            _set_aside(disk, path, handle, index, size, bad, mark.next, said)
            return None, mark.next
        if not index.length:
            said.append(f"{path.name}: {'empty' if not size else 'no head'}, a new tail is begun")
            return None, index.end
        if bad:
            dropped = f"dropped {size - index.length} bytes from byte {index.length} on (a message {bad.reason})"
            said.append(f"{path.name}: {dropped}; offsets before {index.end} are kept")
        _make_durable(disk, handle, index, size, mark)
        kept = not cut
        return OpenTail(
            handle, base, index.tail, index.length, first_ts=index.first_ts, appends=len(index.bases)
        ) if kept else None, index.end
    finally:
        if not kept:
            disk.close(handle)


def _make_durable(disk: Disk, handle: int, index: TailIndex, size: int, mark: Mark) -> None:
    """What lies past the mark is written again: a sync that failed may have left it in memory only, and clean."""
    start = index.position(index.at(mark.next)) if index.bases else 0
    write_all(disk, handle, read_all(disk, handle, index.length - start, start), start)
    if index.length < size:
        disk.truncate(handle, index.length)
    disk.sync_data(handle)


def _repaired_head(disk: Disk, handle: int, base: int) -> int:
    """Writes a damaged head again if a sound message follows it; returns the tail's id, or 0."""
    length = len(tail_format.head(base, 0))
    frame = tail_format.frame_at(disk.pread(handle, tail_format.WINDOW, length))
    if isinstance(frame, Bad) or frame.base != base:
        return 0
    if isinstance(tail_format.checked_frame_at(read_all(disk, handle, frame.length, length)), Bad):
        return 0
    write_all(disk, handle, tail_format.head(base, frame.tail), 0)
    return frame.tail


def _set_aside(
    disk: Disk, path: Path, handle: int, index: TailIndex, size: int, bad: Bad | None, next_: int, said: list[str]
) -> None:
    """The tail is damaged below the mark: its sound prefix stays, the rest is kept for people to look at."""
    reason = bad.reason if bad else "missing"
    aside = path.with_name(path.name + DAMAGED)
    kept = f"; what was there is in {aside.name}" if size > index.length else ""
    if not index.bases:
        if size:
            disk.rename(path, aside)
        else:
            disk.unlink(path)
    elif size > index.length:
        copy = disk.create(aside)
        try:
            write_all(disk, copy, read_all(disk, handle, size - index.length, index.length), 0)
            disk.sync_data(copy)
        finally:
            disk.close(copy)
        disk.truncate(handle, index.length)
        disk.sync_data(handle)
    said.append(
        f"{path.name}: damaged at byte {index.length} (a message {reason}): offsets {index.end} to {next_} are lost, "
        f"appending goes on at {next_}{kept}"
    )
