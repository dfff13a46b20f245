"""What the broker and the process that reads history say to each other: see `smbroker.log.history`.

Apart from it, so that the broker need not import what only reading needs.
"""

import pickle
from dataclasses import dataclass

from smbroker.model.message import Columns
from smbroker.model.topic import Topic

LENGTH = 4  # bytes before each packet


@dataclass(frozen=True, slots=True)
class Request:
    reading: int  # requests with the same number go on with one another
    start: int
    end: int
    topics: frozenset[Topic] | None  # None: all


@dataclass(frozen=True, slots=True)
class Piece:
    reading: int
    next: int  # where to go on; the request's end when there is no more
    offsets: list[int]
    columns: Columns


@dataclass(frozen=True, slots=True)
class Failed:
    reading: int
    code: str
    text: str
    next: int  # where reading can go on


def packet(thing: Request | Piece | Failed) -> bytes:
    data = pickle.dumps(thing, protocol=pickle.HIGHEST_PROTOCOL)
    return len(data).to_bytes(LENGTH, "big") + data
