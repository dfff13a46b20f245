"""Frames of what repeats: any LZ4 decoder finds the bytes that they stand for."""

import random

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from smbroker.log.lz4 import FARTHEST, MOST, repeated

CODEC = pa.Codec("lz4")
VALUES = st.binary(max_size=20) | st.sampled_from([b"\0", b"127.0.0.1:1883", bytes(4), b"x" * 300, b"y" * FARTHEST])
TIMES = st.integers(1, 40) | st.sampled_from([19, 255, 256, 1_000])


@given(st.lists(st.tuples(VALUES, TIMES), min_size=1, max_size=6))
def test_it_is_what_it_stands_for(runs: list[tuple[bytes, int]]) -> None:
    wanted = b"".join(value * times for value, times in runs)
    frame = repeated(runs)
    if not 0 < len(wanted) <= MOST:
        assert frame is None
        return
    assert frame is not None
    assert CODEC.decompress(frame, len(wanted), asbytes=True) == wanted


@pytest.mark.parametrize("size", range(1, 60))
def test_the_end_of_a_block_is_literals(size: int) -> None:
    for width in (1, 2, 3, 5, 8, 13):
        whole, rest = divmod(size, width)
        runs = [(b"abcdefghijklm"[:width], whole), (b"z", rest)]
        wanted = b"".join(value * times for value, times in runs)
        frame = repeated([run for run in runs if run[1]])
        assert frame is not None
        assert CODEC.decompress(frame, size, asbytes=True) == wanted


def test_a_million_rows_take_little() -> None:
    frame = repeated([(b"abcd", 1_000_000)])
    assert frame is not None
    assert len(frame) < 20_000


def test_what_does_not_fit_is_left_to_others() -> None:
    dice = random.Random(3)
    literals = [(dice.randbytes(FARTHEST), 1) for _ in range(MOST // FARTHEST)]
    assert repeated(literals) is None, "written down they are more than a block may be"
    assert repeated(literals[1:]) is not None
    assert repeated([(b"abcd", MOST // 4 + 1)]) is None
    assert repeated([(bytes(FARTHEST + 1), 2)]) is None
    assert repeated([]) is None
