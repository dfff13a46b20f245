"""A small append has the same bytes whether Arrow makes them or `few`."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from smbroker.log.arrays import batches_of
from smbroker.log.few import MOST_BYTES, MOST_ROWS, SOON_BYTES, SOON_ROWS, encoded
from smbroker.log.format import Frame, checked_frame_at, decode, encode, frame_at
from smbroker.model.message import Columns, Dialect, Extra, Kind, Origin

TOPICS = [b"t", "grüße/x".encode(), b"", b"a/b/c"]
PAYLOADS = [b"", b"x", bytes(range(256)), b"1234567", b"12345678"]


def origins(client: bool) -> st.SearchStrategy[Origin]:
    clients = st.sampled_from(["", "c", "grün", "\ud800"]) if client else st.none()
    return st.builds(
        Origin.at, st.sampled_from(list(Dialect)), st.sampled_from(["127.0.0.1:1", "[::1]:65535"]), clients
    )


@st.composite
def turns(draw: st.DrawFn) -> list[Columns]:
    origin, extra = origins(draw(st.booleans())), draw(st.sampled_from([None, Extra(1), Extra(2, True)]))
    found = []
    for rows in draw(st.lists(st.integers(0, 20), min_size=1, max_size=4)):
        alike = draw(st.booleans())
        few = {"min_size": 1 if alike else rows, "max_size": 1 if alike else rows}
        lists = [
            draw(st.lists(one, **few)) * (rows if alike else 1)
            for one in (st.sampled_from(TOPICS), st.sampled_from(PAYLOADS), st.sampled_from(list(Kind)), origin)
        ]
        found.append(Columns(draw(st.integers(1, 1 << 50)), *lists, dict.fromkeys(range(rows), extra) if extra else {}))
    if draw(st.booleans()):
        one = Columns()
        for columns in found:
            one.gather(columns)
        return [one]
    return found


@given(turns(), st.integers(0, 1 << 40))
def test_the_bytes_are_arrows(some: list[Columns], base: int) -> None:
    made = encoded(some, base, 99)
    rows = sum(map(len, some))
    if not rows:
        assert made is None
        return
    assert made
    message, count, first_ts = made
    (batch,) = batches_of(some, base)
    frame = Frame(base, 99, batch.first_ts, batch.last_ts, rows)
    assert (count, first_ts) == (rows, batch.first_ts)
    assert bytes(message) == bytes(encode(batch.rows, frame))
    found = frame_at(message)
    assert isinstance(found, Frame)
    again = decode(bytes(message), 0, found)
    again.validate(full=True)
    assert again.equals(batch.rows)


@given(turns(), st.integers(0, 1 << 40))
def test_they_are_the_same_with_breaths_in_between(some: list[Columns], base: int) -> None:
    breaths: list[None] = []
    assert encoded(some, base, 99, lambda: breaths.append(None)) == encoded(some, base, 99)
    assert bool(breaths) == any(map(len, some))


def columns(rows: int, payload: bytes, *, extra: Extra | None = None, client: str | None = None) -> Columns:
    origin = Origin.at(Dialect.MQTT, "127.0.0.1:1", client)
    lists = [b"t"] * rows, [payload] * rows, [Kind.BYTES] * rows, [origin] * rows
    return Columns(5, *lists, dict.fromkeys(range(rows), extra) if extra else {})


@pytest.mark.parametrize("base", [0, 65_535, 65_536 - MOST_ROWS, 65_537 - MOST_ROWS, (1 << 40) + 70_000])
def test_with_breaths_more_rows_are_made_so_and_are_the_same_when_read(base: int) -> None:
    some = Columns()
    origins = [Origin.at(Dialect.MQTT, f"127.0.0.1:{number}", f"c{number}") for number in range(3)]
    for row in range(MOST_ROWS):
        some.add(b"t/%d" % (row % 7), b"x" * (row % 5), origins[row % 3], 1_000 - row % 11)
    made = encoded([some], base, 1, lambda: None)
    assert made
    message, rows, first_ts = made
    assert (rows, first_ts) == (MOST_ROWS, 990)
    frame = checked_frame_at(message)
    assert isinstance(frame, Frame)
    assert (frame.base, frame.first_ts, frame.last_ts) == (base, 990, 1_000)
    (batch,) = batches_of([some], base)
    assert decode(bytes(message), 0, frame).equals(batch.rows)


def test_much_and_what_is_rare_is_left_to_arrow() -> None:
    assert encoded([columns(SOON_ROWS, b"x")], 0, 1)
    assert encoded([columns(SOON_ROWS, b"x"), columns(1, b"x")], 0, 1) is None
    assert encoded([columns(MOST_ROWS, b"x"), columns(1, b"x")], 0, 1, lambda: None) is None
    assert encoded([columns(2, bytes(SOON_BYTES // 2))], 0, 1) is None
    assert encoded([columns(2, bytes(SOON_BYTES // 2))], 0, 1, lambda: None)
    assert encoded([columns(2, bytes(MOST_BYTES // 2))], 0, 1, lambda: None) is None
    assert encoded([columns(1, b"x", extra=Extra(0, False, (("a", "b"),)))], 0, 1) is None
    assert encoded([columns(1, b"x", client="c"), columns(1, b"x")], 0, 1) is None
