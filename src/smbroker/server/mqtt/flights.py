"""What is in flight to an MQTT client: sent and not acknowledged yet, by packet identifier.

Most of it is rows of QoS 1 from the log, whose identifiers count up as their offsets do, and most clients acknowledge
in order: such rows are kept as rows, taken from the front, and cost nothing per message. As soon as a client
answers in another order they are written out (`_write_out`), each at most once.
"""

from collections.abc import Iterator, Sequence
from typing import TypeAlias

from smbroker.model.message import NO_EXTRA
from smbroker.server.mqtt.items import Flight, Item

KEPT_IDS = 49_152  # packet identifiers of kept messages are 1 to this, by offset; the rest are above
SHORT_ROW = 8  # messages: fewer are written out at once

InFlight: TypeAlias = Flight | int
"""An offset is a message of QoS 1 that is in the log and was sent in a row: nothing else of it is needed."""


class Flights:
    __slots__ = ("_count", "_rows", "_single")

    def __init__(self) -> None:
        self._single: dict[int, InFlight] = {}  # in the order of sending
        self._rows: list[tuple[int, int, int]] = []  # first identifier, how many, first offset; by offset, and few
        self._count = 0  # of messages in rows

    def __len__(self) -> int:
        return len(self._single) + self._count

    def __contains__(self, number: int) -> bool:
        return number in self._single or any(first <= number < first + count for first, count, _ in self._rows)

    def __setitem__(self, number: int, flight: Flight) -> None:
        self._single[number] = flight

    def __delitem__(self, number: int) -> None:
        if self.pop(number) is None:
            raise KeyError(number)

    def __iter__(self) -> Iterator[tuple[int, Flight]]:
        """All, with their numbers; those that are not in the log in the order of sending."""
        found = [(number, _whole(one) if isinstance(one, int) else one) for number, one in self._single.items()]
        for first, count, offset in self._rows:
            found += [(first + at, _whole(offset + at)) for at in range(count)]
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
        """Whether none of so many identifiers, beginning with that of this offset, is in use."""
        if self._single and not self._single.keys().isdisjoint(range(number, number + count)):
            return False
        rows = self._rows
        if not rows or (offset >= rows[-1][2] + rows[-1][1] and offset + count - rows[0][2] <= KEPT_IDS):
            return True
        end = number + count
        return all(number >= first + some or end <= first for first, some, _ in rows)

    def add_row(self, number: int, count: int, offset: int) -> None:
        """Messages of QoS 1 with `free` identifiers and offsets that count up, both from these on."""
        rows = self._rows
        if rows:
            first, some, start = rows[-1]
            if offset == start + some and number == first + some:
                rows[-1] = first, some + count, start
                self._count += count
                return
            if offset < start:  # the client goes back
                self._write_out()
        if count < SHORT_ROW:
            self._single.update(zip(range(number, number + count), range(offset, offset + count), strict=True))
        else:
            rows.append((number, count, offset))
            self._count += count

    def pop_row(self, numbers: Sequence[int], at: int) -> tuple[int, int]:
        """Those at the front of the first row if the identifiers from `at` on are theirs: first offset, how many."""
        if not self._rows or self._rows[0][0] != numbers[at]:
            return 0, 0
        first, some, offset = self._rows[0]
        count = min(some, len(numbers) - at)
        expected, found = range(first, first + count), numbers[at : at + count]
        if found != (expected if isinstance(found, range) else tuple(expected)):
            return 0, 0
        if count == some:
            del self._rows[0]
        else:
            self._rows[0] = first + count, some - count, offset + count
        self._count -= count
        return offset, count

    def _write_out(self) -> None:
        for first, count, offset in self._rows:
            self._single.update(zip(range(first, first + count), range(offset, offset + count), strict=True))
        self._rows.clear()
        self._count = 0


def _whole(offset: int) -> Flight:
    return Flight(Item(offset, b"", b"", NO_EXTRA, 1))
