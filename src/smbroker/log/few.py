"""Few rows as a message of the tail, made without Arrow, whose builders cost more than so few rows do.

The bytes are those that `arrays` and `format` give (tests compare them). What is rare (properties, some clients
without a name) is left to Arrow. It is work of some 0.2 ms that needs the interpreter; where nobody waits for it,
others may have that in between (`breathe`).
"""

from array import array
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from itertools import accumulate, chain
from typing import NamedTuple

from smbroker.log.arrays import KINDS, same_extra, stamps, text, together
from smbroker.log.format import PLAIN_ROWS, Frame, stamped
from smbroker.log.layout import message
from smbroker.model.message import Columns, Extra, Kind, Origin

MOST_ROWS = PLAIN_ROWS  # about where Arrow is as fast
MOST_BYTES = 256 << 10  # of topics and payloads

_NOTHING = b""


class Column(NamedTuple):
    buffers: tuple[bytes, ...]
    nulls: int = 0


def go_on() -> None:
    """Without a pause."""


def encoded(
    turns: Sequence[Columns], base: int, tail: int, breathe: Callable[[], None] = go_on
) -> tuple[bytearray, int, int] | None:
    """One append without notes as a message, the number of its rows and the least ts; None: it is one for Arrow."""
    group = [columns for columns in turns if len(columns)]
    rows = sum(map(len, group))
    if not rows or rows > MOST_ROWS or sum(columns.bytes + columns.topic_bytes for columns in group) > MOST_BYTES:
        return None
    breathe()
    extra, origins = same_extra(group), _origins(together([columns.origins for columns in group]))
    if extra is None or origins is None:
        return None
    breathe()
    columns: list[Column] = []
    for some in _columns(group, base, rows, origins, extra):
        columns += some
        breathe()
    nodes = [*((rows, column.nulls) for column in columns), *_NO_NODES]
    buffers = chain(chain.from_iterable(column.buffers for column in columns), _NO_PROPERTIES)
    times = list(chain.from_iterable(one.times for one in group))
    breathe()
    header, pieces, frame = message(nodes, buffers, Frame(base, tail, min(times), max(times), rows), packed=False)
    breathe()
    joined = bytearray().join((header, *pieces))
    breathe()
    return stamped(joined, frame), rows, frame.first_ts


def _columns(group: list[Columns], base: int, rows: int, origins: list[Column], extra: Extra) -> Iterator[list[Column]]:
    """All of them, some at a time."""
    yield [Column((_NOTHING, array("q", range(base, base + rows)).tobytes()))]
    yield [Column((_NOTHING, stamps(group))), _strings(together([one.topics for one in group]))]
    yield [_strings(together([one.payloads for one in group]))]
    yield [
        _kinds(together([one.kinds for one in group])),
        *origins,
        Column((_NOTHING, (b"\xff" if extra.retain else b"\0") * ((rows + 7) // 8))),
        Column((_NOTHING, extra.qos.to_bytes(4, "little") * rows)),
        Column((_NOTHING, bytes(4 * (rows + 1)))),
    ]


def _strings(values: list[bytes]) -> Column:
    rows, size = len(values), len(values[0])
    if values.count(values[0]) == rows:
        return _same(values[0], rows)
    alike = set(map(len, values)) == {size}
    ends = _ends(size)[: 4 * (rows + 1)] if alike else array("i", accumulate(map(len, values), initial=0)).tobytes()
    return Column((_NOTHING, ends, b"".join(values)))


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
_NO_NODES = ((0, 0),) * 3
