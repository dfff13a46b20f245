"""Rows that came in runs are laid out as the rows that `arrays` makes of them, which Arrow reads."""

import random
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from logkit import ORIGINS, SOMETIME, mixed_turn, rows_of, turn

from smbroker.log import flood
from smbroker.log.arrays import batch_of, batches_of, times_of
from smbroker.log.format import PLAIN_ROWS, Frame, checked_frame_at, decode, head
from smbroker.log.layout import Message
from smbroker.log.log import Log
from smbroker.log.lz4 import MOST
from smbroker.log.seal import seal_segment
from smbroker.model.message import Columns, Dialect, Extra, Kind, Origin

NAMED = [Origin(Dialect.MQTT, "::1", 4002, "a client"), Origin(Dialect.MQTT, "127.0.0.1", 1, "another")]
NAMELESS = [ORIGINS[0], ORIGINS[2]]
BEGINNING = b"0123\x00"


def came(
    runs: Sequence[tuple[bytes, int, int, Origin]], received: int = SOMETIME, extra: Extra | None = None
) -> Columns:
    """Runs as (topic, payload bytes, rows, origin)."""
    columns = Columns(received)
    for topic, size, rows, origin in runs:
        packets = b"".join(BEGINNING + (b"%d:" % row * (size // 2 + 1))[:size] for row in range(rows))
        columns.add_packets(topic, origin, 4, packets, rows, size, extra)
    return columns


def check(group: list[Columns], base: int = 7) -> bytes:
    rows = sum(map(len, group))
    message = flood.laid_out(group, Frame(base, 3, *times_of(group), rows))
    assert message is not None
    raw = b"".join(message.stamped())
    frame = checked_frame_at(raw)
    assert isinstance(frame, Frame)
    assert (frame.base, frame.rows, frame.length) == (base, rows, len(raw))
    wanted = batch_of(group, rows, base).rows
    found = decode(raw, 0, frame)
    found.validate(full=True)
    assert found.equals(wanted)
    with pa.ipc.open_stream(head(base, 3) + raw + bytes(16)) as stream:
        assert stream.read_all().combine_chunks().to_batches()[0].equals(wanted)
    return raw


def runs(origins: list[Origin]) -> st.SearchStrategy[list[tuple[bytes, int, int, Origin]]]:
    return st.lists(
        st.tuples(
            st.sampled_from([b"a", b"a/b", b"another/topic"]),
            st.sampled_from([0, 1, 5, 64, 64, 64, 600]),
            st.integers(flood.LONG_RUN, 300) | st.just(PLAIN_ROWS + 1),
            st.sampled_from(origins),
        ),
        min_size=1,
        max_size=5,
    )


@settings(max_examples=60)
@given(st.data(), st.sampled_from([NAMED, NAMELESS]), st.sampled_from([None, Extra(1), Extra(0, True)]))
def test_they_are_the_same_rows(data: st.DataObject, origins: list[Origin], extra: Extra | None) -> None:
    turns = data.draw(st.lists(runs(origins), min_size=1, max_size=4))
    check([came(some, SOMETIME + at, extra) for at, some in enumerate(turns)])


def test_a_few_that_came_alone_in_between_do_not_matter() -> None:
    alone = Columns()
    for columns in (turn(["x"] * 2), turn(["y"], b"other", SOMETIME + 5), turn([""], received=SOMETIME - 5)):
        alone.gather(columns)
    check([came([(b"a/b", 64, 900, ORIGINS[0])]), alone, came([(b"a/b", 64, 900, ORIGINS[0])], SOMETIME + 9)])


@pytest.mark.parametrize("size", [flood.CUT, flood.CUT + 1, flood.LONG, 3 * flood.LONG], ids="{:,} bytes".format)
def test_long_payloads(size: int) -> None:
    one = came([(b"a/b", size, 2, NAMED[0])])
    check([one, came([(b"a/b", 5, 900, NAMED[0])]), one])
    if size < flood.LONG:
        check([came([(b"a/b", size, 1_000, NAMED[0])])] * 2)


@pytest.mark.parametrize(("payload", "most"), [(b'{"temperature": 21.%d, "humidity": 40}', 70), (b"%x", 120)])
def test_payloads_that_shrink_are_compressed(payload: bytes, most: int) -> None:
    dice = random.Random(5)
    rows = [
        (payload % dice.randrange(10) if b"{" in payload else b"%064x" % dice.getrandbits(256)) for _ in range(5_000)
    ]
    columns = Columns(SOMETIME)
    packets = b"".join(BEGINNING + row for row in rows)
    columns.add_packets(b"a/b", NAMED[0], 4, packets, len(rows), len(rows[0]))
    assert len(check([columns])) < most * len(rows)


def test_what_is_the_same_in_every_row_takes_no_room() -> None:
    long = Origin(Dialect.MQTT, "127.0.0.1", 40_000, "a client with a rather long name")
    raw = check([came([(b"a/topic/with/some/levels", 16, 20_000, long)])])
    assert len(raw) < 20_000 * (16 + 8 + 6 * 4) + 10_000, "payloads, offsets, and where the values of six columns end"


def test_ids_of_clients_that_do_not_fit_a_block() -> None:
    long = Origin(Dialect.MQTT, "127.0.0.1", 40_000, "x" * 900)
    check([came([(b"a/b", 4, MOST // 900 + 10, long)])])


def test_what_is_not_alike_is_left_to_arrow() -> None:
    def refused(*group: Columns) -> bool:
        rows = sum(map(len, group))
        return flood.laid_out(group, Frame(7, 3, *times_of(group), rows)) is None

    assert refused(mixed_turn(900)), "nothing came together"
    assert refused(came([(b"a", 5, 190, NAMED[0]), (b"a", 5, 190, NAMELESS[0])])), "some have a name"
    assert refused(came([(b"a", 5, 190, NAMED[0])]), came([(b"a", 5, 190, NAMED[0])], extra=Extra(1)))
    assert refused(came([(b"a", 5, 190, NAMED[0])], extra=Extra(0, False, (("k", "v"),))))
    assert refused()
    assert not refused(came([(b"a", 5, 190, NAMED[0])]))


def test_kinds_of_those_that_came_alone() -> None:
    number = Columns(SOMETIME, [b"n"], [b"-10"], [Kind.INT], [ORIGINS[2]])
    check([came([(b"a/b", 64, 900, ORIGINS[0])]), number])


def test_in_the_log_with_all_that_is_around_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Large appends of runs, between others, are what is read back from the tail and from the sealed segment."""
    laid, laid_out = list[bool](), flood.laid_out

    def counted(group: Sequence[Columns], frame: Frame) -> Message | None:
        found = laid_out(group, frame)
        laid.append(found is not None)
        return found

    monkeypatch.setattr(flood, "laid_out", counted)
    log = Log.open(tmp_path)
    turns = [
        [came([(b"a/b", 64, 20_000, NAMED[0])])],
        [mixed_turn(9)],
        [came([(b"a/b", 64, 700, NAMED[0])]), turn(["x"], b"other"), came([(b"c", 16, 1_000, NAMED[1])])],
        [came([(b"a/b", 3 << 20, 1, NAMED[0]), (b"a/b", 64, 900, NAMED[0])])],
        [mixed_turn(5_000)],
        [came([(b"c", 16, 30_000, NAMELESS[0])])],
    ]
    for some in turns:
        log.append(some)
    assert laid == [True, False, False, True, False, True], "some have properties, or no client's name"
    wanted = rows_of(batch.rows for batch in batches_of([one for some in turns for one in some], 0))
    assert rows_of(log.read(0)) == wanted
    log.rotate()
    assert seal_segment(tmp_path, 0)
    assert rows_of(log.read(0)) == wanted
    log.close()
