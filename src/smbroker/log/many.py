"""Many rows as a message of the tail: Arrow makes the columns, and their buffers are written from where they are.

In a batch of many short rows a buffer is compressed if a look at its beginning promises that it pays: columns that
are the same in every row shrink to nothing, while counters and most short payloads would only cost time. Payloads that
are long are most of what there is, and are written as they are.
"""

from collections.abc import Iterator
from struct import Struct

import pyarrow as pa

from smbroker.log.format import LONG_ROW, PLAIN_ROWS, Frame
from smbroker.log.layout import NOTHING, Buffer, Message, Node, Piece, message

_CODEC = pa.Codec("lz4")
LENGTH = Struct("<q")
AS_IT_IS = LENGTH.pack(-1)  # instead of the length, before a buffer that is not compressed
LOOK = 2_048  # bytes of a buffer that tell whether it is worth it
WORTH = 0.75  # of them, compressed


def laid_out(batch: pa.RecordBatch, frame: Frame) -> Message:
    packed = batch.num_rows > PLAIN_ROWS and batch.nbytes <= LONG_ROW * batch.num_rows
    nodes: list[Node] = []
    buffers: list[Buffer] = []
    for column in batch.columns:
        nodes += _nodes(column)
        buffers += map(_packed, _buffers(column)) if packed else _buffers(column)
    return message(nodes, buffers, frame, packed)


def _nodes(column: pa.Array) -> Iterator[Node]:
    yield len(column), column.null_count
    if isinstance(column, pa.ListArray):
        yield from _nodes(column.values)
    elif isinstance(column, pa.StructArray):
        for place in range(column.type.num_fields):
            yield from _nodes(column.field(place))


def _buffers(column: pa.Array) -> Iterator[memoryview]:
    """Those of the column and of what is in it, no longer than they need be."""
    kind, rows = column.type, len(column)
    own = column.buffers()
    yield memoryview(own[0])[: (rows + 7) // 8] if column.null_count else _NO_BUFFER
    if isinstance(column, pa.StructArray):
        for place in range(kind.num_fields):
            yield from _buffers(column.field(place))
    elif isinstance(column, pa.ListArray):
        yield _ends(own[1], rows)
        yield from _buffers(column.values)
    elif pa.types.is_string(kind) or pa.types.is_binary(kind):
        ends = _ends(own[1], rows)
        yield ends
        yield memoryview(own[2] or b"")[: ends.cast("i")[-1]]
    else:
        yield memoryview(own[1])[: (rows * kind.bit_width + 7) // 8]


_NO_BUFFER = memoryview(NOTHING)


def _ends(buffer: pa.Buffer, rows: int) -> memoryview:
    return memoryview(buffer).cast("B")[: 4 * (rows + 1)]


def _packed(buffer: memoryview) -> Buffer:
    if not buffer:
        return buffer
    return compressed(buffer) if pays(buffer) else (AS_IT_IS, buffer)


def pays(buffer: Piece) -> bool:
    """Whether to compress it; what is short is not looked at."""
    return len(buffer) <= LOOK or len(_CODEC.compress(buffer[:LOOK], asbytes=True)) <= WORTH * LOOK


def compressed(buffer: Piece) -> Buffer:
    return LENGTH.pack(len(buffer)), _CODEC.compress(buffer, asbytes=True)
