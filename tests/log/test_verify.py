import random
from pathlib import Path

import pytest
from logkit import LONG, QuickDisk, mixed_turn, rows_of, turn

from smbroker.log.log import Log
from smbroker.log.reader import LogReader
from smbroker.log.seal import seal_segment
from smbroker.log.verify import verify


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """A sealed segment, a closed tail and the tail."""
    log = Log.open(tmp_path, disk=QuickDisk())
    for _ in range(3):
        log.append([mixed_turn(20)])
        log.append([turn(["x"] * 5)], [("note", b"kept")])
        log.rotate()
    log.append([turn(["a"])])
    seal_segment(tmp_path, 0, rows=1)
    log.close()
    return tmp_path


def test_a_sound_log_has_no_damage(directory: Path) -> None:
    seen: list[tuple[str, int, int]] = []
    assert list(verify(directory, lambda *step: seen.append(step))) == []
    assert {name for name, _, _ in seen} == {path.name for path in directory.glob("0*")}
    assert seen[-1][1] == seen[-1][2]


def test_any_flipped_byte_in_any_file_is_found(directory: Path) -> None:
    chance = random.Random(1)
    for path in [*directory.glob("0*"), directory / "mark"]:
        raw = path.read_bytes()
        wanted = range(len(raw)) if LONG else chance.sample(range(len(raw)), min(len(raw), 150))
        for position in wanted:
            flipped = bytearray(raw)
            flipped[position] ^= 1 << chance.randrange(8)
            path.write_bytes(flipped)
            damages = list(verify(directory))
            assert path.name in {damage.file for damage in damages}, (path.name, position)
        path.write_bytes(raw)
    assert list(verify(directory)) == []


def test_a_flipped_byte_in_notes_after_the_last_message_of_a_closed_tail_is_found(tmp_path: Path) -> None:
    log = Log.open(tmp_path, disk=QuickDisk())
    log.append([turn(["a"])])
    log.append([], [("note", b"kept")])
    log.rotate()
    log.append([turn(["b"])])
    log.close()
    closed = tmp_path / f"{0:020}.arrow"
    raw = closed.read_bytes()
    assert list(verify(tmp_path)) == []
    for position in range(raw.rindex(b"smb.notes") - 100, len(raw), 25):
        closed.write_bytes(raw[:position] + bytes([raw[position] ^ 1]) + raw[position + 1 :])
        assert [damage.file for damage in verify(tmp_path)] == [closed.name], position


def test_a_file_cut_short_or_missing_is_found(directory: Path) -> None:
    for path in [*directory.glob("0*"), directory / "mark"]:
        raw = path.read_bytes()
        for length in (0, 1, len(raw) // 2, len(raw) - 1):
            path.write_bytes(raw[:length])
            assert list(verify(directory)), (path.name, length)
        path.unlink()
        assert list(verify(directory)), path.name
        path.write_bytes(raw)


def test_a_log_in_use_is_sound_too(directory: Path) -> None:
    log = Log.open(directory, disk=QuickDisk())
    found = verify(directory)
    for step in range(20):
        log.append([mixed_turn(10)])
        if step % 5 == 0:
            log.rotate()
        if log.pending_seals:
            seal_segment(directory, log.pending_seals[0])
        assert list(verify(directory)) == []
    assert list(found) == []
    log.close()


def test_bytes_past_the_mark_are_no_damage_and_a_gap_is(directory: Path) -> None:
    tail = max(directory.glob("*.arrow"))
    with tail.open("ab") as file:
        file.write(b"half a message")
    assert list(verify(directory)) == []
    tail.write_bytes(tail.read_bytes()[:-20])
    Log.open(directory, disk=QuickDisk()).close()
    (damage,) = verify(directory)
    assert "missing" in damage.text


def test_a_damaged_index_costs_speed_not_messages(directory: Path) -> None:
    reader = LogReader(directory)
    expected = rows_of(reader.read(0, topics={b"t/1"}))
    path = directory / f"{0:020}.index"
    path.write_bytes(path.read_bytes()[:-1])
    assert rows_of(LogReader(directory).read(0, topics={b"t/1"})) == expected
    path.unlink()
    assert rows_of(LogReader(directory).read(0, topics={b"t/1"})) == expected
