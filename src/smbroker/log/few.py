"""Few rows as a message of the tail, made without Arrow, whose builders cost more than so few rows do.

The bytes are those that `arrays` and `format` give (tests compare them). The header of a record batch always has
the same fields at the same places, so it is taken from one that Arrow made and only its numbers are filled in:

    the batch: rows · each column: rows, nulls · each buffer: where it begins, length · the length of all buffers

What is rare (properties, some clients without a name) is left to Arrow.
"""

from array import array
from collections.abc import Sequence
from functools import lru_cache
from itertools import accumulate, chain
from struct import Struct
from typing import NamedTuple

from smbroker.log.arrays import KINDS, batches_of, same_extra, stamps, text, together
from smbroker.log.format import PLAIN_ROWS, PREFIX, Frame, encode, stamped
from smbroker.model.message import Columns, Dialect, Kind, Origin

MOST_ROWS = PLAIN_ROWS  # about where Arrow is as fast
MOST_BYTES = 256 << 10  # of topics and payloads

_NOTHING = b""
_NUMBER, _SHORT_NUMBER, _SIGNED, _FIELD = Struct("<q"), Struct("<I"), Struct("<i"), Struct("<H")
_PADDING = [bytes(-size % 8) for size in range(8)]


class Column(NamedTuple):
    buffers: tuple[bytes, ...]
    nulls: int = 0


def encoded(turns: Sequence[Columns], base: int, tail: int) -> tuple[bytearray, int, int] | None:
    """One append without notes as a message, the number of its rows and the least ts; None: it is one for Arrow."""
    group = [columns for columns in turns if len(columns)]
    rows = sum(map(len, group))
    if not rows or rows > MOST_ROWS or sum(columns.bytes + columns.topic_bytes for columns in group) > MOST_BYTES:
        return None
    extra, origins = same_extra(group), _origins(together([columns.origins for columns in group]))
    if extra is None or origins is None:
        return None
    times = list(chain.from_iterable(columns.times for columns in group))
    columns = [
        Column((_NOTHING, array("q", range(base, base + rows)).tobytes())),
        Column((_NOTHING, stamps(group))),
        _strings(together([one.topics for one in group])),
        _strings(together([one.payloads for one in group]), alike=False),
        _kinds(together([one.kinds for one in group])),
        *origins,
        Column((_NOTHING, (b"\xff" if extra.retain else b"\0") * ((rows + 7) // 8))),
        Column((_NOTHING, extra.qos.to_bytes(4, "little") * rows)),
        Column((_NOTHING, bytes(4 * (rows + 1)))),
    ]
    frame = Frame(base, tail, min(times), max(times), rows)
    return _message(columns, frame), rows, frame.first_ts


def _strings(values: list[bytes], alike: bool = True) -> Column:
    """`alike`: they may well all be equal."""
    if alike and values.count(values[0]) == len(values):
        return _same(values[0], len(values))
    return Column((_NOTHING, array("i", accumulate(map(len, values), initial=0)).tobytes(), b"".join(values)))


def _same(value: bytes, rows: int) -> Column:
    """The string in every row."""
    return Column((_NOTHING, _ends(len(value))[: 4 * (rows + 1)], value * rows))


@lru_cache(maxsize=64)
def _ends(size: int) -> bytes:
    """Where strings end that are all as long."""
    return array("i", range(0, size * MOST_ROWS + 1, size) if size else [0] * (MOST_ROWS + 1)).tobytes()


def _kinds(kinds: list[Kind]) -> Column:
    if kinds.count(kinds[0]) == len(kinds):
        return _same(KINDS[kinds[0]], len(kinds))
    return _strings([KINDS[kind] for kind in kinds])


def _origins(origins: list[Origin]) -> list[Column] | None:
    """The columns dialect, source and client; None if some clients have a name and some have none."""
    rows = len(origins)
    no_client = Column((bytes((rows + 7) // 8), bytes(4 * (rows + 1)), _NOTHING), rows)
    if origins.count(origins[0]) == rows:
        one = origins[0]
        known = [_same(one.dialect.encode(), rows), _same(text(one.source), rows)]
        return [*known, no_client if one.client is None else _same(text(one.client), rows)]
    clients = [text(one.client) for one in origins if one.client is not None]
    if clients and len(clients) < rows:
        return None
    known = [_strings([one.dialect.encode() for one in origins]), _strings([text(one.source) for one in origins])]
    return [*known, _strings(clients) if clients else no_client]


_NO_PROPERTIES = (_NOTHING, _NOTHING, bytes(4), _NOTHING, _NOTHING, bytes(4), _NOTHING)  # keys and values of no pair
_NO_NODES = (0,) * 6


def _message(columns: list[Column], frame: Frame) -> bytearray:
    template = _template()
    parts, position = [template.header], 0
    numbers: list[int] = []
    for buffer in chain(chain.from_iterable(column.buffers for column in columns), _NO_PROPERTIES):
        size = len(buffer)
        numbers += position, size
        if size:
            parts += buffer, _PADDING[size & 7]
            position += size + (-size & 7)
    message = bytearray().join(parts)
    _NUMBER.pack_into(message, template.rows, frame.rows)
    _NUMBER.pack_into(message, template.body, position)
    nodes = chain.from_iterable((frame.rows, column.nulls) for column in columns)
    template.node_numbers.pack_into(message, template.nodes, *nodes, *_NO_NODES)
    template.buffer_numbers.pack_into(message, template.buffers, *numbers)
    return stamped(message, frame._replace(length=len(message)))


class _Template(NamedTuple):
    header: bytes
    rows: int  # where its numbers stand
    body: int
    nodes: int
    node_numbers: Struct
    buffers: int
    buffer_numbers: Struct


@lru_cache(maxsize=1)
def _template() -> _Template:
    """From a batch of Arrow's, whose tables are those of its Message.fbs; with a row, since zeros are left out."""
    (batch,) = batches_of([Columns(1, [b"t"], [b"p"], [Kind.BYTES], [Origin(Dialect.HTTP)])], 0)
    message = bytes(encode(batch.rows, Frame(0, 1, 1, 1, 1)))
    header = message[: PREFIX + _SHORT_NUMBER.unpack_from(message, 4)[0]]
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
