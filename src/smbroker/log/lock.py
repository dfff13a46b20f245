"""One process at a time: a file that is locked while its holder lives, and names it."""

import fcntl
import os
import time
from pathlib import Path
from types import TracebackType

from smbroker.model.errors import LogError

LOCK = "lock"  # the log's, in its directory
PAUSES = (0.02, 0.05)  # seconds until it is tried again: who only asks (`in_use`) has it for an instant


class Lock:
    def __init__(self, path: Path) -> None:
        """Takes the lock or raises LogError `locked`, naming the process that has it."""
        self._handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        if not _taken(self._handle):
            said = _in_use(path, self._handle)
            os.close(self._handle)
            raise LogError("locked", said)
        os.ftruncate(self._handle, 0)
        os.pwrite(self._handle, b"%d\n" % os.getpid(), 0)

    def release(self) -> None:
        os.close(self._handle)

    def __enter__(self) -> "Lock":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()


def _taken(handle: int) -> bool:
    for pause in (*PAUSES, 0.0):
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            time.sleep(pause)
        else:
            return True
    return False


def in_use(path: Path) -> str | None:
    """Who holds the lock, in words; None if nobody does. Makes no file."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return _in_use(path, handle)
    finally:
        os.close(handle)
    return None


def _in_use(path: Path, handle: int) -> str:
    holder = os.pread(handle, 32, 0).decode("ascii", "replace").strip()
    return f"{path.parent} is in use by process {holder or 'unknown'}"
