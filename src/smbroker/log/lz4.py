"""LZ4 frames of values that repeat, written down without the bytes that they stand for.

A column that is the same in every row shrinks to almost nothing, but to find that out a compressor has to be given all
of it. Here it is known. A frame (its format and that of blocks are LZ4's own) has one block:

    magic │ 60 70 73                                │ length of the block │ block │ 00 00 00 00
    4     │ blocks of up to 4 MiB, without checksum │ 4, little endian    │       │ end

and a block is a row of sequences, of which the last has literals alone:

    token: literals (4 bits), match - 4 (4 bits) │ more of the first │ literals │ how far back │ more of the second
"""

from collections.abc import Sequence
from struct import Struct

HEAD = b"\x04\x22\x4d\x18\x60\x70\x73"
END = bytes(4)
MOST = 4 << 20  # bytes in a block
FARTHEST = 65_535  # that a match may be back
LAST_LITERALS, LAST_MATCH = 5, 12  # a block ends with so many literals, and no match begins so near to its end
LEAST_MATCH = 4
_LENGTH, _BACK = Struct("<I"), Struct("<H")


def repeated(runs: Sequence[tuple[bytes, int]]) -> bytes | None:
    """A frame of each value so many times, one after the other; None: it does not fit a block."""
    size = sum(len(value) * times for value, times in runs)
    if not 0 < size <= MOST or any(len(value) > FARTHEST for value, _ in runs):
        return None
    block = bytearray()
    literals = b""
    position = 0
    for value, times in runs:
        start, end = position + len(value), position + len(value) * times
        stop = min(end, size - LAST_LITERALS)
        if stop - start >= LEAST_MATCH and start <= size - LAST_MATCH:
            block += _sequence(literals + value, len(value), stop - start)
            begin = (stop - position) % len(value)
            literals = (value * (1 + LAST_LITERALS))[begin : begin + end - stop]
        else:
            literals += value * times
        position = end
    block += _sequence(literals)
    if len(block) > MOST:  # literals take a little more than they are
        return None
    return b"".join((HEAD, _LENGTH.pack(len(block)), block, END))


def _sequence(literals: bytes, back: int = 0, match: int = 0) -> bytes:
    count, rest = len(literals), max(match - LEAST_MATCH, 0)
    token = bytes([min(count, 15) << 4 | min(rest, 15)])
    if not match:
        return b"".join((token, _more(count), literals))
    return b"".join((token, _more(count), literals, _BACK.pack(back), _more(rest)))


def _more(count: int) -> bytes:
    """What of a length does not fit its half of the token."""
    if count < 15:
        return b""
    whole, last = divmod(count - 15, 255)
    return b"\xff" * whole + bytes([last])
