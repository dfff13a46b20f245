"""Writes past the page cache: the same bytes as through it, whatever they begin and end in the middle of."""

import errno
import os
import random
from pathlib import Path

import pytest
from logkit import QuickDisk, mixed_turn, rows_of, texts_of, turn

from smbroker.log import log as logs
from smbroker.log import many, past_cache
from smbroker.log.arrays import batches_of
from smbroker.log.disk import Disk, write_all
from smbroker.log.format import Frame, checked_frame_at
from smbroker.log.layout import Message, Piece
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


def a_message(rows: int) -> Message:
    (batch,) = batches_of([turn(["x" * 40] * rows)], 7)
    return many.laid_out(batch.rows, Frame(7, 3, batch.first_ts, batch.last_ts, rows))


def test_messages_get_their_crc_on_the_way_wherever_the_memory_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes = [len(b"".join(a_message(rows).stamped())) for rows in (30, 300)]
    blocks = -(-(2 * sizes[1]) // BLOCK)
    exactly = blocks * BLOCK - 2 * sizes[1]  # so that two of them end where the memory does
    disk = QuickDisk()
    for buffer in (BLOCK, 2 * BLOCK, sizes[1] // BLOCK * BLOCK + BLOCK, blocks * BLOCK, BUFFER):
        for begin in (0, 1, exactly, BLOCK - 1, BLOCK):
            monkeypatch.setattr(past_cache, "BUFFER", buffer)
            handle = disk.create(tmp_path / "file")
            past = PastCache(disk, handle)
            assert past.write([b"<" * begin], 0) == begin
            pieces: list[Piece | Message] = [a_message(300), a_message(300), b"plain", a_message(30), a_message(300)]
            end = past.write(pieces, begin)
            disk.close(handle)
            found = (tmp_path / "file").read_bytes()
            wanted = [b"<" * begin]
            wanted += [b"".join(one.stamped()) if isinstance(one, Message) else one for one in pieces]
            assert found[:end] == b"".join(wanted)
            assert isinstance(checked_frame_at(found, begin), Frame)


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

        def bug(past: PastCache, pieces: list[Message], position: int) -> int:
            write_all(past._disk, past._handle, b"".join(pieces[0].stamped()), position)
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
