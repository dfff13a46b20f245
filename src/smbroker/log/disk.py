"""The few things the log asks of a disk, so that tests can put a failing one in its place.

Positions are always given (pwrite, pread): after a failed write nobody has to guess where the
file stands. `pwrite` may write less than asked, as the system call does; `write_all` insists.
"""

import errno
import os
from fcntl import F_GETFL, F_SETFL, fcntl
from pathlib import Path

NOTHING_TAKEN = "the disk took none of what was to be written"
_DIRECT = getattr(os, "O_DIRECT", 0)  # not every system has it


class Disk:
    def create(self, path: Path) -> int:
        """A new, empty file for writing and reading, in place of any that was there."""
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)

    def open(self, path: Path, write: bool = False) -> int:
        return os.open(path, (os.O_RDWR if write else os.O_RDONLY) | os.O_CLOEXEC)

    def close(self, handle: int) -> None:
        os.close(handle)

    def pwrite(self, handle: int, data: bytes | bytearray | memoryview, position: int) -> int:
        return os.pwrite(handle, data, position)

    def pwrite_past_cache(self, handle: int, blocks: memoryview, position: int) -> int:
        """`pwrite` straight to the disk: whole blocks, from memory aligned as they are. EINVAL or EOPNOTSUPP where it
        cannot be."""
        flags = fcntl(handle, F_GETFL)
        fcntl(handle, F_SETFL, flags | _DIRECT)
        try:
            return os.pwrite(handle, blocks, position)
        finally:
            fcntl(handle, F_SETFL, flags)

    def pread(self, handle: int, length: int, position: int) -> bytes:
        return os.pread(handle, length, position)

    def size(self, handle: int) -> int:
        return os.fstat(handle).st_size

    def free(self, handle: int) -> int:
        """Bytes that the file's disk has left."""
        found = os.fstatvfs(handle)
        return found.f_bavail * found.f_frsize

    def truncate(self, handle: int, length: int) -> None:
        os.ftruncate(handle, length)

    def sync_data(self, handle: int) -> None:
        """The content and, where it changed, the length are on disk."""
        os.fdatasync(handle)

    def sync_directory(self, directory: Path) -> None:
        """The names of the directory are on disk."""
        handle = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)

    def rename(self, old: Path, new: Path) -> None:
        old.rename(new)

    def unlink(self, path: Path) -> None:
        path.unlink(missing_ok=True)

    def names(self, directory: Path) -> list[str]:
        return os.listdir(directory)  # noqa: PTH208  (names are all we need; no Path objects on this way)

    def make_directory(self, directory: Path) -> None:
        directory.mkdir(parents=True, exist_ok=True)


def write_all(disk: Disk, handle: int, data: bytes | bytearray | memoryview, position: int) -> int:
    """Writes all of `data`; returns the position after it."""
    rest = memoryview(data)
    while rest:
        written = disk.pwrite(handle, rest, position)
        if written <= 0:
            raise OSError(errno.EIO, NOTHING_TAKEN)
        position += written
        rest = rest[written:]
    return position


def read_all(disk: Disk, handle: int, length: int, position: int) -> bytes:
    """Exactly `length` bytes, or fewer where the file ends."""
    first = disk.pread(handle, length, position)
    if len(first) == length or not first:
        return first
    parts, got = [first], len(first)
    while got < length and (part := disk.pread(handle, length - got, position + got)):
        parts.append(part)
        got += len(part)
    return b"".join(parts)


def replace(disk: Disk, path: Path, data: bytes) -> None:
    """`path` holds `data`, all of it or what was there before, whatever happens in between."""
    temporary = path.with_name(path.name + ".tmp")
    handle = disk.create(temporary)
    try:
        write_all(disk, handle, data, 0)
        disk.sync_data(handle)
    finally:
        disk.close(handle)
    disk.rename(temporary, path)
    disk.sync_directory(path.parent)
