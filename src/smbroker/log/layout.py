"""A record batch as a message of the tail, laid out without Arrow's writer, which copies all of it, twice.

The header always has the same fields at the same places, so it is taken from one that Arrow made and only its
numbers are filled in:

    the batch: rows · each column: rows, nulls · each buffer: where it begins, length · the length of all buffers

A message is pieces, to be written one after the other: `few` makes small ones, `flood` those whose rows came together
and are alike, `many` the others.
"""

from collections.abc import Iterable
from functools import lru_cache
from itertools import chain
from struct import Struct
from typing import NamedTuple, TypeAlias

from smbroker.log.arrays import batches_of
from smbroker.log.format import PLAIN_ROWS, PREFIX, Frame, encode, stamped
from smbroker.model.message import Columns, Dialect, Kind, Origin

Piece: TypeAlias = bytes | bytearray | memoryview
Buffer: TypeAlias = Piece | tuple[Piece, ...]
Node: TypeAlias = tuple[int, int]  # rows and nulls of a column

NOTHING = b""
# the buffers of keys and values where no row has properties
NO_PROPERTIES = (NOTHING, NOTHING, bytes(4), NOTHING, NOTHING, bytes(4), NOTHING)
NO_PROPERTY_NODES: tuple[Node, ...] = ((0, 0),) * 3

_NUMBER, _SHORT_NUMBER, _SIGNED, _FIELD = Struct("<q"), Struct("<I"), Struct("<i"), Struct("<H")
_PADDING = [bytes(-size % 8) for size in range(8)]


class Message(NamedTuple):
    """A header without CHECK, the pieces of the body, and the frame that CHECK is made of."""

    header: bytearray
    body: list[Piece]
    frame: Frame

    def stamped(self) -> list[Piece]:
        """With CHECK."""
        return [stamped(self.header, self.frame, self.body), *self.body]


def message(nodes: Iterable[Node], buffers: Iterable[Buffer], frame: Frame, packed: bool) -> Message:
    """`frame.length` is filled in here.

    `packed`: as Arrow's format has it where some buffers may be compressed; each then begins with its length."""
    template = _template(packed)
    pieces: list[Piece] = []
    numbers: list[int] = []
    position = 0
    for buffer in buffers:
        size = sum(map(len, buffer)) if isinstance(buffer, tuple) else len(buffer)
        numbers += position, size
        if size:
            if isinstance(buffer, tuple):
                pieces += buffer
            else:
                pieces.append(buffer)
            if size & 7:
                pieces.append(_PADDING[size & 7])
            position += size + (-size & 7)
    header = bytearray(template.header)
    _NUMBER.pack_into(header, template.rows, frame.rows)
    _NUMBER.pack_into(header, template.body, position)
    template.node_numbers.pack_into(header, template.nodes, *chain.from_iterable(nodes))
    template.buffer_numbers.pack_into(header, template.buffers, *numbers)
    return Message(header, pieces, frame._replace(length=len(header) + position))


class _Template(NamedTuple):
    header: bytes
    rows: int  # where its numbers stand
    body: int
    nodes: int
    node_numbers: Struct
    buffers: int
    buffer_numbers: Struct


@lru_cache(maxsize=2)
def _template(packed: bool) -> _Template:
    """From a batch of Arrow's, whose tables are those of its Message.fbs; with rows, since zeros are left out."""
    rows = PLAIN_ROWS + 1 if packed else 1
    columns = Columns(1, [b"t"] * rows, [b"p"] * rows, [Kind.BYTES] * rows, [Origin(Dialect.HTTP)] * rows)
    (batch,) = batches_of([columns], 0)
    made = bytes(encode(batch.rows, Frame(0, 1, 1, 1, rows)))
    header = made[: PREFIX + _SHORT_NUMBER.unpack_from(made, 4)[0]]
    whole = _follow(header, PREFIX)
    content = _follow(header, _field(header, whole, 2))
    nodes, buffers = (_follow(header, _field(header, content, place)) for place in (1, 2))
    counts = [_SHORT_NUMBER.unpack_from(header, vector)[0] for vector in (nodes, buffers)]
    node_numbers, buffer_numbers = (Struct(f"<{2 * count}q") for count in counts)
    return _Template(
        header,
        _field(header, content, 0),
        _field(header, whole, 3),
        nodes + _SHORT_NUMBER.size,
        node_numbers,
        buffers + _SHORT_NUMBER.size,
        buffer_numbers,
    )


def _follow(header: bytes, position: int) -> int:
    """Where the offset that stands there leads to."""
    offset: int = _SHORT_NUMBER.unpack_from(header, position)[0]
    return position + offset


def _field(header: bytes, table: int, place: int) -> int:
    """Where a field of the table stands, by its place in the schema."""
    fields = table - _SIGNED.unpack_from(header, table)[0]
    offset: int = _FIELD.unpack_from(header, fields + 4 + 2 * place)[0]
    return table + offset
