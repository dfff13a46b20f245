"""The mark: up to where the log is durable, for readers in any process.

A file of two slots of 64 bytes, written in turn; the valid one with the higher sequence counts.
A torn write can spoil only the slot being written, so the one before it stays readable, and a
slot that failed to be written is written again rather than the other.

    "SMBM" │ version │ flags │ sequence │ first │ next │ tail │ tail bytes │ zeros │ CRC32
    4      │ 2       │ 2     │ 8        │ 8     │ 8    │ 8    │ 8          │ 12    │ 4     little-endian

It is not synced on each append: what recovery finds in the tail goes further (docs/design/log.md).
"""

from pathlib import Path
from struct import Struct
from typing import NamedTuple
from zlib import crc32

from smbroker.log.disk import Disk, read_all, replace, write_all

NAME = "mark"
_SLOT = Struct("<4sHHQQQQQ12x")
_MAGIC, _VERSION = b"SMBM", 1
_CUT = 1
SLOT = 64  # bytes of a slot: it never straddles a sector


class Mark(NamedTuple):
    first: int = 0  # the first offset that retention has left
    next: int = 0  # everything before it is on disk
    tail: int = 0  # id of the tail in use
    tail_bytes: int = 0  # so much of that tail is on disk
    cut: bool = False  # … and what follows there failed: it must not come back
    sequence: int = 0


def encode(mark: Mark) -> bytes:
    flags = _CUT if mark.cut else 0
    slot = _SLOT.pack(_MAGIC, _VERSION, flags, mark.sequence, mark.first, mark.next, mark.tail, mark.tail_bytes)
    return slot + crc32(slot).to_bytes(4, "little")


def decode(slot: bytes) -> Mark | None:
    if len(slot) != SLOT or crc32(slot[:-4]).to_bytes(4, "little") != slot[-4:]:
        return None
    magic, version, flags, sequence, first, next_, tail, tail_bytes = _SLOT.unpack(slot[:-4])
    if (magic, version) != (_MAGIC, _VERSION):
        return None
    return Mark(first, next_, tail, tail_bytes, bool(flags & _CUT), sequence)


def slots(disk: Disk, directory: Path) -> list[Mark | None]:
    """Both slots, None where one is not valid; empty if there is no such file."""
    try:
        handle = disk.open(directory / NAME)
    except FileNotFoundError:
        return []
    try:
        raw = read_all(disk, handle, 2 * SLOT, 0)
    finally:
        disk.close(handle)
    return [decode(raw[:SLOT]), decode(raw[SLOT:])]


def read(disk: Disk, directory: Path) -> Mark | None:
    """The mark as published last; None if there is none or both slots are damaged."""
    found: list[Mark] = []
    for _ in range(100):  # a reader that is slower than two appends sees both slots change
        both = slots(disk, directory)
        found = [mark for mark in both if mark]
        if found or not both:
            break
    return max(found, key=lambda mark: mark.sequence) if found else None


class MarkFile:
    """The writer's side."""

    def __init__(self, disk: Disk, directory: Path, mark: Mark) -> None:
        """Starts afresh with `mark` in both slots, on disk."""
        even = (mark.sequence + 2) // 2 * 2  # slot 0 holds the even sequences
        self.mark = mark._replace(sequence=even + 1)
        self._disk = disk
        replace(disk, directory / NAME, encode(mark._replace(sequence=even)) + encode(self.mark))
        self._handle = disk.open(directory / NAME, write=True)

    def publish(self, mark: Mark) -> None:
        mark = mark._replace(sequence=self.mark.sequence + 1)
        write_all(self._disk, self._handle, encode(mark), SLOT * (mark.sequence % 2))
        self.mark = mark

    def sync(self) -> None:
        self._disk.sync_data(self._handle)

    def close(self) -> None:
        self._disk.close(self._handle)
