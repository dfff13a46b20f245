from pathlib import Path

import pyarrow as pa
import pytest
from logkit import QuickDisk, offsets_of, texts_of, turn

from smbroker.log import mark as marks
from smbroker.log.disk import Disk
from smbroker.log.log import Log
from smbroker.log.mark import Mark, MarkFile
from smbroker.log.reader import LogReader
from smbroker.model.errors import LogError


def test_append_gives_the_first_offset_and_moves_the_mark(tmp_path: Path) -> None:
    log = Log.open(tmp_path)
    reader = LogReader(tmp_path)
    assert (reader.first_offset, reader.next_offset) == (0, 0)
    assert log.append([turn(["a", "b"]), turn(["c"])]) == 0
    assert log.append([turn(["d"])]) == 3
    assert (log.next_offset, reader.next_offset) == (4, 4)
    assert texts_of(reader) == ["a", "b", "c", "d"]
    assert log.append([]) == 4
    assert log.sizes.messages == 4
    log.close()


def test_a_second_broker_is_refused_with_the_holders_pid(tmp_path: Path) -> None:
    import os

    log = Log.open(tmp_path)
    with pytest.raises(LogError) as caught:
        Log.open(tmp_path)
    assert caught.value.code == "locked"
    assert str(os.getpid()) in caught.value.text
    log.close()
    Log.open(tmp_path).close()


def test_readers_never_go_past_the_mark(tmp_path: Path) -> None:
    class NoMark(QuickDisk):
        frozen = False

        def pwrite(self, handle: int, data: bytes | bytearray | memoryview, position: int) -> int:
            if self.frozen and len(data) == marks.SLOT:
                return len(data)
            return super().pwrite(handle, data, position)

    disk = NoMark()
    log = Log.open(tmp_path, disk=disk)
    log.append([turn(["seen"])])
    disk.frozen = True  # as between the sync and the publication
    log.append([turn(["not yet"])])
    assert texts_of(LogReader(tmp_path)) == ["seen"]
    log.close()


def test_notes_are_kept_with_and_without_messages(tmp_path: Path) -> None:
    log = Log.open(tmp_path)
    log.append([turn(["a"])], [("ledger", b"\x00\xff")])
    log.append([turn(["b"])])
    log.append([], [("released", b"7")])
    log.append([turn(["c"])], [("x", b"1"), ("x", b"2")])
    log.close()
    log = Log.open(tmp_path)
    notes = [(1, [("ledger", b"\x00\xff")]), (2, [("released", b"7")]), (3, [("x", b"1"), ("x", b"2")])]
    assert list(log.notes()) == notes
    assert list(log.notes(1)) == notes[1:]
    assert list(log.notes(2)) == notes[1:]
    assert list(log.notes(3)) == []
    assert list(log.notes(until=2)) == notes[:2]
    assert list(log.notes(1, 2)) == notes[1:2]
    assert list(log.notes(until=0)) == []
    assert offsets_of(log) == [0, 1, 2]
    log.close()


def test_a_reader_without_a_log_is_told(tmp_path: Path) -> None:
    with pytest.raises(LogError) as caught:
        LogReader(tmp_path / "none")
    assert caught.value.code == "no_log"
    assert offsets_of(LogReader(tmp_path)) == []


def test_a_torn_slot_leaves_the_mark_before_it(tmp_path: Path) -> None:
    file = MarkFile(Disk(), tmp_path, Mark(next=1))
    for next_ in range(2, 9):
        before = marks.read(Disk(), tmp_path)
        file.publish(Mark(next=next_))
        raw = bytearray((tmp_path / "mark").read_bytes())
        slot = marks.SLOT * (file.mark.sequence % 2)
        for position in range(slot, slot + marks.SLOT):
            torn = raw[:]
            torn[position] ^= 0x55
            (tmp_path / "mark").write_bytes(torn)
            assert marks.read(Disk(), tmp_path) == before
        (tmp_path / "mark").write_bytes(raw)
        found = marks.read(Disk(), tmp_path)
        assert found is not None
        assert found.next == next_
    file.close()


def test_what_is_compressed_well_is_read_in_small_parts(tmp_path: Path) -> None:
    log = Log.open(tmp_path, disk=QuickDisk())
    for _ in range(200):
        log.append([turn(["x" * 800] * 600)])
    before, most, rows = pa.total_allocated_bytes(), 0, 0
    for batch in LogReader(tmp_path).read(0):
        most, rows = max(most, pa.total_allocated_bytes() - before), rows + len(batch)
    assert rows == 120_000
    assert (tmp_path / f"{0:020}.arrow").stat().st_size < 8 << 20  # of 96 MB
    assert most < 24 << 20
    log.close()


def test_notes_that_a_reader_would_not_take_are_not_written(tmp_path: Path) -> None:
    log = Log.open(tmp_path)
    log.append([turn(["before"])])
    with pytest.raises(LogError) as refused:
        log.append([turn(["too much"])], [("mqtt", bytes(1 << 20))] * 50)
    assert refused.value.code == "too_large"
    log.append([turn(["after"])], [("mqtt", bytes(1 << 20))] * 20)
    log.close()
    assert texts_of(LogReader(tmp_path)) == ["before", "after"]
