"""What the broker and the process that reads history say to each other: see `smbroker.log.history`.

Apart from it, so that the broker need not import what only reading needs. Each question has the number of
a reading; one that goes on where the answer before it stopped (`after`) does not begin anew.
"""

import pickle
from dataclasses import dataclass, replace
from enum import Enum
from typing import TypeAlias

from smbroker.model.filter import Filter
from smbroker.model.message import Columns
from smbroker.model.rights import Permit
from smbroker.model.topic import Topic

LENGTH = 4  # bytes before each packet
NOBODY = -1  # the reading of the first answer, which says that the process runs
BACKWARDS = 4_000  # offsets that are looked through at first when reading backwards; then ever more
MOST_BACKWARDS = 2_000_000


class Form(Enum):
    LINES = "lines"  # a JSON object per line
    EVENTS = "events"  # server-sent events
    SHORT = "short"  # as LINES, of long payloads the beginning alone, with `size`, their bytes


# --- questions ---


@dataclass(frozen=True, slots=True)
class Request:
    """Messages as columns."""

    reading: int
    start: int
    end: int
    topics: frozenset[Topic] | None  # None: all
    filters: frozenset[Filter] = frozenset()  # instead of topics; then with qos, retain and properties

    def after(self, answer: "Piece") -> "Request | None":
        return replace(self, start=answer.next) if answer.next < self.end else None


@dataclass(frozen=True, slots=True)
class Search:
    """Messages as JSON, in the form in which they leave the broker."""

    reading: int
    start: int
    end: int
    filter: Filter | None  # None: all
    most: int
    form: Form
    permit: Permit | None = None  # what may be shown; None: all

    def after(self, answer: "Found") -> "Search | None":
        if answer.next >= self.end or answer.rows >= self.most:
            return None
        return replace(self, start=answer.next, most=self.most - answer.rows)


@dataclass(frozen=True, slots=True)
class Backwards:
    """Where the last `most` messages of [start, end) begin; step by step (`first_step`, `after`) in a long log."""

    reading: int
    start: int
    end: int
    filter: Filter | None
    most: int
    permit: Permit | None = None
    first: int = 0  # how far back it goes with `after`

    @classmethod
    def first_step(
        cls, reading: int, first: int, end: int, wanted: Filter | None, most: int, permit: Permit | None
    ) -> "Backwards":
        return cls(reading, max(first, end - BACKWARDS), end, wanted, most, permit, first)

    def after(self, answer: "Place") -> "Backwards | None":
        """The next step; None if the answer tells the place."""
        if answer.rows >= self.most or self.start <= self.first:
            return None
        size = min(2 * (self.end - self.start), MOST_BACKWARDS)
        return replace(self, start=max(self.first, self.start - size), end=self.start, most=self.most - answer.rows)


@dataclass(frozen=True, slots=True)
class Moment:
    """The first offset of that time (microseconds since 1970 UTC) or later."""

    reading: int
    ts: int


@dataclass(frozen=True, slots=True)
class Count:
    """Go on with the census of topics, one step towards `end`; it remembers at most `most`."""

    reading: int
    end: int
    most: int


@dataclass(frozen=True, slots=True)
class GivenUp:
    """Instead of a question that ended the process: where to go on after what stands at `start`."""

    reading: int
    start: int


@dataclass(frozen=True, slots=True)
class Wanted:
    """Which topics of the census, and how much of each."""

    search: str = ""  # that the topic holds, in any case
    since: int = 0  # whose last message is at this offset or later
    most: int | None = None
    characters: int | None = None  # of the last text
    busiest: bool = False  # by count, the largest first; else by name
    permit: Permit | None = None  # what may be shown; None: all


@dataclass(frozen=True, slots=True)
class Roll:
    """The census, piece by piece, as the items of a JSON list."""

    reading: int
    wanted: Wanted = Wanted()
    piece: int = 0

    def after(self, answer: "Found") -> "Roll | None":
        return replace(self, piece=answer.next) if answer.next else None


# --- answers ---


@dataclass(frozen=True, slots=True)
class Piece:
    reading: int
    next: int  # where to go on; the request's end when there is no more
    offsets: list[int]
    columns: Columns


@dataclass(frozen=True, slots=True)
class Found:
    reading: int
    next: int  # where to go on
    rows: int
    data: bytes


@dataclass(frozen=True, slots=True)
class Place:
    reading: int
    offset: int
    rows: int = 0


@dataclass(frozen=True, slots=True)
class Failed:
    reading: int
    code: str
    text: str
    next: int  # where reading can go on


Question: TypeAlias = Request | Search | Backwards | Moment | Count | Roll | GivenUp
Answer: TypeAlias = Piece | Found | Place | Failed


def packet(thing: Question | Answer) -> bytes:
    data = pickle.dumps(thing, protocol=pickle.HIGHEST_PROTOCOL)
    return len(data).to_bytes(LENGTH, "big") + data
