"""kill -9 of a real writer at random moments, while a reader looks on."""

import random
import subprocess
import sys
import time
from pathlib import Path

from logkit import LONG, texts_of

from smbroker.log.log import Log
from smbroker.log.reader import LogReader
from smbroker.log.verify import verify

ROUNDS = 50 if LONG else 6
TARGET = Path(__file__).parent / "kill_target.py"


def test_nothing_acknowledged_is_lost_and_no_offset_changes_its_meaning(tmp_path: Path) -> None:
    chance = random.Random(5)
    acknowledged: dict[int, str] = {}
    seen: dict[int, str] = {}
    tmp_path.joinpath("log").mkdir()
    directory = tmp_path / "log"
    cursor = 0
    for number in range(ROUNDS):
        command = [sys.executable, str(TARGET), str(directory), str(number)]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert process.stdout
        assert process.stdout.readline().startswith("open")
        enough, give_up = cursor + chance.choice((0, 1, 50, 200)), time.monotonic() + 60
        reader = LogReader(directory)
        while cursor < enough and time.monotonic() < give_up:
            cursor = look(reader, cursor, seen)
        time.sleep(chance.uniform(0.0, 0.02))  # anywhere within a commit
        process.kill()
        for line in process.stdout.read().split("\n")[:-1]:
            base, count, name = line.split()
            acknowledged |= {int(base) + row: f"{name}.{row}" for row in range(int(count))}
        process.wait()
        cursor = look(reader, cursor, seen)
    assert len(acknowledged) > 100
    log = Log.open(directory)
    kept = dict(zip(offsets(log), texts_of(log), strict=True))
    assert list(kept) == list(range(log.next_offset))
    assert acknowledged.items() <= kept.items()
    assert seen.items() <= kept.items()
    assert len(set(kept.values())) == len(kept), "a message is there twice"
    log.close()
    assert list(verify(directory)) == []


def look(reader: LogReader, cursor: int, seen: dict[int, str]) -> int:
    for batch in reader.read(cursor, columns=["offset", "payload"]):
        for offset, payload in zip(*(batch.column(name).to_pylist() for name in ("offset", "payload")), strict=True):
            assert offset == cursor
            seen[offset] = payload.decode()
            cursor += 1
    return cursor


def offsets(log: Log) -> list[int]:
    return [offset for batch in log.read(0) for offset in batch.column("offset").to_pylist()]
