"""What is in flight to an MQTT client: sent and not acknowledged yet, by packet identifier.

Most of it is rows of QoS 1 whose identifiers count up, and most clients acknowledge in order: such rows are kept as
rows, taken from the front, and cost nothing per message. Of those from the log, whose offsets count up as well, the
first offset is kept; of others the packets as they came (`Sent`). As soon as a client answers in another order
they are written out (`_write_out`), each at most once.

Payloads are in memory once, however many sessions they are in flight to: in the packets, or as the objects that all
get from the turn's columns. Only what is written out of a row is cut for each session, and that is short.
"""

from collections.abc import Iterator
from typing import NamedTuple, TypeAlias

from smbroker.dialects.mqtt.stream import Numbers
from smbroker.model.message import NO_EXTRA, Columns, Wire
from smbroker.model.topic import Topic
from smbroker.server.mqtt.items import Flight, Item

KEPT_IDS = 49_152  # packet identifiers of kept messages are 1 to this, by offset; the rest are above
SHORT_ROW = 8  # messages: fewer are written out at once
LONG = 1_024  # bytes of a payload: longer ones never stay packets

InFlight: TypeAlias = Flight | int
"""An offset is a message of QoS 1 that is in the log and was sent in a row: nothing else of it is needed."""


class Sent(NamedTuple):
    """A row of QoS 1 that is not in the log: packets of equal length, each with its payload at the end.

    They are those that came, for all sessions together. Where a window ends within them the rest is sent alone, and
    the first of it writes the row out: so a session holds more than is in flight of one read at most."""

    topic: Topic
    size: int  # of a payload
    packets: bytes
    length: int  # of a packet
    done: int = 0  # of the packets, from the first on

    def flight(self, at: int) -> Flight:
        """Of the message so many after the first that is not done."""
        end = (self.done + at + 1) * self.length
        return Flight(Item(-1, self.topic, self.packets[end - self.size : end], NO_EXTRA, 1))

    def after(self, count: int) -> "Sent":
        return self._replace(done=self.done + count)


Row: TypeAlias = tuple[int, int, int | Sent]
"""First identifier, how many, first offset or what was sent."""


class Flights:
    __slots__ = ("_count", "_rows", "_single")

    def __init__(self) -> None:
        self._single: dict[int, InFlight] = {}  # in the order of sending
        self._rows: list[Row] = []  # by offset, or in the order of sending; few
        self._count = 0  # of messages in rows

    def __len__(self) -> int:
        return len(self._single) + self._count

    def __contains__(self, number: int) -> bool:
        return number in self._single or any(first <= number < first + count for first, count, _ in self._rows)

    def __setitem__(self, number: int, flight: Flight) -> None:
        self._keep_order()
        self._single[number] = flight

    def __delitem__(self, number: int) -> None:
        if self.pop(number) is None:
            raise KeyError(number)

    def __iter__(self) -> Iterator[tuple[int, Flight]]:
        """All, with their numbers; those that are not in the log in the order of sending."""
        found = [(number, _whole(one) if isinstance(one, int) else one) for number, one in self._single.items()]
        for first, count, row in self._rows:
            found += [
                (first + at, row.flight(at) if isinstance(row, Sent) else _whole(row + at)) for at in range(count)
            ]
        return iter(found)

    def get(self, number: int) -> Flight | None:
        if number not in self._single:
            self._write_out()
        found = self._single.get(number)
        return _whole(found) if isinstance(found, int) else found

    def pop(self, number: int) -> InFlight | None:
        if number not in self._single:
            self._write_out()
        return self._single.pop(number, None)

    # --- rows ---

    def free(self, number: int, count: int, offset: int) -> bool:
        """Whether none of so many identifiers, beginning with that of this offset, is in use; -1: not in the log."""
        if self._single and not self._single.keys().isdisjoint(range(number, number + count)):
            return False
        rows = self._rows
        if not rows:
            return True
        oldest, (_, some, newest) = rows[0][2], rows[-1]
        if isinstance(oldest, Sent) or isinstance(newest, Sent):
            pass
        elif offset >= newest + some and offset + count - oldest <= KEPT_IDS:
            return True
        end = number + count
        return all(number >= first + some or end <= first for first, some, _ in rows)

    def add_row(self, number: int, count: int, offset: int) -> None:
        """Messages of QoS 1 with `free` identifiers and offsets that count up, both from these on."""
        rows = self._rows
        if rows:
            first, some, start = rows[-1]
            if isinstance(start, Sent) or offset < start:  # the client goes back
                self._write_out()
            elif offset == start + some and number == first + some:
                rows[-1] = first, some + count, start
                self._count += count
                return
        if count < SHORT_ROW:
            self._single.update(zip(range(number, number + count), range(offset, offset + count), strict=True))
        else:
            rows.append((number, count, offset))
            self._count += count

    def add_wire(self, number: int, columns: Columns, wire: Wire, start: int, end: int) -> None:
        """The same, of messages that are not in the log: rows `start` to `end`, of this wire."""
        topic, count = columns.topics[start], end - start
        if count < SHORT_ROW or wire.size > LONG:
            for at, payload in enumerate(columns.payloads[start:end]):
                self[number + at] = Flight(Item(-1, topic, payload, NO_EXTRA, 1))
        else:
            self._rows.append((number, count, Sent(topic, wire.size, wire.packets, wire.length, start - wire.first)))
            self._count += count

    def _keep_order(self) -> None:
        """What is sent alone comes after rows whose order nothing else tells."""
        if self._rows and isinstance(self._rows[-1][2], Sent):
            self._write_out()

    def pop_row(self, numbers: Numbers, at: int) -> tuple[int, int]:
        """Those at the front of the first row if the identifiers from `at` on are theirs: first offset, if they have
        one, and how many."""
        if not self._rows or self._rows[0][0] != numbers[at]:
            return 0, 0
        first, some, row = self._rows[0]
        count = min(some, len(numbers) - at)
        expected, found = range(first, first + count), numbers[at : at + count]
        if found != (expected if isinstance(found, range) else tuple(expected)):
            return 0, 0
        if count == some:
            del self._rows[0]
        else:
            self._rows[0] = first + count, some - count, row.after(count) if isinstance(row, Sent) else row + count
        self._count -= count
        return (-1 if isinstance(row, Sent) else row), count

    def _write_out(self) -> None:
        for first, count, row in self._rows:
            flights = map(row.flight, range(count)) if isinstance(row, Sent) else range(row, row + count)
            self._single.update(zip(range(first, first + count), flights, strict=True))
        self._rows.clear()
        self._count = 0


def _whole(offset: int) -> Flight:
    return Flight(Item(offset, b"", b"", NO_EXTRA, 1))
