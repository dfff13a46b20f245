"""Sealing, retention, and reading over sealed segments and tails."""

import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from logkit import SOMETIME, QuickDisk, mixed_turn, offsets_of, rows_of, texts_of, turn

from smbroker.log import seal
from smbroker.log.disk import Disk
from smbroker.log.format import SCHEMA
from smbroker.log.index import read_body, read_header
from smbroker.log.log import Log
from smbroker.log.reader import LogReader
from smbroker.log.seal import seal_segment
from smbroker.log.segments import segments_in
from smbroker.log.settings import LogSettings
from smbroker.model.errors import LogError

SECOND = 1_000_000


@pytest.fixture
def log(tmp_path: Path) -> Log:
    return Log.open(tmp_path, LogSettings(seal_rows=100, seal_age=60.0), QuickDisk())


def filled(log: Log, segments: int, rows: int = 100, topics: int = 5) -> pa.Table:
    """So many sealed segments and a tail; returns all rows as they were read before sealing."""
    for segment in range(segments + 1):
        log.append([mixed_turn(rows // 2, SOMETIME + segment * SECOND, topics)])
        log.append([mixed_turn(rows - rows // 2, SOMETIME + segment * SECOND + 1, topics)])
        if segment < segments:
            log.rotate()
    before = table(log)
    for base in log.pending_seals:
        seal_segment(log.directory, base, rows=rows)
    return before


def table(log: Log | LogReader, **options: object) -> pa.Table:
    return pa.Table.from_batches(list(log.read(0, **options)), SCHEMA)  # type: ignore[arg-type]


def test_sealing_changes_no_row(log: Log) -> None:
    before = filled(log, 3)
    names = sorted(path.name for path in log.directory.glob("0*"))
    assert names == [
        *(f"{base:020}{part}" for base in (0, 100, 200) for part in (".index", ".parquet")),
        f"{300:020}.arrow",
    ]
    after = table(log)
    assert after.equals(before)
    assert after.column("offset").to_pylist() == list(range(400))


def test_what_was_removed_is_not_remembered(tmp_path: Path) -> None:
    log = Log.open(tmp_path, LogSettings(seal_rows=100, retain_age=1.0), QuickDisk())
    filled(log, 3)
    ends: dict[int, int] = {}
    assert [segment.end for segment in segments_in(Disk(), tmp_path, ends)] == [100, 200, 300, None]
    assert ends == {0: 100, 100: 200, 200: 300}
    assert log.retain(SOMETIME / SECOND + 2.5) == [0, 100]
    assert [segment.base for segment in segments_in(Disk(), tmp_path, ends)] == [200, 300]
    assert ends == {200: 300}


def test_columns_that_are_the_same_in_all_rows_are_given_as_they_were(
    log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(seal, "GROUP_ROWS", 40)
    log.append([turn(str(n) for n in range(90)), mixed_turn(10)])  # the last row groups have some of each
    log.rotate()
    before = table(log)
    seal_segment(log.directory, 0)
    assert table(log).equals(before)
    for start, end in ((0, 1), (39, 41), (50, 85), (79, 95)):
        rows = pa.Table.from_batches(list(log.read(start, end)), SCHEMA)
        assert rows.equals(before.slice(start, end - start)), (start, end)
    for names in (["kind"], ["retain", "properties"], ["client", "offset"]):
        found = pa.Table.from_batches(list(log.read(0, None, None, names))).combine_chunks()
        assert found.equals(before.select(names).combine_chunks().select(found.column_names)), names


def test_ranges_across_sealed_segments_and_the_tail(log: Log) -> None:
    before = filled(log, 2)
    ranges = [(0, 1), (99, 101), (150, 250), (199, 300), (210, 220), (0, 300), (250, 250), (299, None), (300, None)]
    for start, end in ranges:
        rows = pa.Table.from_batches(list(log.read(start, end)), SCHEMA)
        assert rows.equals(before.slice(start, (300 if end is None else end) - start)), (start, end)


def test_topics_give_what_a_plain_filter_gives(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(seal, "GROUP_ROWS", 60)
    before = filled(log, 2, 500, topics=300)
    every = {b"t/%d" % topic for topic in range(300)}  # nothing is left out: another way
    for wanted in ({b"t/1"}, {b"t/0", b"t/299"}, {b"none"}, set(sorted(every)[::2]), every, every - {b"t/7"}, set()):
        mask = pc.is_in(before.column("topic"), value_set=pa.array([topic.decode() for topic in wanted], pa.string()))
        expected = before.filter(mask)
        assert table(log, topics=wanted).combine_chunks().equals(expected.combine_chunks())
        assert table(log, topics=wanted.__contains__).combine_chunks().equals(expected.combine_chunks())
        part = pa.Table.from_batches(list(log.read(130, 1100, wanted)), SCHEMA).combine_chunks()
        offsets = expected.column("offset")
        inside = pc.and_(pc.greater_equal(offsets, 130), pc.less(offsets, 1100))
        assert part.equals(expected.filter(inside).combine_chunks())


@pytest.mark.parametrize("topics", [None, {b"t/1"}])
def test_columns_may_be_chosen(log: Log, topics: set[bytes] | None) -> None:
    filled(log, 1)
    for names in (["payload", "offset"], ["ts"], ["kind", "properties", "client"]):
        expected = table(log, topics=topics).select(names)
        assert (
            pa.Table.from_batches(list(log.read(0, None, topics, names)))
            .combine_chunks()
            .equals(expected.combine_chunks())
        )


def test_few_payloads_are_fetched_by_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(seal, "PAGE_BYTES", 512)
    monkeypatch.setattr(seal, "PAGE_ROWS", 8)
    log = Log.open(tmp_path, disk=QuickDisk())
    columns = mixed_turn(3000, topics=500)
    columns.payloads[:] = [b"%d" % row * (row % 7) for row in range(3000)]
    log.append([columns])
    log.rotate()
    seal_segment(tmp_path, 0)
    body = read_body(QuickDisk(), tmp_path / f"{0:020}.index")
    assert body.pages.num_rows > 50
    rows = rows_of(log.read(0, topics={b"t/17"}))
    assert [row["payload"] for row in rows] == [b"%d" % row * (row % 7) for row in range(17, 3000, 500)]
    log.close()


def test_the_summary_counts_topics(log: Log) -> None:
    filled(log, 1)
    path = log.directory / f"{0:020}.index"
    topics = read_body(QuickDisk(), path).topics.to_pylist()
    assert topics == [{"topic": f"t/{topic}", "count": 20, "last_row": 95 + topic, "groups": [0]} for topic in range(5)]
    header = read_header(QuickDisk(), path)
    assert header is not None
    assert (header.base, header.end, header.first_ts, header.last_ts) == (0, 100, SOMETIME, SOMETIME + 1)


def test_any_reader_opens_tail_and_sealed_files_with_the_documented_columns(log: Log) -> None:
    filled(log, 1)
    sealed = pq.read_table(log.directory / f"{0:020}.parquet")
    tail = pa.ipc.open_stream((log.directory / f"{100:020}.arrow").read_bytes()).read_all()
    types = {
        "offset": "int64",
        "ts": "timestamp[us, tz=UTC]",
        "topic": "string",
        "payload": "binary",
        "kind": "string",
        "dialect": "string",
        "source": "string",
        "client": "string",
        "retain": "bool",
        "qos": "int32",
        "properties": "list<element: struct<key: string, value: string>>",
    }
    for read in (sealed, tail):
        assert {field.name: str(field.type) for field in read.schema} == types
        assert read.num_rows == 100
    topic = pq.read_metadata(log.directory / f"{0:020}.parquet").row_group(0).column(2)
    assert "RLE_DICTIONARY" in topic.encodings
    assert topic.compression == "ZSTD"


def test_small_closed_tails_are_sealed_together(log: Log) -> None:
    for number in range(5):
        log.append([turn([f"{number}.{row}" for row in range(30)])])
        log.rotate()
    before = texts_of(log)
    assert log.pending_seals == [0, 30, 60, 90, 120]
    sealed = seal_segment(log.directory, 0, rows=100)
    assert sealed is not None
    assert sealed.end == 90
    assert log.pending_seals == [90, 120]
    assert texts_of(log) == before
    assert seal_segment(log.directory, 0, rows=100) is None


def test_nothing_is_sealed_past_until(log: Log) -> None:
    for _ in range(3):
        log.append([turn(["a"] * 10)])
        log.rotate()
    assert seal_segment(log.directory, 0, until=9) is None
    sealed = seal_segment(log.directory, 0, until=25)
    assert sealed is not None
    assert sealed.end == 20


def test_a_seal_that_fails_leaves_the_disk_its_room(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    log.append([turn(["a", "b"])])
    log.rotate()
    monkeypatch.setattr("smbroker.log.seal.payload_pages", lambda *_: 1 // 0)
    with pytest.raises(ZeroDivisionError):
        seal_segment(log.directory, 0)
    assert not list(log.directory.glob("*.tmp"))


def test_sealing_in_a_process_of_its_own(log: Log) -> None:
    log.append([turn(["a", "b"])])
    log.rotate()
    command = [sys.executable, "-m", "smbroker.log.seal", str(log.directory), "0"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert not done.stdout
    assert not log.pending_seals
    assert texts_of(log) == ["a", "b"]


def test_damage_in_a_closed_tail_is_said_and_kept(log: Log) -> None:
    for number in range(4):
        log.append([turn([f"{number}"])])
    log.rotate()
    log.append([turn(["after"])])
    path = log.directory / f"{0:020}.arrow"
    raw = bytearray(path.read_bytes())
    raw[len(raw) * 5 // 8] ^= 4
    path.write_bytes(raw)
    with pytest.raises(LogError) as caught:
        list(log.read(0))
    assert caught.value.code == "damaged"
    sealed = seal_segment(log.directory, 0)
    assert sealed is not None
    assert len(sealed.said) == 1
    assert offsets_of(log) == [*range(sealed.end), 4]
    assert sealed.end < 4
    assert path.with_name(path.name + ".damaged").read_bytes() == raw


def test_the_tail_is_rotated_by_rows_bytes_age_and_appends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = LogSettings(seal_rows=10, seal_bytes=5000, seal_age=60.0)
    log = Log.open(tmp_path, settings, QuickDisk())
    now = SOMETIME / SECOND
    assert not log.rotate_if_due(now + 1000), "an empty tail is not sealed"
    log.append([turn(["a"] * 9)])
    log.append([], [("a note", b"without messages")])
    assert not log.rotate_if_due(now + 59)
    assert log.rotate_if_due(now + 60)
    log.append([turn(["a"] * 10)])
    assert log.rotate_if_due(now)
    log.append([turn(["a" * 5000])])
    assert log.rotate_if_due(now)
    assert log.pending_seals == [0, 9, 19]
    monkeypatch.setattr("smbroker.log.log.MAX_APPENDS", 2)
    log.append([turn(["a"])])
    assert not log.rotate_if_due(now)
    log.close()
    log = Log.open(tmp_path, settings, QuickDisk())
    log.append([turn(["a"])])
    assert log.rotate_if_due(now)
    log.close()


def test_retention_by_age_moves_the_first_offset(tmp_path: Path) -> None:
    log = Log.open(tmp_path, LogSettings(retain_age=10.0), QuickDisk())
    filled(log, 4)
    reader = LogReader(tmp_path)
    assert log.retain(SOMETIME / SECOND + 11.5) == [0, 100]
    assert (log.first_offset, reader.first_offset) == (200, 200)
    assert offsets_of(log, 200) == list(range(200, 500))
    for one in (log, reader):
        with pytest.raises(LogError) as caught:
            list(one.read(150))
        assert caught.value.code == "gone"
        assert "200" in caught.value.text
    assert log.retain(SOMETIME / SECOND + 11.5) == []
    log.close()
    log = Log.open(tmp_path, disk=QuickDisk())
    assert (log.recovered, log.first_offset) == ([], 200)
    log.close()


def test_retention_by_size_and_never_the_tail(tmp_path: Path) -> None:
    log = Log.open(tmp_path, LogSettings(retain_bytes=1), QuickDisk())
    filled(log, 3)
    assert log.retain(0.0) == [0, 100, 200]
    assert log.first_offset == 300
    assert offsets_of(log, 300) == list(range(300, 400))
    log.close()


def test_a_reading_that_retention_overtakes_is_told(tmp_path: Path) -> None:
    log = Log.open(tmp_path, LogSettings(retain_bytes=1), QuickDisk())
    filled(log, 3)
    reading = LogReader(tmp_path).read(0)
    assert len(next(reading)) == 100
    log.retain(0.0)
    with pytest.raises(LogError) as caught:
        next(reading)
    assert caught.value.code == "gone"
    log.close()


def test_a_reading_that_sealing_overtakes_goes_on(log: Log) -> None:
    for number in range(4):
        log.append([turn([f"{number}.{row}" for row in range(5)])])
        log.rotate()
    expected = texts_of(log)
    reading = LogReader(log.directory).read(0)
    found = rows_of([next(reading)])
    for base in log.pending_seals:
        seal_segment(log.directory, base)
    found += rows_of(reading)
    assert [row["payload"].decode() for row in found] == expected  # type: ignore[attr-defined]


@pytest.mark.parametrize("sealed", [False, True])
def test_how_far_so_many_bytes_reach(log: Log, sealed: bool) -> None:
    texts = ["x" * 100] * 1_000 + ["x" * 10_000] * 100
    for start in range(0, len(texts), 50):
        log.append([turn(texts[start : start + 50])])
    if sealed:
        log.rotate()
        seal_segment(log.directory, 0, disk=QuickDisk())
        log.append([turn(["x" * 10_000])])
    reader, end = LogReader(log.directory), log.next_offset
    assert reader.reach(0, end, 1 << 30) == end
    assert reader.reach(0, 7, 1 << 30) == 7
    assert reader.reach(3, end, 1) == 4
    cut = reader.reach(0, end, 100_000)
    assert 0 < cut < 1_000
    assert 3 <= reader.reach(1_000, end, 40_000) - 1_000 <= (40 if sealed else 4)
    cursor, cuts = 0, 0
    while cursor < end:
        cursor, before = reader.reach(cursor, end, 300_000), cursor
        cuts += 1
        assert cursor > before
    assert 3 <= cuts <= 6


def test_offset_at_a_time(log: Log) -> None:
    filled(log, 2)
    reader = LogReader(log.directory)
    for ts, offset in (
        (0, 0),
        (SOMETIME, 0),
        (SOMETIME + 1, 50),
        (SOMETIME + 2, 100),
        (SOMETIME + SECOND + 1, 150),
        (SOMETIME + 2 * SECOND, 200),
        (SOMETIME + 2 * SECOND + 1, 250),
        (SOMETIME + 3 * SECOND, 300),
    ):
        assert reader.offset_at(ts) == offset, ts


def test_segments_for_people(log: Log) -> None:
    filled(log, 1)
    log.rotate()
    log.append([turn(["x"], received=SOMETIME + 5)])
    found = [(info.state, info.base, info.end, info.rows, info.last_ts) for info in LogReader(log.directory).segments()]
    assert found == [
        ("sealed", 0, 100, 100, SOMETIME + 1),
        ("closed", 100, 200, 100, SOMETIME + SECOND + 1),
        ("tail", 200, 201, 1, SOMETIME + 5),
    ]
