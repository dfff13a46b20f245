"""The sink's ledger: what it keeps, and what it forgets."""

import errno
import os
from pathlib import Path

import pytest
from logkit import QuickDisk, turn

from smbroker.log import ledger
from smbroker.log.ledger import Ledger
from smbroker.log.log import Log
from smbroker.log.state import State
from smbroker.model.errors import LogError


def test_of_queries_of_one_batch_the_last_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ledger, "MAX_WRITES", 2)
    monkeypatch.setattr(ledger, "MAX_QUERIES", 5)
    writes = [f"{user}write-{number:032x}" for number, user in enumerate(("", "ann/", "", "", "ann/"))]
    lasting = ["a stream", "write-temperatures"]
    log, state = Log.open(tmp_path / "log", disk=QuickDisk()), State(tmp_path / "state.db")

    def known(kept: Ledger) -> set[str]:
        kept.load()
        return {query for query in (*lasting, *writes) if kept.last(query) is not None}

    kept = Ledger(state, log)
    kept.load()
    for query in (*lasting, *writes):
        note = kept.note(query, 0)
        log.append([turn(["x"])], [note])
        kept.published(query, 0, log.next_offset)
    assert known(kept) == {*lasting, *writes[-2:]}
    assert state.flush(5)
    assert set(state.load_ledger()[0]) == {*lasting, *writes[-2:]}
    assert known(Ledger(state, log)) == {*lasting, *writes[-2:]}  # from the notes, all of which are there still
    kept.apply(log.next_offset)
    monkeypatch.setattr(ledger, "MAX_WRITES", 1)
    assert known(Ledger(state, log)) == {*lasting, writes[-1]}
    state.close()
    log.close()


def test_damage_in_a_closed_tail_takes_no_batch_along_but_those_after_it(tmp_path: Path) -> None:
    log, state = Log.open(tmp_path / "log", disk=QuickDisk()), State(tmp_path / "state.db")
    before = Ledger(state, log)
    before.load()
    for tail in range(2):
        for query in ("one", "two", "three"):
            log.append([turn(["x" * 100])], [before.note(f"{query} {tail}", 7)])
        log.rotate()
    closed = tmp_path / "log" / f"{0:020}.arrow"
    raw = bytearray(closed.read_bytes())
    raw[raw.index(b"x" * 100, len(raw) // 2)] ^= 1  # of the second one
    closed.write_bytes(raw)
    after = Ledger(state, log)
    assert after.apply(log.next_offset)
    known = [f"{query} {tail}" for tail in range(2) for query in ("one", "two", "three")]
    assert [after.last(query) for query in known] == [7, None, None, 7, 7, 7]
    state.close()
    log.close()


class Reluctant(QuickDisk):
    """Reads, but not always."""

    failing = False

    def pread(self, handle: int, length: int, position: int) -> bytes:
        if self.failing and Path(f"/proc/self/fd/{handle}").readlink().suffix == ".arrow":
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return super().pread(handle, length, position)


def test_a_batch_that_the_disk_does_not_give_at_first_is_not_forgotten(tmp_path: Path) -> None:
    disk = Reluctant()
    log, state = Log.open(tmp_path / "log", disk=disk), State(tmp_path / "state.db")
    before = Ledger(state, log)
    before.load()
    log.append([turn(["x" * 100])], [before.note("query", 7)])
    log.rotate()
    after = Ledger(state, log)
    disk.failing = True
    for attempt in (after.load, lambda: after.apply(log.next_offset)):
        with pytest.raises(LogError, match="arrow cannot be read: Input/output error") as told:
            attempt()
        assert told.value.code == "disk"
    disk.failing = False
    assert after.apply(log.next_offset)
    assert after.last("query") == 7
    state.close()
    log.close()
