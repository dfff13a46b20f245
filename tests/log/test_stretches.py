import random
from pathlib import Path

import pytest
from logkit import ORIGINS, SOMETIME

from smbroker.log import stretches
from smbroker.log.log import Log
from smbroker.log.reader import LogReader
from smbroker.log.seal import seal_segment
from smbroker.log.stretches import Stretches
from smbroker.model.message import Columns, Kind


def append(log: Log, topics: list[bytes]) -> None:
    count = len(topics)
    log.append([Columns(SOMETIME, topics, [b"x"] * count, [Kind.BYTES] * count, [ORIGINS[0]] * count)])


def offsets(reader: LogReader, topic: bytes, ranges: list[tuple[int, int]]) -> list[int]:
    return [
        offset
        for start, end in ranges
        for batch in reader.read(start, end, {topic}, ["offset"])
        for offset in batch.column("offset").to_pylist()
    ]


@pytest.mark.parametrize("room", [3, 1000])
def test_no_message_is_left_out_while_the_log_grows_and_is_sealed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, room: int
) -> None:
    monkeypatch.setattr(stretches, "BITS", 3)
    monkeypatch.setattr(stretches, "MAX_TOPICS", room)
    chance = random.Random(2)
    log = Log.open(tmp_path)
    reader = LogReader(tmp_path)
    known = Stretches(reader)
    everything: list[bytes] = []
    for _ in range(150):
        topics = [b"t%d" % min(int(chance.expovariate(0.2)), 30) for _ in range(chance.randint(1, 12))]
        append(log, topics)
        everything += topics
        if chance.random() < 0.1:
            log.rotate()
        if chance.random() < 0.1 and log.pending_seals:
            seal_segment(tmp_path, log.pending_seals[0])
        start, end = sorted(chance.choices(range(len(everything) + 1), k=2))
        topic = b"t%d" % chance.randint(0, 32)
        ranges = list(known.holding({topic}, start, end))
        assert all(low < high for low, high in ranges)
        assert offsets(reader, topic, ranges) == [at for at in range(start, end) if everything[at] == topic]
    log.close()


def test_what_holds_none_of_the_topics_is_not_looked_at(tmp_path: Path) -> None:
    log = Log.open(tmp_path)
    append(log, [b"common"] * 5_000 + [b"rare"] + [b"common"] * 5_000)
    known = Stretches(LogReader(tmp_path))
    assert list(known.holding({b"rare"}, 0, 10_001)) == [(4_096, 5_120)]
    assert list(known.holding({b"none"}, 0, 10_001)) == []
    assert list(known.holding({b"common", b"none"}, 7, 10_001)) == [(7, 10_001)]
    append(log, [b"rare"])
    assert list(known.holding({b"rare"}, 5_000, 10_002)) == [(5_000, 5_120), (9_216, 10_002)]
    log.close()


def test_what_cannot_be_read_is_left_to_the_reader_to_find(tmp_path: Path) -> None:
    log = Log.open(tmp_path)
    append(log, [b"a"] * 100)
    log.close()
    tail = next(tmp_path.glob("*.arrow"))
    tail.write_bytes(tail.read_bytes()[:-10])
    assert list(Stretches(LogReader(tmp_path)).holding({b"b"}, 0, 100)) == [(0, 100)]
