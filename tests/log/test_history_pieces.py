import errno
import os
import pickle
from pathlib import Path

import pytest
from pyarrow import parquet as pq

from smbroker.log import history, stretches
from smbroker.log.disk import Disk
from smbroker.log.history import Readings
from smbroker.log.log import Log
from smbroker.log.questions import Answer, Backwards, Count, Failed, Form, Moment, Piece, Place, Request, Search
from smbroker.log.reader import LogReader
from smbroker.log.seal import seal_segment
from smbroker.log.settings import LogSettings
from smbroker.model.errors import LogError
from smbroker.model.filter import parse
from smbroker.model.message import Columns, Dialect, Extra, Kind, Origin

ORIGINS = [Origin(Dialect.TYPED, "127.0.0.1", 5000, "C1"), Origin(Dialect.SOH, "::1", 6000), Origin(Dialect.PIPE)]


@pytest.fixture
def log(tmp_path: Path) -> Log:
    """30 messages over three topics: ten sealed, twenty in the tail."""
    made = Log.open(tmp_path, LogSettings(retain_bytes=1))
    for start in range(0, 30, 10):
        numbers = range(start, start + 10)
        made.append(
            [
                Columns(
                    start + 1,
                    [b"t%d" % (number % 3) for number in numbers],
                    [b"%d" % number for number in numbers],
                    [Kind.INT if number % 2 else Kind.BYTES for number in numbers],
                    [ORIGINS[number % 3] for number in numbers],
                )
            ]
        )
        if start == 0:
            made.rotate()
            assert seal_segment(tmp_path, 0)
    return made


def followed(readings: Readings, start: int, end: int, topics: frozenset[bytes] | None) -> list[Piece]:
    pieces = []
    while start < end:
        piece = readings.answer(Request(1, start, end, topics))
        assert isinstance(piece, Piece)
        assert piece.next > start
        pieces.append(piece)
        start = piece.next
    return pieces


@pytest.mark.parametrize("size", [1, 3, 7, 1000])
def test_pieces_make_up_the_whole(log: Log, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int) -> None:
    monkeypatch.setattr(history, "PIECE_ROWS", size)
    pieces = followed(Readings(LogReader(tmp_path)), 0, 30, None)
    assert [offset for piece in pieces for offset in piece.offsets] == list(range(30))
    assert [payload for piece in pieces for payload in piece.columns.payloads] == [b"%d" % n for n in range(30)]
    assert [kind for piece in pieces for kind in piece.columns.kinds] == [Kind.BYTES, Kind.INT] * 15
    sources = [(o.dialect, o.source, o.client) for piece in pieces for o in piece.columns.origins]
    assert sources[:3] == [(o.dialect, o.source, o.client) for o in ORIGINS]
    assert all(len(piece.offsets) <= size for piece in pieces)
    log.close()


def test_only_the_topics_asked_for_come(log: Log, tmp_path: Path) -> None:
    pieces = followed(Readings(LogReader(tmp_path)), 4, 30, frozenset({b"t1", b"none"}))
    assert [offset for piece in pieces for offset in piece.offsets] == list(range(4, 30, 3))
    log.close()


def test_a_reading_goes_on_over_what_is_sealed_meanwhile(
    log: Log, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(history, "PIECE_ROWS", 4)
    monkeypatch.setattr(stretches, "BITS", 2)
    readings = Readings(LogReader(tmp_path))
    topics = frozenset({b"t0", b"t1", b"t2"})
    first = readings.answer(Request(1, 0, 30, topics))
    assert isinstance(first, Piece)
    log.rotate()
    assert seal_segment(tmp_path, 10)
    readings.prepare()  # learns that there is less to know
    rest = followed(readings, first.next, 30, topics)
    assert [offset for piece in (first, *rest) for offset in piece.offsets] == list(range(30))
    log.close()


def test_the_bytes_of_a_piece_are_bounded(log: Log, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history, "PIECE_BYTES", 4)
    pieces = followed(Readings(LogReader(tmp_path)), 0, 30, None)
    assert max(sum(map(len, piece.columns.payloads)) for piece in pieces) <= 5
    log.close()


def test_properties_and_the_ids_of_clients_count_too(tmp_path: Path) -> None:
    log = Log.open(tmp_path)
    extras = {row: Extra(0, False, (("k", f"{row}" + "v" * 60_000),)) for row in range(50)}
    clients = [Origin(Dialect.MQTT, "::1", 1, f"{row}" + "c" * 60_000) for row in range(50)]
    log.append([Columns(1, [b"t"] * 50, [b""] * 50, [Kind.BYTES] * 50, [ORIGINS[0]] * 50, extras)])
    log.append([Columns(1, [b"t"] * 50, [b""] * 50, [Kind.BYTES] * 50, clients)])
    readings, start, pieces = Readings(LogReader(tmp_path)), 0, []
    while start < 100:
        piece = readings.answer(Request(1, start, 100, None, frozenset([parse("t")])))
        assert isinstance(piece, Piece)
        pieces.append(piece)
        start = piece.next
    assert sum(len(piece.columns) for piece in pieces) == 100
    assert max(len(pickle.dumps(piece)) for piece in pieces) < 2 * history.PIECE_BYTES
    log.close()


def test_a_reading_that_was_forgotten_begins_where_it_is_asked(
    log: Log, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(history, "PIECE_ROWS", 5)
    monkeypatch.setattr(history, "MAX_OPEN", 1)
    readings = Readings(LogReader(tmp_path))
    first = readings.answer(Request(1, 0, 30, None))
    readings.answer(Request(2, 0, 30, None))
    again = readings.answer(Request(1, 5, 30, None))
    assert isinstance(first, Piece)
    assert isinstance(again, Piece)
    assert (first.offsets, again.offsets) == ([0, 1, 2, 3, 4], [5, 6, 7, 8, 9])
    log.close()


def test_what_is_gone_is_said_with_the_first_offset_there_is(log: Log, tmp_path: Path) -> None:
    assert log.retain(0) == [0]
    answer = Readings(LogReader(tmp_path)).answer(Request(1, 3, 30, None))
    assert isinstance(answer, Failed)
    assert (answer.code, answer.next) == ("gone", 10)
    log.close()


def test_damage_is_said_with_the_offset_after_it(log: Log, tmp_path: Path) -> None:
    file = tmp_path / "00000000000000000000.parquet"
    file.write_bytes(b"nonsense")
    readings = Readings(LogReader(tmp_path))
    answer = readings.answer(Request(1, 0, 30, None))
    assert isinstance(answer, Failed)
    assert (answer.code, answer.next) == ("damaged", 10)
    assert [offset for piece in followed(readings, 10, 30, None) for offset in piece.offsets] == list(range(10, 30))
    log.close()


def answers_to_all(readings: Readings) -> list[Answer]:
    """One question of each kind, about all of the log."""
    return [
        readings.answer(question)
        for question in (
            Request(1, 0, 30, None),
            Request(2, 0, 30, frozenset([b"t1"])),
            Search(3, 0, 30, parse("t1/#"), 100, Form.LINES),
            Backwards.first_step(4, 0, 30, parse("t2"), 10, None),
            Moment(5, 1),
            Count(6, 30, 100),
        )
    ]


def test_damage_in_the_times_of_a_sealed_file_is_said_to_who_asks_for_a_time(log: Log, tmp_path: Path) -> None:
    path = tmp_path / f"{0:020}.parquet"
    raw = bytearray(path.read_bytes())
    times = pq.read_metadata(path).row_group(0).column(1)
    raw[times.data_page_offset + times.total_compressed_size - 4] ^= 1
    path.write_bytes(raw)
    answer = Readings(LogReader(tmp_path)).answer(Moment(1, 1))
    assert isinstance(answer, Failed)
    assert (answer.code, answer.next) == ("damaged", 10)
    log.close()


@pytest.mark.parametrize("index", [True, False])
@pytest.mark.parametrize("name", [b"kind", b"payload"])
def test_damaged_names_in_a_sealed_file_are_said(log: Log, tmp_path: Path, name: bytes, index: bool) -> None:
    path = tmp_path / f"{0:020}.parquet"
    raw = path.read_bytes()
    at = raw.index(name, len(raw) - 8 - int.from_bytes(raw[-8:-4], "little"))
    if not index:
        (tmp_path / f"{0:020}.index").unlink()
    for other in (b"x", b"\xff"):
        path.write_bytes(raw[:at] + other + raw[at + 1 :])
        answers = answers_to_all(Readings(LogReader(tmp_path)))
        assert {answer.code for answer in answers if isinstance(answer, Failed)} <= {"damaged"}
        assert isinstance(answers[0], Failed)
    log.close()


def test_a_tail_that_the_disk_cannot_read_is_damaged(log: Log, tmp_path: Path) -> None:
    class BadSector(Disk):
        def pread(self, handle: int, length: int, position: int) -> bytes:
            if position and Path(f"/proc/self/fd/{handle}").readlink().suffix == ".arrow":
                raise OSError(errno.EIO, os.strerror(errno.EIO))
            return super().pread(handle, length, position)

    readings = Readings(LogReader(tmp_path, BadSector()))
    for question in (Request(1, 10, 30, None), Moment(2, 11)):
        answer = readings.answer(question)
        assert isinstance(answer, Failed)
        assert answer.code == "damaged"
    assert readings.answer(Count(3, 30, 100)) == Place(3, 30)
    log.close()


@pytest.mark.parametrize("topics", [None, frozenset([b"t0", b"t1", b"t2"])])
def test_what_stands_before_damage_in_a_tail_is_given(
    log: Log, tmp_path: Path, topics: frozenset[bytes] | None
) -> None:
    log.close()  # cuts off the room for more
    path = tmp_path / f"{10:020}.arrow"
    raw = bytearray(path.read_bytes())
    raw[-20] ^= 1  # in the second of two appends
    path.write_bytes(raw)
    found: list[int] = []

    def read() -> None:
        for batch in LogReader(tmp_path).read(0, topics=topics):
            found.extend(batch.column("offset").to_pylist())

    with pytest.raises(LogError, match="wrong CRC"):
        read()
    assert found == list(range(20))
