"""Is every byte of the log as it was written? Takes no lock; the log may be in use.

Any flipped byte is found: in sealed segments and their indexes by checksums of whole files, in
tails by the CRC of each message, in the mark by the CRC of each slot. What stands in the last tail
past the mark was never acknowledged and is no damage, if it begins right there.
"""

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple
from zlib import crc32

from smbroker.log import mark as marks
from smbroker.log.disk import Disk, read_all
from smbroker.log.index import HEADER, decode_body, decode_header
from smbroker.log.mark import Mark
from smbroker.log.reader import LogReader
from smbroker.log.segments import INDEX, SEALED, TAIL, Segment, file_of
from smbroker.log.tail import STRAY, TailIndex

_CHUNK = 4 << 20
_ATTEMPTS = 5


class Damage(NamedTuple):
    file: str
    text: str


Progress = Callable[[str, int, int], None]
"""File, bytes checked so far in all files, bytes in all."""


def verify(directory: Path, progress: Progress | None = None) -> Iterator[Damage]:
    """All damage there is, file by file."""
    disk = Disk()
    yield from _mark(disk, directory)
    reader = LogReader(directory, disk)
    done = _Done(progress, sum(path.stat().st_size for path in _files(directory)))
    checked: set[tuple[int, bool]] = set()
    cursor, promised = reader.view().first, 0
    while True:  # segments may be sealed or removed while this goes on
        mark = marks.read(disk, directory)
        view = reader.view()
        cursor = max(cursor, view.first)
        segment = next((part for part in view.segments if _waits(part, checked, cursor)), None)
        if segment is None:
            promised = promised or view.next
            break
        checked.add((segment.base, segment.sealed))
        try:
            damages, end = (_sealed if segment.sealed else _tail)(disk, directory, segment, mark, done)
        except FileNotFoundError:
            continue
        if segment.base > cursor:
            yield Damage(_name(segment), f"the messages before it, from offset {cursor} on, are missing")
        yield from damages
        promised = mark.next if mark else 0
        cursor = max(cursor, end, (segment.end or promised) if damages else 0)
    if cursor < promised:
        yield Damage(marks.NAME, f"the messages from offset {cursor} to {promised} are missing")


def _waits(segment: Segment, checked: set[tuple[int, bool]], cursor: int) -> bool:
    return (segment.base, segment.sealed) not in checked and (segment.end is None or segment.end >= cursor)


def _name(segment: Segment) -> str:
    return file_of(Path(), segment.base, SEALED if segment.sealed else TAIL).name


def _files(directory: Path) -> list[Path]:
    return [path for path in directory.iterdir() if path.suffix in (TAIL, SEALED, INDEX)]


class _Done:
    def __init__(self, progress: Progress | None, total: int) -> None:
        self._progress, self._total, self._done = progress, total, 0

    def add(self, name: str, size: int) -> None:
        self._done += size
        if self._progress:
            self._progress(name, self._done, max(self._total, self._done))


def _mark(disk: Disk, directory: Path) -> Iterator[Damage]:
    for _ in range(10):  # a slot may just be being written
        found = marks.slots(disk, directory)
        if found and all(found):
            handle = disk.open(directory / marks.NAME)
            size = disk.size(handle)
            disk.close(handle)
            if size != 2 * marks.SLOT:
                yield Damage(marks.NAME, f"{size} bytes long instead of {2 * marks.SLOT}")
            return
    if not found and not _files(directory):
        return
    yield Damage(marks.NAME, "missing" if not found else "a slot with a wrong checksum")


def _sealed(disk: Disk, directory: Path, segment: Segment, _mark: Mark | None, done: _Done) -> tuple[list[Damage], int]:
    """What is wrong, and the offset after the segment."""
    path = file_of(directory, segment.base, SEALED)
    index = file_of(directory, segment.base, INDEX)
    end = segment.end or segment.base
    handle = disk.open(path)
    try:
        crc = size = 0
        while chunk := disk.pread(handle, _CHUNK, size):
            crc = crc32(chunk, crc)
            size += len(chunk)
            done.add(path.name, len(chunk))
    finally:
        disk.close(handle)
    try:
        handle = disk.open(index)
    except FileNotFoundError:
        if not path.exists():  # just removed by retention
            return [], end
        return [Damage(index.name, f"missing: {path.name} cannot be checked")], end
    try:
        raw = read_all(disk, handle, disk.size(handle), 0)
    finally:
        disk.close(handle)
    done.add(index.name, len(raw))
    damages = []
    header = decode_header(raw)
    if header is None or header.base != segment.base or decode_body(raw[HEADER:], header) is None:
        damages.append(Damage(index.name, "a wrong checksum"))
    if header and (header.file_bytes, header.file_crc) != (size, crc):
        text = "a wrong checksum" if header.file_bytes == size else "not as long as it was written"
        damages.append(Damage(path.name, text))
    return damages, end


def _tail(disk: Disk, directory: Path, segment: Segment, mark: Mark | None, done: _Done) -> tuple[list[Damage], int]:
    """What is wrong, and the offset up to which it is sound."""
    path = file_of(directory, segment.base, TAIL)
    handle = disk.open(path)
    try:
        for attempt in range(_ATTEMPTS):
            size = disk.size(handle)
            index = TailIndex(segment.base)
            bad = index.check(disk, handle, size)
            if bad is not STRAY:  # else perhaps a message that was just being written
                break
            time.sleep(attempt * 0.02)
    finally:
        disk.close(handle)
    done.add(path.name, size)
    reason = bad.reason if bad else "missing"
    damage = [Damage(path.name, f"at byte {index.length} a message {reason}; sound up to offset {index.end}")]
    if segment.end is not None:  # after its messages there may be notes: nothing else tells of those
        return (damage if bad and index.end <= segment.end else []), index.end
    if mark is None:
        return (damage if bad else []), index.end
    ours = index.tail == mark.tail or not index.length
    if bad is STRAY:
        return damage, index.end
    if index.end < mark.next or (ours and index.length < mark.tail_bytes):
        return damage, index.end
    return [], index.end
