"""Writes past the page cache: the same bytes as through it, whatever they begin and end in the middle of."""

import errno
import os
import random
from pathlib import Path

import pytest
from logkit import QuickDisk, mixed_turn, rows_of, texts_of, turn

from smbroker.log import log as logs
from smbroker.log.disk import Disk, write_all
from smbroker.log.layout import Piece
from smbroker.log.log import Log
from smbroker.log.past_cache import BLOCK, BUFFER, PastCache
from smbroker.log.reader import LogReader
from smbroker.log.seal import seal_segment


class Unable(QuickDisk):
    """A file system that has only the way through the cache."""

    def pwrite_past_cache(self, handle: int, blocks: memoryview, position: int) -> int:  # noqa: ARG002
        raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))


class Short(QuickDisk):
    """Takes one block at a time, and once a part of one."""

    def __init__(self) -> None:
        self.calls = 0

    def pwrite_past_cache(self, handle: int, blocks: memoryview, position: int) -> int:
        self.calls += 1
        if self.calls == 5:
            return Disk.pwrite(self, handle, blocks[: BLOCK // 2 + 1], position)
        return super().pwrite_past_cache(handle, blocks[:BLOCK], position)


@pytest.mark.parametrize("disk", [QuickDisk(), Unable(), Short()], ids=["able", "unable", "short"])
def test_the_file_has_what_was_written_and_zeros_to_the_end_of_the_block(tmp_path: Path, disk: Disk) -> None:
    dice = random.Random(1)
    handle = disk.create(tmp_path / "file")
    past = PastCache(disk, handle)
    wanted = b""
    sizes = [1, BLOCK - 1, BLOCK, 3, 2 * BLOCK, BUFFER - 5, BUFFER, BUFFER + 1, 3 * BUFFER, 0, 7]
    for size in sizes + [dice.randrange(3 * BLOCK) for _ in range(100)]:
        data = dice.randbytes(size)
        if dice.random() < 0.2:
            assert write_all(disk, handle, data, len(wanted)) == len(wanted) + size
        else:
            cut = dice.randrange(size + 1)
            pieces: list[Piece] = [data[:cut], bytearray(), memoryview(data[cut:]).cast("b")]
            assert past.write(pieces, len(wanted)) == len(wanted) + size
        wanted += data
        found = (tmp_path / "file").read_bytes()
        assert found[: len(wanted)] == wanted
        assert not any(found[len(wanted) :])
        assert len(found) < len(wanted) + BLOCK
    disk.close(handle)


def test_a_disk_that_takes_nothing_is_an_error(tmp_path: Path) -> None:
    class Nothing(QuickDisk):
        def pwrite_past_cache(self, handle: int, blocks: memoryview, position: int) -> int:  # noqa: ARG002
            return 0

    disk = Nothing()
    handle = disk.create(tmp_path / "file")
    with pytest.raises(OSError, match="took none"):
        PastCache(disk, handle).write([b"x"], 0)
    disk.close(handle)


def test_large_appends_between_small_ones_and_their_seal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs, "LARGE", 10_000)
    log = Log.open(tmp_path)
    for number in range(12):
        log.append([mixed_turn(9_000 if number % 3 else 5)])
    assert log._tail
    assert log._tail.past_cache, "they went past the cache"
    before = rows_of(LogReader(tmp_path).read(0))
    assert len(before) == log.next_offset == 8 * 9_000 + 4 * 5
    log.rotate()
    for base in log.pending_seals:
        seal_segment(tmp_path, base)
    assert rows_of(log.read(0)) == before
    log.close()
    again = Log.open(tmp_path)
    assert again.recovered == []
    again.close()


def test_a_bug_while_an_append_is_written_leaves_nothing_of_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = Log.open(tmp_path)
    log.append([turn(["kept"])])
    with monkeypatch.context() as patch:
        patch.setattr(logs, "LARGE", 0)

        def bug(past: PastCache, pieces: list[bytes], position: int) -> int:
            write_all(past._disk, past._handle, b"".join(pieces), position)
            raise LookupError

        patch.setattr(PastCache, "write", bug)
        with pytest.raises(LookupError):
            log.append([turn(["lost"] * 1_000)])
    log.append([turn(["next"])])
    assert texts_of(log) == ["kept", "next"]
    log._lock.release()  # as after kill -9
    again = Log.open(tmp_path)
    assert again.recovered == []
    assert texts_of(again) == ["kept", "next"]
    again.close()
