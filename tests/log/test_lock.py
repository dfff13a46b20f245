import fcntl
import os
from pathlib import Path

import pytest

from smbroker.log import lock
from smbroker.log.lock import LOCK, Lock, in_use
from smbroker.model.errors import LogError


def test_the_holder_is_named_to_who_wants_it_and_to_who_asks(tmp_path: Path) -> None:
    path = tmp_path / LOCK
    assert in_use(path) is None
    assert not path.exists()
    with Lock(path):
        assert in_use(path) == f"{tmp_path} is in use by process {os.getpid()}"
        with pytest.raises(LogError, match=f"in use by process {os.getpid()}"):
            Lock(path)
    assert in_use(path) is None


def test_who_only_asks_keeps_nobody_from_taking_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / LOCK
    Lock(path).release()
    asking = os.open(path, os.O_RDONLY)
    fcntl.flock(asking, fcntl.LOCK_SH)  # as `in_use` has it, for an instant
    monkeypatch.setattr(lock.time, "sleep", lambda _: os.close(asking))
    Lock(path).release()
