import pyarrow as pa
import pytest
from logkit import mixed_turn, turn

from smbroker.log.arrays import batches_of
from smbroker.log.format import (
    LONG_ROW,
    PLAIN_ROWS,
    SCHEMA,
    Bad,
    Frame,
    checked_frame_at,
    decode,
    decode_notes,
    encode,
    frame_at,
    head,
)


def message(count: int = 10, notes: list[tuple[str, bytes]] | None = None) -> tuple[bytes, pa.RecordBatch]:
    (batch,) = batches_of([mixed_turn(count)], 7)
    return bytes(encode(batch.rows, Frame(7, 3, batch.first_ts, batch.last_ts, count), notes or [])), batch.rows


def test_a_message_says_what_it_holds_and_gives_it_back() -> None:
    raw, rows = message()
    frame = checked_frame_at(raw)
    assert isinstance(frame, Frame)
    assert (frame.base, frame.end, frame.tail, frame.length) == (7, 17, 3, len(raw))
    assert decode(raw, 0, frame).equals(rows)
    assert frame_at(raw) == frame


def test_every_flipped_bit_of_a_message_is_found() -> None:
    raw, _ = message(3)
    for bit in range(len(raw) * 8):
        flipped = bytearray(raw)
        flipped[bit // 8] ^= 1 << bit % 8
        assert isinstance(checked_frame_at(flipped), Bad), bit


def test_every_flipped_bit_of_the_head_is_found() -> None:
    raw = head(5, 9)
    for bit in range(len(raw) * 8):
        flipped = bytearray(raw)
        flipped[bit // 8] ^= 1 << bit % 8
        assert isinstance(checked_frame_at(flipped), Bad), bit


def test_a_message_cut_anywhere_is_found() -> None:
    raw, _ = message(3)
    assert all(isinstance(checked_frame_at(raw[:length]), Bad) for length in range(len(raw)))


@pytest.mark.parametrize("size", [0, 3, 5_000, 200_000])
def test_notes_travel_with_the_rows(size: int) -> None:
    notes = [("ledger", bytes(range(256)) * (size // 256 + 1)), ("qos2", b"\x00\x01"), ("qos2", b"")]
    raw, rows = message(4, notes)
    frame = checked_frame_at(raw)
    assert isinstance(frame, Frame)
    assert decode_notes(raw, 0, frame) == notes
    assert decode(raw, 0, frame).equals(rows)


def test_any_arrow_reader_opens_head_and_messages() -> None:
    raw, rows = message()
    read = pa.ipc.open_stream(head(7, 3) + raw).read_all()
    assert read.schema.equals(SCHEMA)
    assert read.equals(pa.Table.from_batches([rows]))


def test_a_payload_that_looks_like_a_check_does_no_harm() -> None:
    raw, _ = message(2)
    columns = turn(["smb-check:" + "f" * 104, raw.hex(), "smb-check:"])
    (batch,) = batches_of([columns], 0)
    framed = encode(batch.rows, Frame(0, 1, 0, 0, 3))
    assert isinstance(checked_frame_at(framed), Frame)


@pytest.mark.parametrize(("rows", "size", "packed"), [(PLAIN_ROWS, 50, False), (PLAIN_ROWS + 1, 50, True)])
def test_many_rows_are_compressed_and_come_back(rows: int, size: int, packed: bool) -> None:
    batch = repeated(rows, size)
    raw = bytes(encode(batch, Frame(0, 3, 1, 1, rows)))
    assert (len(raw) < batch.nbytes / 2) is packed
    frame = checked_frame_at(raw)
    assert isinstance(frame, Frame)
    assert decode(raw, 0, frame).equals(batch)
    assert pa.ipc.open_stream(head(0, 3) + raw).read_all().equals(pa.Table.from_batches([batch]))


def test_long_rows_are_not_compressed_so_that_a_few_bytes_never_become_very_many() -> None:
    batch = repeated(PLAIN_ROWS + 1, LONG_ROW)
    assert len(encode(batch, Frame(0, 3, 1, 1, len(batch)))) > batch.nbytes


def repeated(rows: int, size: int) -> pa.RecordBatch:
    (batch,) = batches_of([turn(["x" * size] * rows)], 0)
    return batch.rows
