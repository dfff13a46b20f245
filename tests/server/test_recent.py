import pytest

from smbroker.model.message import Columns, Dialect, Kind, Origin
from smbroker.server import recent
from smbroker.server.recent import Recent

ORIGIN = Origin(Dialect.SOH)


def turn(*payloads: bytes) -> Columns:
    count = len(payloads)
    return Columns(0, [b"t"] * count, list(payloads), [Kind.BYTES] * count, [ORIGIN] * count)


def rows(kept: Recent, cursor: int) -> list[tuple[int, bytes]]:
    return [
        (base + row, payload)
        for base, columns in kept.since(cursor)
        for row, payload in enumerate(columns.payloads)
        if base + row >= cursor
    ]


def test_it_gives_back_what_came_since_a_cursor() -> None:
    kept = Recent(5, 100)
    kept.add(5, turn(b"a", b"b"), 2)
    kept.add(7, turn(b"c"), 1)
    assert (kept.first, kept.next) == (5, 8)
    assert rows(kept, 6) == [(6, b"b"), (7, b"c")]
    assert rows(kept, 8) == []


def test_it_is_bounded_in_bytes_and_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recent, "LEAST_BYTES", 0)
    monkeypatch.setattr(recent, "MAX_ROWS", 4)
    kept = Recent(0, 10)
    for offset in range(10):
        kept.add(offset, turn(b"xxx"), 3)
    assert kept.first == 7, "three of three bytes fit into ten"
    for offset in range(10, 20):
        kept.add(offset, turn(b""), 0)
    assert (kept.first, kept.next) == (16, 20)
    kept.add(20, turn(b"y" * 50), 50)
    assert (kept.first, kept.next) == (21, 21), "a turn larger than all of it is not kept"


def test_a_gap_in_the_offsets_begins_anew() -> None:
    kept = Recent(0, 100)
    kept.add(0, turn(b"a"), 1)
    kept.add(5, turn(b"b"), 1)
    assert (kept.first, kept.next) == (5, 6)
    assert rows(kept, 0) == [(5, b"b")]
