"""What is in flight, beside a plain dict of the same."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from smbroker.model.message import NO_EXTRA, Columns, Dialect, Origin
from smbroker.server.mqtt.flights import KEPT_IDS, LONG, Flights
from smbroker.server.mqtt.items import Flight, Item


def number_of(offset: int) -> int:
    return offset % KEPT_IDS + 1


def flight() -> Flight:
    return Flight(Item(-1, b"t", b"", NO_EXTRA, 2))


class Pair:
    """`Flights`, and offsets by number as they should be."""

    def __init__(self) -> None:
        self.flights = Flights()
        self.plain: dict[int, int] = {}
        self.next = 0

    def send(self, count: int, skip: int) -> None:
        offset = self.next + skip
        number = number_of(offset)
        count = min(count, KEPT_IDS + 1 - number)
        free = not any(one in self.plain for one in range(number, number + count))
        assert self.flights.free(number, count, offset) == free
        if free:
            self.flights.add_row(number, count, offset)
            self.plain.update(zip(range(number, number + count), range(offset, offset + count), strict=True))
            self.next = offset + count

    def acknowledge(self, numbers: list[int]) -> None:
        at = 0
        while at < len(numbers):
            offset, count = self.flights.pop_row(tuple(numbers), at)
            if count:
                assert [self.plain.pop(number) for number in numbers[at : at + count]] == list(
                    range(offset, offset + count)
                )
                at += count
                continue
            found = self.flights.pop(numbers[at])
            assert (found.item.offset if isinstance(found, Flight) else found) == self.plain.pop(numbers[at], None)
            at += 1

    def check(self) -> None:
        assert len(self.flights) == len(self.plain)
        assert {number: one.item.offset for number, one in self.flights} == self.plain
        for number in (*list(self.plain)[:3], 1, 2, KEPT_IDS):
            assert (number in self.flights) == (number in self.plain)


STEPS = st.one_of(
    st.tuples(st.just("send"), st.integers(1, 40), st.sampled_from([0, 0, 0, 1, 5, KEPT_IDS - 30])),
    st.tuples(st.just("in order"), st.integers(1, 60), st.just(0)),
    st.tuples(st.just("newest first"), st.integers(1, 10), st.just(0)),
    st.tuples(st.just("wrong"), st.integers(1, KEPT_IDS), st.just(0)),
    st.tuples(st.just("back"), st.integers(1, 30), st.integers(1, 50)),
)


@given(st.lists(STEPS, max_size=40))
def test_it_is_as_a_dict_of_the_same(steps: list[tuple[str, int, int]]) -> None:
    pair = Pair()
    for what, count, more in steps:
        known = list(pair.plain)
        if what == "send":
            pair.send(count, more)
        elif what == "in order":
            pair.acknowledge(sorted(known, key=pair.plain.__getitem__)[:count])
        elif what == "newest first":
            pair.acknowledge(known[: -count - 1 : -1])
        elif what == "wrong":
            pair.acknowledge([count])
        else:
            pair.next = max(0, pair.next - more)
        pair.check()


ORIGIN = Origin(Dialect.MQTT, "127.0.0.1", 1)


def packed(payloads: list[bytes]) -> Columns:
    """One row of packets; the identifiers in them are those of whoever has published it."""
    columns = Columns()
    packets = b"".join(b"head" + payload for payload in payloads)
    columns.add_packets(b"t", ORIGIN, 4, packets, len(payloads), len(payloads[0]))
    return columns


def add(flights: Flights, number: int, columns: Columns, start: int, end: int) -> None:
    flights.add_wire(number, columns, columns.wires[0], start, end)


class Unlogged:
    """`Flights` of messages that are not in the log, and payloads by number as they should be, in the order of
    sending."""

    def __init__(self) -> None:
        self.flights = Flights()
        self.plain: dict[int, bytes] = {}
        self.sent = 0

    def payload(self) -> bytes:
        self.sent += 1
        return b"%03d" % (self.sent % 1_000)

    def number(self) -> int:
        return next(number for number in range(self.sent + 1, 65_536) if number not in self.flights)

    def send_row(self, count: int) -> None:
        """From the middle of what came together."""
        number, payloads = self.number(), [self.payload() for _ in range(count)]
        assert self.flights.free(number, count, -1)
        add(self.flights, number, packed([b"...", *payloads, b"..."]), 1, 1 + count)
        self.plain.update(zip(range(number, number + count), payloads, strict=True))

    def send_one(self) -> None:
        number, payload = self.number(), self.payload()
        self.flights[number] = Flight(Item(-1, b"t", payload, NO_EXTRA, 1))
        self.plain[number] = payload

    def acknowledge(self, numbers: list[int]) -> None:
        at = 0
        while at < len(numbers):
            offset, count = self.flights.pop_row(tuple(numbers), at)
            if count:
                assert offset == -1
            else:
                count = 1
                found = self.flights.pop(numbers[at])
                assert isinstance(found, Flight)
                assert found.item.payload == self.plain[numbers[at]]
            for number in numbers[at : at + count]:
                del self.plain[number]
            at += count


@given(
    st.lists(
        st.tuples(st.sampled_from(["row", "row", "one", "oldest", "newest", "some"]), st.integers(1, 40)), max_size=40
    )
)
def test_what_is_not_in_the_log_stays_whole_and_in_order(steps: list[tuple[str, int]]) -> None:
    pair = Unlogged()
    for what, count in steps:
        known = list(pair.plain)
        match what:
            case "row":
                pair.send_row(count)
            case "one":
                pair.send_one()
            case "oldest":
                pair.acknowledge(known[:count])
            case "newest":
                pair.acknowledge(known[: -count - 1 : -1])
            case "some":
                pair.acknowledge(known[count // 2 :: 3])
        assert len(pair.flights) == len(pair.plain)
        assert [(number, one.item.payload) for number, one in pair.flights] == list(pair.plain.items())
        assert not any(pair.flights.free(number, 1, -1) for number in list(pair.plain)[:3])


def test_rows_of_the_log_and_others_are_in_flight_together() -> None:
    flights = Flights()
    flights.add_row(1, 10, 0)
    add(flights, KEPT_IDS + 1, packed([b"%c" % letter for letter in b"abcdefghij"]), 0, 10)
    flights.add_row(11, 10, 10)
    assert len(flights) == 30
    assert not flights.free(KEPT_IDS + 10, 1, -1)
    assert not flights.free(20, 2, 19)
    assert flights.free(21, 10, 20)
    one = flights.pop(KEPT_IDS + 3)
    assert isinstance(one, Flight)
    assert one.item.payload == b"c"
    assert [flight.item.offset for _, flight in flights if flight.item.offset >= 0] == list(range(20))


@pytest.mark.parametrize(("count", "size"), [(1, 10), (7, 10), (8, LONG + 1)])
def test_short_rows_and_long_messages_are_the_same_objects_in_all_sessions(count: int, size: int) -> None:
    columns = packed([b"%d" % at * size for at in range(count)])
    for flights in (Flights(), Flights()):
        add(flights, 1, columns, 0, count)
        payloads = [flight.item.payload for _, flight in flights]
        assert all(one is other for one, other in zip(payloads, columns.payloads, strict=True))


def test_a_row_makes_no_objects_of_its_messages() -> None:
    columns, flights = packed([b"12345678"] * 1_000), Flights()
    add(flights, 1, columns, 0, 1_000)
    assert columns._packed == 1_000
    assert flights.pop_row(range(1, 501), 0) == (-1, 500)
    assert not flights._single


def test_rows_and_others_are_in_flight_together() -> None:
    flights = Flights()
    flights[KEPT_IDS + 1] = flight()
    flights.add_row(1, 100, 0)
    flights[KEPT_IDS + 2] = flight()
    assert len(flights) == 102
    assert flights.pop_row(range(1, 51), 0) == (0, 50)
    one = flights.get(KEPT_IDS + 1)
    assert one
    assert one.item.qos == 2
    row = flights.get(60)
    assert row
    assert (row.item.offset, row.item.qos) == (59, 1)
    del flights[51]
    assert [number for number, _ in flights if number > KEPT_IDS] == [KEPT_IDS + 1, KEPT_IDS + 2]
    assert len(flights) == 51


def test_numbers_begin_again() -> None:
    flights = Flights()
    flights.add_row(KEPT_IDS - 9, 10, KEPT_IDS - 10)
    flights.add_row(1, 20, KEPT_IDS)
    wrapped = (*range(KEPT_IDS - 9, KEPT_IDS + 1), *range(1, 21))
    assert flights.pop_row(wrapped, 0) == (KEPT_IDS - 10, 10)
    assert flights.pop_row(wrapped, 10) == (KEPT_IDS, 20)
    assert not len(flights)
