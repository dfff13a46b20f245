"""Damage to the tail and leftovers: recovery keeps a whole prefix, says what it dropped, goes on appending."""

import errno
import shutil
from pathlib import Path

import pyarrow as pa
import pytest
from logkit import LONG, QuickDisk, offsets_of, texts_of, turn

from smbroker.log import mark as marks
from smbroker.log.lock import Lock
from smbroker.log.log import Log
from smbroker.log.reader import LogReader
from smbroker.log.recover import SEAL_LOCK
from smbroker.log.seal import seal_segment
from smbroker.log.settings import LogSettings
from smbroker.log.verify import verify

TAIL = "00000000000000000000.arrow"


@pytest.fixture(autouse=True, params=["through the page cache", "past it"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of appends, for each test."""
    if request.param == "past it":
        monkeypatch.setattr("smbroker.log.log.LARGE", 0)


def written(directory: Path, batches: int = 4) -> list[int]:
    """A log of batches of three messages each; the tail's length after the head and after each of them."""
    log = Log.open(directory, disk=QuickDisk())
    lengths = [length_of(directory)]
    for batch in range(batches):
        log.append([turn(f"{batch}.{row}" for row in range(3))])
        lengths.append(length_of(directory))
    log.close()
    assert (directory / TAIL).stat().st_size == lengths[-1], "room that was not used goes when the log is closed"
    return lengths


def length_of(directory: Path) -> int:
    """Of the messages in the tail; room for more may follow them."""
    mark = marks.read(QuickDisk(), directory)
    assert mark
    return mark.tail_bytes


def all_texts(batches: int) -> list[str]:
    return [f"{batch}.{row}" for batch in range(batches) for row in range(3)]


def cuts(lengths: list[int]) -> list[int]:
    """Every position between the first and the last of these lengths; in the short run those near one and some."""
    positions = range(lengths[0], lengths[-1] + 1)
    return [at for at in positions if LONG or at % 17 == 0 or any(abs(at - length) < 10 for length in lengths)]


def copy(source: Path, target: Path) -> Path:
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(source, target)
    return target


def test_a_sound_log_is_opened_without_a_word(tmp_path: Path) -> None:
    written(tmp_path)
    log = Log.open(tmp_path, disk=QuickDisk())
    assert log.recovered == []
    assert (log.first_offset, log.next_offset) == (0, 12)
    assert texts_of(log) == all_texts(4)
    log.close()


def test_the_tail_cut_at_every_byte_of_its_last_two_batches(tmp_path: Path) -> None:
    lengths = written(tmp_path / "whole")
    raw = (tmp_path / "whole" / TAIL).read_bytes()
    for length in cuts(lengths[2:5]):
        directory = copy(tmp_path / "whole", tmp_path / "cut")
        (directory / TAIL).write_bytes(raw[:length])
        log = Log.open(directory, disk=QuickDisk())
        kept = 4 if length == lengths[4] else 3 if length >= lengths[3] else 2
        assert texts_of(log) == all_texts(kept), length
        assert bool(log.recovered) == (kept < 4)
        assert log.append([turn(["new"])]) == 12, "below the mark: no offset is used again"
        assert texts_of(log) == [*all_texts(kept), "new"]
        log.close()


def test_the_tail_cut_at_every_byte_without_a_mark(tmp_path: Path) -> None:
    lengths = written(tmp_path / "whole", 3)
    raw = (tmp_path / "whole" / TAIL).read_bytes()
    for length in cuts(lengths[1:4])[:-1]:
        directory = copy(tmp_path / "whole", tmp_path / "cut")
        (directory / TAIL).write_bytes(raw[:length])
        (directory / "mark").unlink()
        log = Log.open(directory, disk=QuickDisk())
        kept = 2 if length >= lengths[2] else 1
        assert texts_of(log) == all_texts(kept), length
        assert log.recovered
        assert log.append([turn(["new"])]) == 3 * kept
        assert texts_of(log) == [*all_texts(kept), "new"]
        log.close()


def test_every_bit_of_a_batch_flipped(tmp_path: Path) -> None:
    lengths = written(tmp_path / "whole", 3)
    raw = (tmp_path / "whole" / TAIL).read_bytes()
    directory = copy(tmp_path / "whole", tmp_path / "flipped")
    for position in range(lengths[1], lengths[2], 1 if LONG else 3):
        for bit in range(8) if LONG else (position % 8,):  # each single bit of a message: test_format
            flipped = bytearray(raw)
            flipped[position] ^= 1 << bit
            for left in directory.iterdir():
                left.unlink()
            (directory / TAIL).write_bytes(flipped)
            shutil.copy(tmp_path / "whole" / "mark", directory)
            log = Log.open(directory, disk=QuickDisk())
            assert texts_of(log) == all_texts(1), (position, bit)
            assert "offsets 3 to 9 are lost" in log.recovered[0]
            assert log.next_offset == 9
            log.close()
            if position % 16:
                continue
            log = Log.open(directory, disk=QuickDisk())
            assert log.recovered == []
            assert log.append([turn(["new"])]) == 9
            assert texts_of(log) == [*all_texts(1), "new"]
            log.close()


@pytest.mark.parametrize(
    "garbage", [b"x", b"\xff\xff\xff\xff\x10\x00\x00\x00", bytes(5000) + b"x", b"\xff" * 100, b"smb-check:" * 50]
)
def test_garbage_after_the_tail_is_dropped(tmp_path: Path, garbage: bytes) -> None:
    lengths = written(tmp_path)
    with (tmp_path / TAIL).open("ab") as file:
        file.write(garbage)
    log = Log.open(tmp_path, disk=QuickDisk())
    assert len(log.recovered) == 1
    assert f"dropped {len(garbage)} bytes from byte {lengths[4]} on" in log.recovered[0]
    assert log.append([turn(["new"])]) == 12
    assert texts_of(log) == [*all_texts(4), "new"]
    log.close()


def test_room_for_more_that_a_kill_left_is_no_damage(tmp_path: Path) -> None:
    log = Log.open(tmp_path / "live", disk=QuickDisk())
    for text in ("a", "b", "c"):
        log.append([turn([text])])
    room = (tmp_path / "live" / TAIL).stat().st_size - length_of(tmp_path / "live")
    assert room > 100_000
    assert pa.ipc.open_stream((tmp_path / "live" / TAIL).read_bytes()).read_all().num_rows == 3
    copy(tmp_path / "live", tmp_path / "killed")
    assert list(verify(tmp_path / "killed")) == []
    again = Log.open(tmp_path / "killed", disk=QuickDisk())
    assert again.recovered == []
    assert again.append([turn(["d"])]) == 3
    again.rotate()  # a closed tail has no room left either
    again.append([turn(["e"])])
    again.close()
    assert texts_of(LogReader(tmp_path / "killed")) == ["a", "b", "c", "d", "e"]
    log.close()


@pytest.mark.parametrize("at", [10, 5_000, -1])
def test_what_strays_among_the_room_is_found(tmp_path: Path, at: int) -> None:
    log = Log.open(tmp_path / "live", disk=QuickDisk())
    log.append([turn(["a", "b"])])
    length = length_of(tmp_path / "live")
    raw = bytearray((copy(tmp_path / "live", tmp_path / "killed") / TAIL).read_bytes())
    log.close()
    raw[length + at if at > 0 else at] = 1
    (tmp_path / "killed" / TAIL).write_bytes(raw)
    (damage,) = verify(tmp_path / "killed")
    assert damage.file == TAIL
    again = Log.open(tmp_path / "killed", disk=QuickDisk())
    (said,) = again.recovered
    assert f"from byte {length} on" in said
    assert again.append([turn(["c"])]) == 2
    assert texts_of(again) == ["a", "b", "c"]
    again.close()


def test_a_disk_without_room_for_more_still_takes_the_message(tmp_path: Path) -> None:
    class Crowded(QuickDisk):
        def pwrite(self, handle: int, data: bytes | bytearray | memoryview, position: int) -> int:
            if len(data) > 100_000:
                raise OSError(errno.ENOSPC, "no space")
            return super().pwrite(handle, data, position)

    log = Log.open(tmp_path, disk=Crowded())
    for text in ("a", "b"):
        log.append([turn([text])])
    assert texts_of(log) == ["a", "b"]
    log.close()


def test_a_batch_past_the_mark_is_kept_whole(tmp_path: Path) -> None:
    """As after a power cut: the mark is older than the tail, what was acknowledged is in the tail."""
    written(tmp_path / "a", 2)
    written(tmp_path / "b", 4)
    shutil.copy(tmp_path / "a" / "mark", tmp_path / "b")
    log = Log.open(tmp_path / "b", disk=QuickDisk())
    assert log.recovered == []
    assert texts_of(log) == all_texts(4)
    assert log.append([turn(["new"])]) == 12
    log.close()


def test_an_append_of_many_batches_is_kept_as_one_or_not_at_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("smbroker.log.arrays.MAX_ROWS", 2)
    log = Log.open(tmp_path, disk=QuickDisk())
    log.append([turn(["a"])])
    log.append([turn(f"{row}" for row in range(7))], [("n", b"1")])
    log.close()
    raw = (tmp_path / TAIL).read_bytes()
    (tmp_path / "mark").unlink()
    for cut in (1, 700, 2000, 3000, 4000):
        (tmp_path / TAIL).write_bytes(raw[:-cut])
        (tmp_path / "mark").unlink(missing_ok=True)
        log = Log.open(tmp_path, disk=QuickDisk())
        assert texts_of(log) == ["a"], cut
        assert list(log.notes()) == []
        log.close()


@pytest.mark.parametrize("with_mark", [True, False])
def test_an_empty_tail_file(tmp_path: Path, with_mark: bool) -> None:
    written(tmp_path)
    (tmp_path / TAIL).write_bytes(b"")
    if not with_mark:
        (tmp_path / "mark").unlink()
    log = Log.open(tmp_path, disk=QuickDisk())
    assert log.recovered
    expected = 12 if with_mark else 0
    assert log.append([turn(["new"])]) == expected
    assert texts_of(log) == ["new"]
    log.close()


def test_a_damaged_head_is_written_again(tmp_path: Path) -> None:
    lengths = written(tmp_path)
    raw = bytearray((tmp_path / TAIL).read_bytes())
    raw[lengths[0] // 2] ^= 1
    (tmp_path / TAIL).write_bytes(raw)
    log = Log.open(tmp_path, disk=QuickDisk())
    assert "head was damaged" in log.recovered[0]
    assert texts_of(log) == all_texts(4)
    log.close()
    assert pa.ipc.open_stream((tmp_path / TAIL).read_bytes()).read_all().num_rows == 12


def test_a_missing_tail_leaves_a_gap(tmp_path: Path) -> None:
    written(tmp_path)
    (tmp_path / TAIL).unlink()
    log = Log.open(tmp_path, disk=QuickDisk())
    assert "offsets 0 to 12 are lost" in log.recovered[0]
    assert log.append([turn(["new"])]) == 12
    assert texts_of(log) == ["new"]
    log.close()


def test_a_damaged_mark_is_found_again(tmp_path: Path) -> None:
    written(tmp_path)
    (tmp_path / "mark").write_bytes(b"?" * 128)
    log = Log.open(tmp_path, disk=QuickDisk())
    assert "the mark was missing or damaged" in log.recovered[0]
    assert (log.next_offset, LogReader(tmp_path).next_offset) == (12, 12)
    log.close()


def sealed(directory: Path) -> Path:
    written(directory)
    log = Log.open(directory, disk=QuickDisk())
    log.rotate()
    log.append([turn(["after"])])
    log.close()
    return directory


def test_leftovers_of_an_interrupted_seal_are_removed(tmp_path: Path) -> None:
    sealed(tmp_path)
    (tmp_path / "00000000000000000000.parquet.tmp").write_bytes(b"half")
    (tmp_path / "00000000000000000000.index").write_bytes(b"half")
    log = Log.open(tmp_path, disk=QuickDisk())
    assert any("unfinished" in text for text in log.recovered)
    assert texts_of(log) == [*all_texts(4), "after"]
    assert not list(tmp_path.glob("*.tmp"))
    assert not list(tmp_path.glob("*.index"))
    assert log.pending_seals == [0]
    log.close()


def test_tail_and_sealed_file_of_the_same_segment(tmp_path: Path) -> None:
    sealed(tmp_path)
    raw = (tmp_path / TAIL).read_bytes()
    seal_segment(tmp_path, 0)
    (tmp_path / TAIL).write_bytes(raw)
    assert texts_of(LogReader(tmp_path)) == [*all_texts(4), "after"]
    log = Log.open(tmp_path, disk=QuickDisk())
    assert any("sealed already" in text for text in log.recovered)
    assert not (tmp_path / TAIL).exists()
    assert texts_of(log) == [*all_texts(4), "after"]
    log.close()


@pytest.mark.parametrize("length", [0, 10, -1])
def test_a_sealed_file_that_is_not_whole_yields_to_its_tail(tmp_path: Path, length: int) -> None:
    sealed(tmp_path)
    raw = (tmp_path / TAIL).read_bytes()
    seal_segment(tmp_path, 0)
    (tmp_path / TAIL).write_bytes(raw)
    path = tmp_path / "00000000000000000000.parquet"
    path.write_bytes(path.read_bytes()[:length])
    log = Log.open(tmp_path, disk=QuickDisk())
    assert texts_of(log) == [*all_texts(4), "after"]
    assert not path.exists()
    log.close()


def test_a_sealed_file_of_zero_length_without_its_tail_is_set_aside(tmp_path: Path) -> None:
    seal_segment(sealed(tmp_path), 0)
    path = tmp_path / "00000000000000000000.parquet"
    path.write_bytes(b"")
    log = Log.open(tmp_path, disk=QuickDisk())
    assert any("set aside" in text for text in log.recovered)
    assert texts_of(log) == ["after"]
    assert offsets_of(log) == [12]
    log.close()
    log = Log.open(tmp_path, disk=QuickDisk())
    assert log.recovered == []
    log.close()


def test_a_seal_that_outlived_the_broker_keeps_its_index(tmp_path: Path) -> None:
    """It is between its two renames while the log is opened."""
    log = Log.open(tmp_path, disk=QuickDisk())
    log.append([turn(["a"])])
    log.rotate()
    log.append([turn(["b"])])
    log.close()
    index, tail = tmp_path / f"{0:020}.index", tmp_path / TAIL
    before = tail.read_bytes()
    seal_segment(tmp_path, 0)
    parquet = (tmp_path / f"{0:020}.parquet").rename(tmp_path / f"{0:020}.parquet.tmp")
    tail.write_bytes(before)
    with Lock(tmp_path / SEAL_LOCK):
        log = Log.open(tmp_path, disk=QuickDisk())
        assert log.recovered == []
        assert index.exists()
        assert parquet.exists()
        log.close()
    log = Log.open(tmp_path, disk=QuickDisk())
    assert not index.exists(), "nobody will finish it"
    assert texts_of(log) == ["a", "b"]
    log.close()


def test_retention_does_without_an_index(tmp_path: Path) -> None:
    log = Log.open(tmp_path, LogSettings(retain_bytes=1), QuickDisk())
    for text in "abc":
        log.append([turn([text])])
        log.rotate()
        seal_segment(tmp_path, log.pending_seals[0])
    (tmp_path / f"{0:020}.index").unlink()
    assert log.retain(0) == [0, 1, 2]
    assert log.first_offset == 3
    log.close()
