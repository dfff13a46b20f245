"""One process at a time: a file that is locked while its holder lives, and names it."""

import fcntl
import os
from pathlib import Path
from types import TracebackType

from smbroker.model.errors import LogError


class Lock:
    def __init__(self, path: Path) -> None:
        """Takes the lock or raises LogError `locked`, naming the process that has it."""
        self._handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(self._handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.pread(self._handle, 32, 0).decode("ascii", "replace").strip()
            os.close(self._handle)
            raise LogError("locked", f"{path.parent} is in use by process {holder or 'unknown'}") from None
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
