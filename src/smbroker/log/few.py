"""Few rows as a message of the tail, made without Arrow, whose builders cost more than so few rows do.

The bytes are those that `arrays` and `format` give (tests compare them), but never compressed. What is rare
(properties, some clients without a name) is left to Arrow. It is work of 0.1 ms and more that needs the interpreter;
where nobody waits for it, others may have that in between (`breathe`), and then it is done so for more rows.
"""

from array import array
from collections.abc import Callable, Sequence
from functools import lru_cache
from itertools import accumulate, chain
from typing import NamedTuple

from smbroker.log.arrays import KINDS, same_extra, stamps, text, times_of, together
from smbroker.log.format import PLAIN_ROWS, Frame, stamped
from smbroker.log.layout import NO_PROPERTIES, NO_PROPERTY_NODES, NOTHING, Piece, message
from smbroker.model.message import Columns, Kind, Origin

SOON_ROWS, SOON_BYTES = PLAIN_ROWS, 256 << 10  # rows, and of what may be long: about where Arrow is as fast
MOST_ROWS, MOST_BYTES = 4_000, 512 << 10  # with breaths; Arrow has none: who comes meanwhile waits for all of it


class Column(NamedTuple):
    buffers: tuple[Piece, ...]
    nulls: int = 0


def go_on() -> None:
    """Without a pause."""


def encoded(
    turns: Sequence[Columns], base: int, tail: int, breathe: Callable[[], None] = go_on
) -> tuple[bytearray, int, int] | None:
    """One append without notes as a message, the number of its rows and the least ts; None: it is one for Arrow."""
    group = [columns for columns in turns if len(columns)]
    rows, size = sum(map(len, group)), sum(columns.volume for columns in group)
    most_rows, most_bytes = (SOON_ROWS, SOON_BYTES) if breathe is go_on else (MOST_ROWS, MOST_BYTES)
    if not rows or rows > most_rows or size > most_bytes:
        return None
    breathe()
    extra, origins = same_extra(group), _origins(together([columns.origins for columns in group]), breathe)
    if extra is None or origins is None:
        return None
    breathe()
    columns = [Column((NOTHING, _offsets(base, rows))), Column((NOTHING, stamps(group)))]
    columns.append(_alike(together([one.topics for one in group])))
    breathe()
    columns.append(_strings(together([one.payloads for one in group])))
    breathe()
    columns += [
        _kinds(together([one.kinds for one in group])),
        *origins,
        Column((NOTHING, (b"\xff" if extra.retain else b"\0") * ((rows + 7) // 8))),
        Column((NOTHING, extra.qos.to_bytes(4, "little") * rows)),
        Column((NOTHING, bytes(4 * (rows + 1)))),
    ]
    breathe()
    nodes = [*((rows, column.nulls) for column in columns), *NO_PROPERTY_NODES]
    buffers = chain(chain.from_iterable(column.buffers for column in columns), NO_PROPERTIES)
    header, body, frame = message(nodes, buffers, Frame(base, tail, *times_of(group), rows), packed=False)
    breathe()
    joined = bytearray().join((header, *body))
    breathe()
    return stamped(joined, frame), rows, frame.first_ts


def _offsets(base: int, rows: int) -> bytes | bytearray:
    """Counted by bytes: an int for each would take ten times as long."""
    low = base & 0xFFFF
    if low + rows > 1 << 16:
        return array("q", range(base, base + rows)).tobytes()
    found = bytearray((base - low).to_bytes(8, "little") * rows)
    found[0::8], found[1::8] = (digits[low : low + rows] for digits in _digits())
    return found


@lru_cache(maxsize=1)
def _digits() -> tuple[bytes, bytes]:
    """The two low bytes of the numbers that have no others."""
    return bytes(range(256)) * 256, b"".join(bytes([high]) * 256 for high in range(256))


def _alike(values: list[bytes]) -> Column:
    """As `_strings`, of such as may well be all the same."""
    return _same(values[0], len(values)) if values.count(values[0]) == len(values) else _strings(values)


def _strings(values: list[bytes]) -> Column:
    rows, size = len(values), len(values[0])
    alike = set(map(len, values)) == {size}
    ends = _ends(size)[: 4 * (rows + 1)] if alike else array("i", accumulate(map(len, values), initial=0)).tobytes()
    return Column((NOTHING, ends, b"".join(values)))


def _same(value: bytes, rows: int) -> Column:
    """The string in every row."""
    return Column((NOTHING, _ends(len(value))[: 4 * (rows + 1)], value * rows))


@lru_cache(maxsize=64)
def _ends(size: int) -> bytes:
    """Where strings end that are all as long."""
    return array("i", range(0, size * MOST_ROWS + 1, size) if size else [0] * (MOST_ROWS + 1)).tobytes()


def _kinds(kinds: list[Kind]) -> Column:
    if kinds.count(kinds[0]) == len(kinds):
        return _same(KINDS[kinds[0]], len(kinds))
    return _strings([KINDS[kind] for kind in kinds])


def _origins(origins: list[Origin], breathe: Callable[[], None]) -> list[Column] | None:
    """The columns dialect, source and client; None if some clients have a name and some have none."""
    rows = len(origins)
    no_client = Column((bytes((rows + 7) // 8), bytes(4 * (rows + 1)), NOTHING), rows)
    if origins.count(origins[0]) == rows:
        one = origins[0]
        known = [_same(one.dialect.encode(), rows), _same(text(one.source), rows)]
        return [*known, no_client if one.client is None else _same(text(one.client), rows)]
    numbers = list(map(id, origins))
    each = dict(zip(numbers, origins, strict=True))
    clients = {number: text(one.client) for number, one in each.items() if one.client is not None}
    if clients and len(clients) < len(each):
        return None
    breathe()
    found = []
    for names in ([one.dialect.encode() for one in each.values()], [text(one.source) for one in each.values()]):
        found.append(_alike(list(map(dict(zip(each, names, strict=True)).__getitem__, numbers))))
        breathe()
    return [*found, _strings(list(map(clients.__getitem__, numbers))) if clients else no_client]
