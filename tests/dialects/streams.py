"""Wire cases of dialects that speak TCP, in the notation of `wire`.

    [[tail]]                         a command that may follow any other
    name = "a ping"
    bytes = '{64:Ping}'
    gives = ["answer '{64:Pong}'"]

    [[stream]]                       what a decoder makes of a connection's bytes
    name = "a pong"
    bytes = '{64:Pong}'
    gives = ["alive"]                and perhaps, after these, error = "code"
    held = 0                         bytes that wait for more, if any do

Such a case is decoded whole, byte by byte, and with the tail after it (unless it waits for more).
Where it matters how much has come at a time, the case says so and is decoded just like that:
    pieces = ['{64:Po', 'ng}']       instead of bytes

In `gives`, `{64:Pong}` and `{300*x}` are written out.
"""

import re
from collections.abc import Callable, Iterable
from itertools import pairwise
from typing import Any, Protocol, TypeVar

from dialects.wire import PIECE, Case, shown, wire_bytes
from smbroker.model.errors import ProtocolError

T = TypeVar("T", covariant=True)


class StreamDecoder(Protocol[T]):
    def feed(self, data: bytes) -> None: ...
    def next(self) -> T | None: ...
    @property
    def held(self) -> int: ...


def decoded(decoder: StreamDecoder[T], pieces: Iterable[bytes]) -> tuple[list[T], str | None]:
    """What the pieces give, fed one after the other, and the code of the error that ended it, if one did."""
    found: list[T] = []
    try:
        for piece in pieces:
            decoder.feed(piece)
            while (one := decoder.next()) is not None:
                found.append(one)
    except ProtocolError as error:
        return found, error.code
    return found, None


def one_by_one(data: bytes) -> list[bytes]:
    return [data[at : at + 1] for at in range(len(data))]


def cut(data: bytes, places: Iterable[int]) -> list[bytes]:
    """The data in pieces; a place beyond the end wraps round."""
    edges = sorted({0, len(data), *(place % (len(data) + 1) for place in places)})
    return [data[start:end] for start, end in pairwise(edges)]


def check_stream(
    case: Case, make_decoder: Callable[[], StreamDecoder[Any]], tail: Case, show: Callable[[Any], str] = shown
) -> None:
    expected, error = _expected(case)

    def check(pieces: list[bytes], expected: list[str], held: int) -> None:
        decoder = make_decoder()
        found, found_error = decoded(decoder, pieces)
        assert ([show(one) for one in found], found_error) == (expected, error)
        if error is None:
            assert decoder.held == held

    held = case.data.get("held", 0)
    if "pieces" in case.data:
        check([wire_bytes(piece) for piece in case.data["pieces"]], expected, held)
        return
    data = case.bytes()
    check([data], expected, held)
    check(one_by_one(data), expected, held)
    if not held:
        after = [] if error else _expected(tail)[0]
        check([data + tail.bytes()], expected + after, 0)
        check([data, tail.bytes()], expected + after, 0)


def _expected(case: Case) -> tuple[list[str], str | None]:
    return [PIECE.sub(_written_out, text) for text in case.data["gives"]], case.data.get("error")


def _written_out(piece: re.Match[str]) -> str:
    count, how, inner = int(piece[1]), piece[2], piece[3]
    return inner * count if how == "*" else inner.ljust(count)
