"""A large append is what any Arrow reader finds in it, whichever buffers were compressed."""

import random

import pyarrow as pa
import pytest
from logkit import mixed_turn, turn

from smbroker.log.arrays import batches_of
from smbroker.log.format import LONG_ROW, PLAIN_ROWS, Bad, Frame, checked_frame_at, decode, head
from smbroker.log.many import laid_out
from smbroker.model.message import Columns

MANY = PLAIN_ROWS + 100
DIGITS = "".join(random.Random(7).choices("0123456789abcdef", k=80 * MANY))


def laid(columns: Columns) -> tuple[bytes, pa.RecordBatch]:
    (batch,) = batches_of([columns], 7)
    pieces = laid_out(batch.rows, Frame(7, 3, batch.first_ts, batch.last_ts, len(columns))).stamped()
    return b"".join(pieces), batch.rows


TURNS = {
    "one topic, digits": turn([DIGITS[64 * at : 64 * at + 64] for at in range(MANY)]),
    "alike": turn(["x" * 100] * MANY),
    "empty": turn([""] * MANY),
    "mixed, with properties and nulls": mixed_turn(MANY),
    "few": mixed_turn(20),
    "one": turn(["x"]),
    "long": turn([DIGITS[:5_000]] * MANY),
}


@pytest.mark.parametrize("columns", TURNS.values(), ids=TURNS.keys())
def test_it_is_read_as_it_was(columns: Columns) -> None:
    raw, rows = laid(columns)
    frame = checked_frame_at(raw)
    assert isinstance(frame, Frame)
    assert (frame.base, frame.rows, frame.length) == (7, len(columns), len(raw))
    found = decode(raw, 0, frame)
    found.validate(full=True)
    assert found.equals(rows)
    with pa.ipc.open_stream(head(7, 3) + raw + bytes(16)) as stream:
        assert stream.read_all().to_batches()[0].equals(rows)


def test_only_what_shrinks_is_compressed() -> None:
    raw, rows = laid(TURNS["one topic, digits"])
    assert rows.column("payload").buffers()[2].to_pybytes() in raw
    assert len(raw) < 0.7 * rows.nbytes
    raw, rows = laid(TURNS["alike"])
    assert len(raw) < 0.4 * rows.nbytes
    assert DIGITS[:5_000].encode() * 3 in laid(TURNS["long"])[0], f"more than {LONG_ROW} bytes a row"


def test_flipped_bits_are_found() -> None:
    raw = bytearray(laid(TURNS["one topic, digits"])[0])
    for bit in random.Random(1).sample(range(8 * len(raw)), 300):
        raw[bit // 8] ^= 1 << bit % 8
        assert isinstance(checked_frame_at(raw), Bad), bit
        raw[bit // 8] ^= 1 << bit % 8
    assert isinstance(checked_frame_at(raw), Frame)
