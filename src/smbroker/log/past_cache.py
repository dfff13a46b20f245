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

from smbroker.log.disk import NOTHING_TAKEN, Disk, read_all
from smbroker.log.layout import Piece

BLOCK = 4_096
BUFFER = 2 << 20  # bytes given to the disk at once


class PastCache:
    """Of one file."""

    def __init__(self, disk: Disk, handle: int) -> None:
        self._disk, self._handle = disk, handle
        self._memory = memoryview(mmap(-1, BUFFER))  # aligned, as all maps are
        self._end = 0  # after the last write; the beginning of its last block is in the memory
        self._possible = True

    def write(self, pieces: Iterable[Piece], position: int) -> int:
        """Returns the position after them, from which on zeros may follow."""
        memory, filled = self._memory, position % BLOCK
        start = position - filled
        if position != self._end:
            memory[:filled] = read_all(self._disk, self._handle, filled, start)
        for piece in pieces:
            rest = memoryview(piece).cast("B")
            while rest:
                part = rest[: BUFFER - filled]
                memory[filled : filled + len(part)] = part
                filled += len(part)
                rest = rest[len(part) :]
                if filled == BUFFER:
                    start = self._give(memory, start)
                    filled = 0
        self._end = start + filled
        last = filled - filled % BLOCK
        if filled > last:
            padded = last + BLOCK
            memory[filled:padded] = bytes(padded - filled)
            self._give(memory[:padded], start)
            memory[: filled - last] = memory[last:filled]
        elif filled:
            self._give(memory[:filled], start)
        return self._end

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
