"""Writing past the page cache, for what is long and not read again at once: large appends, sealed segments.

Each byte would be copied into pages of the cache, which the system has to find first, only to be given to the disk a
moment later; and what piles up there holds up every other sync of the file system, also those of small appends.

A disk takes whole blocks, from memory that is aligned as they are. So the block in which a write begins is written
again from its start, with the content that it has, and zeros follow up to the end of the last one. Where the file
system cannot do this, the same bytes go through the cache.
"""

import errno
from collections.abc import Iterable
from mmap import mmap
from typing import TypeAlias

from smbroker.log.disk import NOTHING_TAKEN, Disk, read_all
from smbroker.log.format import add_crc, numbered
from smbroker.log.layout import Message, Piece

Memory: TypeAlias = memoryview

BLOCK = 4_096
BUFFER = 8 << 20  # bytes given to the disk at once: a message of many short rows


def new_memory() -> Memory:
    """For one file at a time. It is aligned, as all maps are."""
    return memoryview(mmap(-1, BUFFER))


class PastCache:
    """Of one file."""

    def __init__(self, disk: Disk, handle: int, memory: Memory | None = None) -> None:
        self._disk, self._handle = disk, handle
        self._memory = memory or new_memory()
        self._end = 0  # after the last write; the beginning of its last block is in the memory
        self._possible = True

    def write(self, pieces: Iterable[Piece | Message], position: int) -> int:
        """Returns the position after them, from which on zeros may follow.

        What a message has to say of all its bytes is found out here, where they are together."""
        memory, filled = self._memory, position % BLOCK
        start = position - filled
        if position != self._end:
            memory[:filled] = read_all(self._disk, self._handle, filled, start)
        self._end = -1  # until all is written
        for piece in pieces:
            if isinstance(piece, Message) and piece.frame.length <= BUFFER - BLOCK:
                if piece.frame.length > BUFFER - filled:
                    start, filled = self._give_blocks(start, filled)
                check, begin = numbered(piece.header, piece.frame), filled
                for part in (piece.header, *piece.body):
                    memory[filled : filled + len(part)] = memoryview(part).cast("B")
                    filled += len(part)
                add_crc(memory[begin:filled], check)
                continue
            for part in piece.stamped() if isinstance(piece, Message) else (piece,):
                rest = memoryview(part).cast("B")
                while rest:
                    if filled == BUFFER:
                        start, filled = self._give_blocks(start, filled)
                    taken = rest[: BUFFER - filled]
                    memory[filled : filled + len(taken)] = taken
                    filled += len(taken)
                    rest = rest[len(taken) :]
        start, filled = self._give_blocks(start, filled, end=True)
        self._end = start + filled
        return self._end

    def _give_blocks(self, start: int, filled: int, end: bool = False) -> tuple[int, int]:
        """Those that are whole and, at the end, the last one with zeros in its rest.

        What is not whole is then at the beginning of the memory: its position, and how much."""
        memory, whole = self._memory, filled - filled % BLOCK
        given = whole
        if end and filled > whole:
            given += BLOCK
            memory[filled:given] = bytes(given - filled)
        self._give(memory[:given], start)
        if whole:
            memory[: filled - whole] = memory[whole:filled]
        return start + whole, filled - whole

    def _give(self, blocks: memoryview, position: int) -> int:
        while blocks:
            written = self._pwrite(blocks, position)
            if written <= 0:
                raise OSError(errno.EIO, NOTHING_TAKEN)
            position += written
            blocks = blocks[written:]
        return position

    def _pwrite(self, blocks: memoryview, position: int) -> int:
        if self._possible:
            try:
                return self._disk.pwrite_past_cache(self._handle, blocks, position)
            except OSError as error:
                if error.errno not in (errno.EINVAL, errno.EOPNOTSUPP):
                    raise
                self._possible = False
        return self._disk.pwrite(self._handle, blocks, position)
