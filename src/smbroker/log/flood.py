"""Rows that came as packets, many together, as a message of the tail: each run is of one topic and from one client.

What is the same in every row of a run is written down as LZ4 has it, without the rows (`lz4`), and payloads go from
their packets into the file without being joined first. So little of this needs the interpreter, which the event loop
wants at the same time. A few rows that came alone in between are runs of one. The rows are those that `arrays` gives
(tests compare them).
"""

from array import array
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from typing import NamedTuple, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from smbroker.log.arrays import KINDS, ends_of, offsets, same_extra, text
from smbroker.log.format import LONG_ROW, PLAIN_ROWS, Frame
from smbroker.log.layout import NO_PROPERTIES, NO_PROPERTY_NODES, NOTHING, Buffer, Message, Piece, message
from smbroker.log.lz4 import repeated
from smbroker.log.many import AS_IT_IS, LENGTH, compressed, pays
from smbroker.model.message import Columns, Kind, Origin
from smbroker.model.topic import Topic

Repeats: TypeAlias = list[tuple[bytes, int]]  # values, and how often each comes before the next one

LONG_RUN = 100  # rows of a run on average: each is some work, and Arrow is as quick with shorter ones
CUT = 4_096  # bytes; longer payloads are written one by one from where they are
FEW = 200  # rows of a run whose ends are counted one by one …
LONG = 1 << 20  # … or bytes of a value: there cannot be many
_INT32 = pa.int32()


class _Run(NamedTuple):
    ts: int
    topic: Topic
    packets: bytes  # of equal length, each with its payload at the end
    size: int  # of a payload
    kind: Kind
    origin: Origin
    rows: int

    @property
    def length(self) -> int:
        """Of a packet."""
        return len(self.packets) // self.rows


def laid_out(group: Sequence[Columns], frame: Frame) -> Message | None:
    """None: these rows are for Arrow."""
    rows = frame.rows
    if not rows or LONG_RUN * sum(len(piece.runs) or len(piece) for piece in group) > rows:
        return None
    extra = same_extra(group)
    runs = [run for piece in group for run in _runs_of(piece)]
    named = {run.origin.client is not None for run in runs}
    if extra is None or len(named) > 1:
        return None
    packed = rows > PLAIN_ROWS and sum(piece.volume for piece in group) <= LONG_ROW * rows
    form = _Packed() if packed else _Plain()
    no_client = [form.repeats([(b"\0", (rows + 7) // 8)]), form.repeats([(bytes(4), rows + 1)]), NOTHING]
    buffers = [
        *(NOTHING, form.as_it_is([memoryview(offsets(frame.base, rows).buffers()[1])[: 8 * rows]])),
        *(NOTHING, form.repeats([(run.ts.to_bytes(8, "little"), run.rows) for run in runs])),
        *form.strings([(run.topic, run.rows) for run in runs]),
        *(NOTHING, form.as_it_is(_ends([(run.size, run.rows) for run in runs])), form.payloads(_payloads(runs))),
        *form.strings([(KINDS[run.kind], run.rows) for run in runs]),
        *form.strings([(run.origin.dialect.encode(), run.rows) for run in runs]),
        *form.strings([(text(run.origin.source), run.rows) for run in runs]),
        *(form.strings([(text(run.origin.client or ""), run.rows) for run in runs]) if True in named else no_client),
        *(NOTHING, form.repeats([(b"\xff" if extra.retain else b"\0", (rows + 7) // 8)])),
        *(NOTHING, form.repeats([(extra.qos.to_bytes(4, "little"), rows)])),
        *(NOTHING, form.repeats([(bytes(4), rows + 1)])),
        *(form.as_it_is([buffer]) for buffer in NO_PROPERTIES),
    ]
    nodes = [(rows, 0)] * 7 + [(rows, 0 if True in named else rows)] + [(rows, 0)] * 3 + list(NO_PROPERTY_NODES)
    return message(nodes, buffers, frame, packed)


def _runs_of(piece: Columns) -> Iterator[_Run]:
    topics, origins = piece.topics, piece.origins
    if runs := piece.runs:
        for run in runs:
            topic, origin = topics[run.first], origins[run.first]
            yield _Run(piece.received, topic, run.packets, run.size, Kind.BYTES, origin, run.end - run.first)
    else:
        for row, payload in enumerate(piece.payloads):
            yield _Run(piece.ts(row), topics[row], payload, len(payload), piece.kinds[row], origins[row], 1)


class _Plain:
    """How buffers are written in a message without compression."""

    def as_it_is(self, pieces: Sequence[Piece]) -> Buffer:
        return tuple(pieces)

    def payloads(self, pieces: Sequence[Piece]) -> Buffer:
        return self.as_it_is(pieces)

    def repeats(self, runs: Repeats) -> Buffer:
        return _joined(runs)

    def strings(self, runs: Repeats) -> list[Buffer]:
        runs = _merged(runs)
        return [NOTHING, self.as_it_is(_ends([(len(value), times) for value, times in runs])), self.repeats(runs)]


class _Packed(_Plain):
    """… and with it: each begins with the length that it has without."""

    def as_it_is(self, pieces: Sequence[Piece]) -> Buffer:
        return (AS_IT_IS, *pieces) if any(map(len, pieces)) else NOTHING

    def payloads(self, pieces: Sequence[Piece]) -> Buffer:
        longest = max(pieces, key=len, default=NOTHING)
        return compressed(b"".join(pieces)) if longest and pays(longest) else self.as_it_is(pieces)

    def repeats(self, runs: Repeats) -> Buffer:
        runs = _merged(runs)
        size = sum(len(value) * times for value, times in runs)
        if not size:
            return NOTHING
        found = repeated(runs)
        return (LENGTH.pack(size), found) if found else compressed(_joined(runs))


def _joined(runs: Repeats) -> bytes:
    return b"".join([value * times for value, times in runs])


def _merged(runs: Iterable[tuple[bytes, int]]) -> Repeats:
    found: Repeats = []
    for value, times in runs:
        if found and found[-1][0] == value:
            found[-1] = value, found[-1][1] + times
        else:
            found.append((value, times))
    return found


def _ends(runs: list[tuple[int, int]]) -> list[Piece]:
    """Where strings end, of each length so many."""
    rows, length = sum(times for _, times in runs), runs[0][0]
    if length < LONG and all(other == length for other, _ in runs):
        return [memoryview(ends_of(length, rows)).cast("B")[: 4 * (rows + 1)]]
    found: list[Piece] = [bytes(4)]
    end = 0
    for length, times in runs:
        found.append(_ends_after(end, length, times))
        end += length * times
    return found


def _ends_after(start: int, length: int, times: int) -> Piece:
    if times <= FEW or length >= LONG:
        first = start + length
        return array("i", range(first, start + length * times + 1, length) if length else [first] * times).tobytes()
    ends = pa.Array.from_buffers(_INT32, times, [None, ends_of(length, times)], offset=1)
    return memoryview(pc.add(ends, pa.scalar(start, _INT32)).buffers()[1])[: 4 * times]


def _payloads(runs: list[_Run]) -> list[Piece]:
    """Short ones are cut out of their packets together, for as long as those are alike."""
    found: list[Piece] = []
    for (size, length), alike in groupby(runs, lambda run: (run.size, run.length)):
        some = [run.packets for run in alike]
        if size == length:
            found += some
        elif size > CUT:
            found += (
                memoryview(packets)[end - size : end]
                for packets in some
                for end in range(length, len(packets) + 1, length)
            )
        elif size:
            kind = pa.binary(length)
            arrays = [
                pa.Array.from_buffers(kind, len(packets) // length, [None, pa.py_buffer(packets)]) for packets in some
            ]
            cut = pc.binary_slice(pa.chunked_array(arrays, kind), length - size, length)
            for chunk in cut.chunks:
                start = chunk.offset * size
                found.append(memoryview(chunk.buffers()[1])[start : start + len(chunk) * size])
    return found
