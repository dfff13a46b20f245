"""From the turn's columns to Arrow record batches, without an object per message.

Arrow builds a column from a list of bytes faster than joined buffers can be made in Python (some 70 µs
against 230 µs for 2,000 payloads on a busy machine); a column that is the same in every row costs next
to nothing. Offsets into a column are 32 bits wide, so batches are cut long before 2 GiB.
"""

from array import array
from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import accumulate, chain
from typing import NamedTuple, TypeVar

import pyarrow as pa
import pyarrow.compute as pc

from smbroker.log.format import LONG_ROW, SCHEMA
from smbroker.model.errors import LogError
from smbroker.model.message import NO_EXTRA, Columns, Extra, Kind, Origin, Wire

T = TypeVar("T")

MAX_ROWS = 65_536  # of one record batch; a reader decodes at least one
MAX_BYTES = 64 << 20  # of what may be long in one record batch, unless one message alone has more
MAX_MESSAGE = 1 << 30  # bytes of one: a column's 32-bit offsets must hold it

# Types and options once for all: to make them costs as much as to make a small column.
_INT64, _INT32, _BOOL, _STRING, _BINARY = pa.int64(), pa.int32(), pa.bool_(), pa.string(), pa.binary()
_TS, _PROPERTIES = SCHEMA.field("ts").type, SCHEMA.field("properties").type
_PROPERTY = _PROPERTIES.value_type
KINDS = {kind: kind.name.lower().encode() for kind in Kind}
_NO_PROPERTIES = pa.nulls(0, _PROPERTY)
_FEW_ROWS = 1_024
_FEW_OFFSETS = 100  # Python counts these faster than Arrow adds


class Batch(NamedTuple):
    rows: pa.RecordBatch
    first_ts: int  # least and greatest; both 0 without rows
    last_ts: int


def batches_of(turns: Sequence[Columns], base: int) -> Iterator[Batch]:
    """All rows of the turns, in order, the first at offset `base`; at least one batch, if only an empty one."""
    for group, rows in groups_of(turns):
        yield batch_of(group, rows, base)
        base += rows


def groups_of(turns: Sequence[Columns]) -> Iterator[tuple[list[Columns], int]]:
    """What goes into one record batch, and its rows; at least one, if only an empty one."""
    group: list[Columns] = []
    rows = size = 0
    for piece, length in chain.from_iterable(map(_pieces, turns)):
        if group and (rows + len(piece) > MAX_ROWS or size + length > MAX_BYTES):
            yield group, rows
            group, rows, size = [], 0, 0
        group.append(piece)
        rows += len(piece)
        size += length
    yield group, rows


def _pieces(columns: Columns) -> Iterator[tuple[Columns, int]]:
    """The columns with their bytes, cut where they would not fit one batch."""
    size = columns.volume
    if len(columns) <= MAX_ROWS and size <= MAX_BYTES:
        if len(columns):
            yield columns, size
        return
    start = size = 0
    for row in range(len(columns)):
        length = columns.volume_at(row)
        if length > MAX_MESSAGE:
            raise LogError("too_large", f"a message of {length} bytes is more than the log can hold ({MAX_MESSAGE})")
        if row > start and (row - start == MAX_ROWS or size + length > MAX_BYTES):
            yield _slice(columns, start, row), size
            start, size = row, 0
        size += length
    yield _slice(columns, start, len(columns)), size


def _slice(columns: Columns, start: int, end: int) -> Columns:
    return Columns(
        columns.received,
        columns.topics[start:end],
        columns.payloads[start:end],
        columns.kinds[start:end],
        columns.origins[start:end],
        {row - start: extra for row, extra in columns.extras.items() if start <= row < end},
        stamps=columns.stamps[start:end],
    )


def batch_of(group: list[Columns], rows: int, base: int) -> Batch:
    if not rows:
        return Batch(EMPTY, *times_of(group))
    arrays = [
        offsets(base, rows),
        _fixed(_TS, rows, stamps(group)),
        _topics(group, rows),
        _payloads(group, rows),
        _kinds([piece.kinds for piece in group], rows),
        *_origins(group, rows),
        *_extras(group, rows),
    ]
    return Batch(pa.RecordBatch.from_arrays(arrays, schema=SCHEMA), *times_of(group))


def times_of(group: Sequence[Columns]) -> tuple[int, int]:
    """Least and greatest ts; both 0 without rows."""
    times = [piece.times for piece in group]
    return (min(first for first, _ in times), max(last for _, last in times)) if times else (0, 0)


EMPTY = pa.RecordBatch.from_arrays([pa.nulls(0, field.type) for field in SCHEMA], schema=SCHEMA)


def _fixed(kind: pa.DataType, rows: int, data: "bytes | array[int]") -> pa.Array:
    return pa.Array.from_buffers(kind, rows, [None, pa.py_buffer(data)])


def offsets(base: int, rows: int) -> pa.Array:
    """The column offset."""
    if rows < _FEW_OFFSETS:
        return _fixed(_INT64, rows, array("q", range(base, base + rows)))
    return pc.add(_counted()[:rows], pa.scalar(base, _INT64))


@lru_cache(maxsize=1)
def _counted() -> pa.Array:
    return pa.array(range(MAX_ROWS), _INT64)


def stamps(group: list[Columns]) -> bytes:
    """The column ts."""
    return b"".join(
        [one.stamps.tobytes() if one.stamps else one.received.to_bytes(8, "little") * len(one) for one in group]
    )


def together(lists: list[list[T]]) -> list[T]:
    return lists[0] if len(lists) == 1 else list(chain.from_iterable(lists))


def _alike(lists: list[list[T]]) -> bool:
    """All values are the same; lists are not empty."""
    one = lists[0][0]
    return all(some.count(one) == len(some) for some in lists)


def _topics(group: list[Columns], rows: int) -> pa.Array:
    only = {piece.topic for piece in group}
    one = only.pop()
    if not only and one is not None:
        return _same(one, rows)
    if runs := _runs(group):
        return _joined([_same(piece.topics[run.first], run.end - run.first) for piece, run in runs])
    return _strings(together([piece.topics for piece in group]))


def _runs(group: list[Columns]) -> list[tuple[Columns, Wire]]:
    """Rows that came together, if all did."""
    found = [(piece, run) for piece in group for run in piece.runs]
    return found if all(piece.runs for piece in group) else []


def _joined(arrays: list[pa.Array]) -> pa.Array:
    return arrays[0] if len(arrays) == 1 else pa.concat_arrays(arrays)


def _payloads(group: list[Columns], rows: int) -> pa.Array:
    """Where they came as packets of equal length they are cut out of those, all at once."""
    sizes = {piece.size for piece in group}
    size = sizes.pop()
    if sizes or not 0 < size <= LONG_ROW:
        return pa.array(together([piece.payloads for piece in group]), _BINARY)
    cut = [_cut(wire) for piece in group for wire in piece.wires]
    data = _joined(cut).buffers()[1]
    return pa.Array.from_buffers(_BINARY, rows, [None, ends_of(size, rows), data])


def _cut(wire: Wire) -> pa.Array:
    count = wire.end - wire.first
    length = len(wire.packets) // count
    packets = pa.Array.from_buffers(pa.binary(length), count, [None, pa.py_buffer(wire.packets)])
    return pc.binary_slice(packets, length - wire.size, length)


def _strings(values: Sequence[bytes]) -> pa.Array:
    """As a string column: the bytes are UTF-8 already."""
    return pa.Array.from_buffers(_STRING, len(values), pa.array(values, _BINARY).buffers())


def _same(value: bytes, rows: int) -> pa.Array:
    """The string in every row."""
    return pa.Array.from_buffers(_STRING, rows, [None, ends_of(len(value), rows), pa.py_buffer(value * rows)])


def ends_of(length: int, rows: int) -> pa.Buffer:
    """Where the values of a column end if all have this length; of so many rows, or more."""
    return _ends(length, max(_FEW_ROWS, 1 << rows.bit_length()))


@lru_cache(maxsize=64)
def _ends(length: int, rows: int) -> pa.Buffer:
    return pa.py_buffer(array("i", range(0, length * rows + 1, length) if length else [0] * (rows + 1)))


def _kinds(lists: list[list[Kind]], rows: int) -> pa.Array:
    if _alike(lists):
        return _same(KINDS[lists[0][0]], rows)
    return _strings([KINDS[kind] for kind in together(lists)])


def text(value: str) -> bytes:
    """UTF-8 for sure: a lone surrogate would make the column unreadable for others."""
    return value.encode("utf-8", "replace")


def _origins(group: list[Columns], rows: int) -> list[pa.Array]:
    """The columns dialect, source and client."""
    lists = [piece.origins for piece in group]
    if _alike(lists):
        return _from(lists[0][0], rows)
    if runs := _runs(group):
        each = [_from(piece.origins[run.first], run.end - run.first) for piece, run in runs]
        return [_joined(list(column)) for column in zip(*each, strict=True)]
    origins = together(lists)
    known = {origin: (origin.dialect.encode(), text(origin.source)) for origin in set(origins)}
    dialects = {dialect for dialect, _ in known.values()}
    clients = {origin.client: None if origin.client is None else text(origin.client).decode() for origin in known}
    return [
        _same(dialects.pop(), rows) if len(dialects) == 1 else _strings([known[origin][0] for origin in origins]),
        _strings([known[origin][1] for origin in origins]),
        pa.nulls(rows, _STRING)
        if clients.keys() == {None}
        else pa.array([clients[origin.client] for origin in origins], _STRING),
    ]


def _from(one: Origin, rows: int) -> list[pa.Array]:
    client = pa.nulls(rows, _STRING) if one.client is None else _same(text(one.client), rows)
    return [_same(one.dialect.encode(), rows), _same(text(one.source), rows), client]


def same_extra(group: Sequence[Columns]) -> Extra | None:
    """What all rows have, if they have no properties and are alike."""
    found: Extra | None = None
    for piece in group:
        extra = piece.same_extra
        if extra is None or extra.properties or (found is not None and extra is not found):
            return None
        found = extra
    return found or NO_EXTRA


def _extras(group: list[Columns], rows: int) -> list[pa.Array]:
    """The columns retain, qos and properties."""
    same = same_extra(group)
    if same is not None:
        return [
            pa.Array.from_buffers(
                _BOOL, rows, [None, pa.py_buffer((b"\xff" if same.retain else b"\0") * ((rows + 7) // 8))]
            ),
            _fixed(_INT32, rows, same.qos.to_bytes(4, "little") * rows),
            pa.Array.from_buffers(
                _PROPERTIES,
                rows,
                [None, pa.py_buffer(bytes(4 * (rows + 1)))],
                children=[_NO_PROPERTIES],
            ),
        ]
    extras = [piece.extras.get(row, NO_EXTRA) for piece in group for row in range(len(piece))]
    pairs = list(chain.from_iterable(extra.properties for extra in extras))
    ends = array("i", accumulate((len(extra.properties) for extra in extras), initial=0))
    properties = pa.StructArray.from_arrays(
        [_strings([text(pair[part]) for pair in pairs]) for part in (0, 1)],
        fields=list(_PROPERTY),
    )
    return [
        pa.array([extra.retain for extra in extras], _BOOL),
        pa.array([extra.qos for extra in extras], _INT32),
        pa.Array.from_buffers(_PROPERTIES, rows, [None, pa.py_buffer(ends)], children=[properties]),
    ]
