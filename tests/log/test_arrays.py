from collections.abc import Sequence

import pytest
from logkit import ORIGINS, SOMETIME, mixed_turn, rows_of, turn

from smbroker.log import arrays
from smbroker.log.arrays import batches_of
from smbroker.log.format import SCHEMA
from smbroker.model.message import Columns, Dialect, Extra, Kind, Origin


def plain_rows(turns: list[Columns], base: int) -> list[dict[str, object]]:
    """The rule, slow and obvious."""
    rows = []
    for columns in turns:
        for row in range(len(columns)):
            extra = columns.extras.get(row, Extra())
            origin = columns.origins[row]
            rows.append(
                {
                    "offset": base + len(rows),
                    "ts": columns.received,
                    "topic": columns.topics[row].decode(),
                    "payload": columns.payloads[row],
                    "kind": columns.kinds[row].name.lower(),
                    "dialect": str(origin.dialect),
                    "source": origin.source,
                    "client": origin.client,
                    "retain": extra.retain,
                    "qos": extra.qos,
                    "properties": [{"key": key, "value": value} for key, value in extra.properties],
                }
            )
    return rows


def built(turns: list[Columns], base: int = 0) -> list[dict[str, object]]:
    batches = [batch.rows for batch in batches_of(turns, base)]
    for batch in batches:
        batch.validate(full=True)
        assert batch.schema.equals(SCHEMA)
    rows = rows_of(batches)
    for row in rows:
        row["ts"] = int(row["ts"].timestamp() * 1_000_000)  # type: ignore[attr-defined]
    return rows


@pytest.mark.parametrize(
    "turns",
    [
        [turn(["one"])],
        [turn(["", "", ""])],
        [turn(["a", "bb"]), turn(["ccc"], b"other", SOMETIME + 1)],
        [mixed_turn(50)],
        [mixed_turn(3), turn([]), mixed_turn(40, SOMETIME - 5), turn(["x"] * 9)],
        [Columns(1, [b"t"] * 3, [b"p"] * 3, [Kind.INT] * 3, [ORIGINS[1]] * 3)],
        [Columns(1, ["ü€/😀".encode()], [bytes(range(256))], [Kind.BYTES], [ORIGINS[2]])],
        [Columns(1, [b"t"], [b""], [Kind.BYTES], [ORIGINS[2]], {0: Extra(properties=(("", ""),))})],
    ],
)
def test_columns_become_the_rows_that_they_say(turns: list[Columns]) -> None:
    assert built(turns, 100) == plain_rows(turns, 100)


CAME = [(b"a/b", b"%05d", 40), (b"other", b"%05d", 17), (b"a/b", b"%05d", 100)]


QOS_1 = Extra(1)


def packets(*runs: tuple[bytes, bytes, int], extras: Sequence[Extra | None] = (None,)) -> tuple[Columns, Columns]:
    """Rows as packets, and the same rows one by one; their extras in turn."""
    came, plain = Columns(SOMETIME), Columns(SOMETIME)
    for number, (topic, form, count) in enumerate(runs):
        payloads = [form % row if form else b"" for row in range(count)]
        origin, extra = ORIGINS[number % len(ORIGINS)], extras[number % len(extras)]
        joined = b"".join(b"head" + payload for payload in payloads)
        came.add_packets(topic, origin, 4, joined, count, len(payloads[0]), extra)
        for payload in payloads:
            if extra:
                plain.own_extras[len(plain)] = extra
            plain.topics.append(topic)
            plain.payloads.append(payload)
            plain.kinds.append(Kind.BYTES)
            plain.origins.append(origin)
    return came, plain


@pytest.mark.parametrize(
    "runs",
    [
        CAME[:1],
        CAME,
        [*CAME, (b"a/b", b"%03d", 50)],  # of another length
        [(b"t", b"%05d", 1)] * 5,  # not together
        [(b"t", b"%05d", 1), *CAME],
        [(b"empty", b"", 30)],
        [(b"long", b"%02000d", 20)],
    ],
)
def test_rows_that_came_as_packets_are_the_same_rows(runs: list[tuple[bytes, bytes, int]]) -> None:
    came, plain = packets(*runs)
    assert (came.bytes, came.topic, came.topic_bytes) == (plain.bytes, plain.topic, plain.topic_bytes)
    assert built([turn(["before"]), came], 5) == built([turn(["before"]), plain], 5)
    came, plain = packets(*runs)
    assert built([came, packets(*CAME)[0]], 5) == plain_rows([plain, packets(*CAME)[1]], 5)
    came, _ = packets(*runs)
    assert came.payloads == plain.payloads
    assert came.payloads is came.payloads


@pytest.mark.parametrize("extras", [(QOS_1,), (QOS_1, None), (None, QOS_1, Extra(1, True))])
@pytest.mark.parametrize("runs", [CAME[:1], CAME, [(b"t", b"%05d", 1)] * 5])
def test_so_are_those_with_a_quality(runs: list[tuple[bytes, bytes, int]], extras: Sequence[Extra | None]) -> None:
    came, plain = packets(*runs, extras=extras)
    assert [came.extra_at(row) for row in range(len(came))] == [plain.extra_at(row) for row in range(len(plain))]
    assert came.same_extra == plain.same_extra
    assert built([turn(["before"]), came], 5) == plain_rows([turn(["before"]), plain], 5)
    came, _ = packets(*runs, extras=extras)
    assert built([came], 5) == plain_rows([plain], 5)
    came, _ = packets(*runs, extras=extras)
    assert came.extras == plain.extras
    assert [came.extra_at(row) for row in range(len(came))] == [plain.extra_at(row) for row in range(len(plain))]
    last = len(came) - 1
    assert came.rows([0, last]).extras == plain.rows([0, last]).extras


def test_packets_and_single_rows_keep_their_order() -> None:
    came, plain = packets(*CAME)
    more, more_plain = packets(*CAME[:1])
    came.topics.append(b"x")
    came.payloads.append(b"single")
    came.kinds.append(Kind.BYTES)
    came.origins.append(ORIGINS[0])
    came.add_packets(b"a/b", ORIGINS[0], 4, more.wires[0].packets, 40, 5)
    assert came.payloads == [*plain.payloads, b"single", *more_plain.payloads]
    assert came.size == -1
    assert not came.runs


def gathered(turns: list[Columns]) -> Columns:
    one = Columns()
    for columns in turns:
        one.gather(columns)
    return one


def test_turns_that_were_gathered_are_the_same_rows_at_their_own_times(monkeypatch: pytest.MonkeyPatch) -> None:
    turns = [mixed_turn(3), turn(["x"] * 9, received=SOMETIME + 7), mixed_turn(40, SOMETIME - 5), turn(["last"])]
    one = gathered(turns)
    assert built([turn(["before"]), one], 5) == plain_rows([turn(["before"]), *turns], 5)
    assert one.times == (SOMETIME - 5, SOMETIME + 7)
    assert (one.ts(2), one.ts(3), one.ts(12)) == (SOMETIME, SOMETIME + 7, SOMETIME - 5)
    some = one.rows([2, 11, 13])
    assert built([some]) == [row | {"offset": at} for at, row in enumerate(built([one])[at] for at in (2, 11, 13))]
    monkeypatch.setattr(arrays, "MAX_ROWS", 16)
    assert built([one], 5) == plain_rows(turns, 5)


def test_large_turns_are_cut_into_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arrays, "MAX_ROWS", 16)
    monkeypatch.setattr(arrays, "MAX_BYTES", 100)
    turns = [mixed_turn(50), turn(["x" * 300]), turn(["y" * 40] * 7), turn(["z"])]
    batches = list(batches_of(turns, 5))
    assert len(batches) > 5
    assert all(len(batch.rows) <= 16 for batch in batches)
    assert built(turns, 5) == plain_rows(turns, 5)


def test_a_client_that_is_no_utf8_is_kept_readable() -> None:
    odd = Origin(Dialect.MQTT, client="\ud800x")
    columns = Columns(1, [b"t"] * 2, [b""] * 2, [Kind.INT] * 2, [odd, ORIGINS[0]])
    assert [row["client"] for row in built([columns])] == ["?x", None]


def test_no_messages_are_one_empty_batch() -> None:
    (batch,) = batches_of([], 0)
    assert len(batch.rows) == 0
