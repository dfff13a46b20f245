"""Long reads of the log, piece by piece, in a process of their own: `python -m smbroker.log.history DIR`.

They would hold up the broker's loop, and a thread would fight it for the interpreter. Requests come on
standard input, answers leave on standard output, each a length (4 bytes) and a pickle; the two ends are
one program. The first answer is to nobody: this process runs, and what ends it from here on is a question. A
reading that is followed up where it stopped goes on; others begin anew, so that nothing is lost when this
process is ended and started again.
"""

import os
import pickle
import sys
from collections.abc import Iterator
from pathlib import Path
from select import select
from typing import BinaryIO, TypeAlias

import pyarrow as pa

from smbroker.log.census import Census
from smbroker.log.questions import (
    LENGTH,
    NOBODY,
    Answer,
    Backwards,
    Count,
    Failed,
    Found,
    GivenUp,
    Moment,
    Piece,
    Place,
    Question,
    Request,
    Roll,
    Search,
    packet,
)
from smbroker.log.reader import LogReader
from smbroker.log.search import found, last_of
from smbroker.log.stretches import Stretches
from smbroker.model.errors import LogError
from smbroker.model.filter import matches
from smbroker.model.message import Columns, Dialect, Extra, Kind, Origin

PIECE_ROWS = 1_000
PIECE_BYTES = 512 << 10  # unless one message alone has more
MAX_OPEN = 64  # readings that can be gone on with; the one not asked for the longest is dropped
MAX_ORIGINS = 10_000  # that one reading remembers

COLUMNS = ("offset", "topic", "payload", "kind", "dialect", "source", "client")

EXTRAS = ("qos", "retain", "properties")

Origins: TypeAlias = dict[tuple[str, str, str | None], Origin]


def write(stream: BinaryIO, thing: Question | Answer) -> None:
    stream.write(packet(thing))
    stream.flush()


def pieces(reader: LogReader, stretches: Stretches, request: Request) -> Iterator[Piece]:
    """What is asked for, in pieces; the last one ends where the request ends."""
    origins: Origins = {}
    following = request.start
    for batch in _batches(reader, stretches, request):
        row = 0
        while row < len(batch):
            rows = _rows_of_a_piece(batch, row)
            offsets, columns = _columns(batch.slice(row, rows), origins)
            row += rows
            following = offsets[-1] + 1
            yield Piece(request.reading, following, offsets, columns)
    if following < request.end:
        yield Piece(request.reading, request.end, [], Columns())


def _batches(reader: LogReader, stretches: Stretches, request: Request) -> Iterator[pa.RecordBatch]:
    if request.filters:
        wanted = request.filters
        mqtt = (*COLUMNS, *EXTRAS)
        yield from reader.read(
            request.start, request.end, lambda topic: any(matches(one, topic) for one in wanted), mqtt
        )
        return
    if request.topics is None:
        yield from reader.read(request.start, request.end, None, COLUMNS)
        return
    for start, end in stretches.holding(request.topics, request.start, request.end):
        yield from reader.read(start, end, request.topics, COLUMNS)


def _rows_of_a_piece(batch: pa.RecordBatch, row: int) -> int:
    rows = min(PIECE_ROWS, len(batch) - row)
    while rows > 1 and batch.slice(row, rows).nbytes > PIECE_BYTES:
        rows = (rows + 1) // 2
    return rows


def _columns(batch: pa.RecordBatch, origins: Origins) -> tuple[list[int], Columns]:
    if len(origins) > MAX_ORIGINS:
        origins.clear()
    where = zip(*(batch.column(name).to_pylist() for name in ("dialect", "source", "client")), strict=True)
    columns = Columns(
        topics=batch.column("topic").cast(pa.binary()).to_pylist(),
        payloads=batch.column("payload").to_pylist(),
        kinds=[Kind[name.upper()] for name in batch.column("kind").to_pylist()],
        origins=[origins.get(key) or origins.setdefault(key, Origin.at(Dialect(key[0]), *key[1:])) for key in where],
        extras=_extras(batch) if EXTRAS[0] in batch.schema.names else None,
    )
    return batch.column("offset").to_pylist(), columns


def _extras(batch: pa.RecordBatch) -> dict[int, Extra]:
    """Equal ones are the same object, which a pickle holds once."""
    rows = zip(*(batch.column(name).to_pylist() for name in EXTRAS), strict=True)
    known: dict[Extra, Extra] = {}
    found = {
        row: Extra(qos, retain, tuple((one["key"], one["value"]) for one in properties))
        for row, (qos, retain, properties) in enumerate(rows)
        if qos or retain or properties
    }
    return {row: known.setdefault(extra, extra) for row, extra in found.items()}


class Readings:
    """Those that can be gone on with."""

    def __init__(self, reader: LogReader) -> None:
        self._reader = reader
        self._census = Census(reader)
        self._stretches = Stretches(reader)
        self._open: dict[int, tuple[Question, Iterator[Answer]]] = {}  # with the question that goes on with it

    def answer(self, question: Question) -> Answer:
        try:
            if isinstance(question, Moment):
                return Place(question.reading, self._reader.offset_at(question.ts))
            if isinstance(question, Backwards):
                return last_of(self._reader, question)
            if isinstance(question, Count):
                return self._counted(question)
            if isinstance(question, GivenUp):
                raise LogError("damaged", f"what stands at offset {question.start} or after it ends who reads it")
            return self._go_on(question)
        except LogError as error:
            start = 0 if isinstance(question, (Moment, Count, Roll)) else question.start
            return Failed(question.reading, error.code, error.text, self._after(error, start))

    def _go_on(self, question: Request | Search | Roll) -> Answer:
        expected, reading = self._open.pop(question.reading, (None, None))
        if reading is None or expected != question:
            reading = self._begun(question)
        answer = next(reading, None) or _nothing(question)
        following = question.after(answer)  # type: ignore[arg-type]
        if following:
            self._open[question.reading] = following, reading
            while len(self._open) > MAX_OPEN:
                del self._open[next(iter(self._open))]
        return answer

    def _begun(self, question: Request | Search | Roll) -> Iterator[Answer]:
        if isinstance(question, Request):
            return pieces(self._reader, self._stretches, question)
        if isinstance(question, Search):
            return found(self._reader, question)
        if question.piece:
            raise LogError("interrupted", "the list of topics was interrupted; ask again")
        return self._roll(question)

    def _roll(self, question: Roll) -> Iterator[Answer]:
        for number, data in enumerate(self._census.pieces(question.wanted), 1):
            yield Found(question.reading, number, 0, data)

    def _counted(self, question: Count) -> Answer:
        try:
            self._census.advance(question.end, question.most)
        except LogError as error:
            self._census.next = self._after(error, self._census.next)
        return Place(question.reading, self._census.next)

    def prepare(self) -> bool:
        """One step towards knowing what answers will need; whether there is more to do."""
        return self._stretches.extend(self._reader.next_offset)

    def _after(self, error: LogError, cursor: int) -> int:
        """Where reading can go on: after the segment that is damaged, or at the first offset there is."""
        return self._reader.first_offset if error.code == "gone" else self._reader.beyond(cursor)


def _nothing(question: Request | Search | Roll) -> Answer:
    if isinstance(question, Request):
        return Piece(question.reading, question.end, [], Columns())
    return Found(question.reading, 0 if isinstance(question, Roll) else question.end, 0, b"")


def main() -> None:
    readings = Readings(LogReader(Path(sys.argv[1])))
    requests, answers = sys.stdin.fileno(), sys.stdout.buffer
    _tell(answers, Place(NOBODY, 0))
    while True:
        while not select([requests], [], [], 0)[0] and readings.prepare():
            pass
        head = _read(requests, LENGTH)
        if len(head) < LENGTH:
            return
        answer = readings.answer(pickle.loads(_read(requests, int.from_bytes(head, "big"))))
        _tell(answers, answer)


def _tell(answers: BinaryIO, answer: Answer) -> None:
    try:
        write(answers, answer)
    except BrokenPipeError:  # the broker was killed
        os._exit(0)


def _read(descriptor: int, size: int) -> bytes:
    """So many bytes, or fewer at the end of the input."""
    data = b""
    while len(data) < size and (piece := os.read(descriptor, size - len(data))):
        data += piece
    return data


if __name__ == "__main__":
    main()
