"""Arrow bodies of requests: a stream of record batches with the columns `topic` and `payload`, and those of `Rows`.

Strangers' bytes, and bytes that no CRC vouches for can crash Arrow's decoder: so the broker has them decoded by a
process of its own, `python -m smbroker.log.bodies`, which may die and whose memory is bounded. In: most bytes (8),
length (8), body. Out: packets of a length (4) and a pickle: rows, then None, or the reason why not.
"""

import pickle
import resource
import sys
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from smbroker.model.errors import Refused
from smbroker.model.message import Rows

SLICE = 2_000  # rows that are turned into objects in one go
PROPERTIES = pa.list_(pa.struct([("key", pa.string()), ("value", pa.string())]))
NUMBER = 8  # bytes of a length that comes in
MEMORY = 2 << 30  # bytes that decoding may take: a small body can unpack to much


def rows_of(body: bytes, most: int) -> Iterator[Rows]:
    """Raises Refused: `bad_body`, or `body_too_long` if the messages have more than `most` bytes in all."""
    try:
        with pa.ipc.open_stream(pa.py_buffer(body)) as reader:
            kinds = reader.schema
            if not {"topic", "payload"} <= set(kinds.names):
                raise Refused("bad_body", f"the columns topic and payload are needed; there are {kinds.names}")
            size = 0
            for batch in reader:
                batch.validate(full=True)  # a hostile offset would reach outside the buffers
                columns = _columns(batch)
                size += max(batch.nbytes, sum(map(_bytes_in, columns)))
                if size > most:
                    raise Refused("body_too_long", f"the messages have more than {most} bytes (web.max_body)")
                yield from _slices(columns, len(batch))
    except (pa.ArrowException, OSError, ValueError, KeyError, MemoryError) as error:
        raise Refused("bad_body", f"not an Arrow stream of topics and payloads: {error}") from error


def _columns(batch: pa.RecordBatch) -> tuple[pa.Array, ...]:
    """Those of `Rows`; a value that many rows share is there for each of them."""
    return (
        _bytes(batch, "topic"),
        _bytes(batch, "payload"),
        pc.fill_null(_optional(batch, "retain", pa.bool_()), False),
        _optional(batch, "kind", pa.string()),
        _optional(batch, "properties", PROPERTIES),
    )


def _slices(columns: tuple[pa.Array, ...], rows: int) -> Iterator[Rows]:
    for start in range(0, rows, SLICE):
        topics, payloads, retain, kinds, properties = (each.slice(start, SLICE).to_pylist() for each in columns)
        yield Rows(topics, payloads, retain, kinds, [each and _pairs(each) for each in properties])


def _bytes_in(column: pa.Array) -> int:
    """Without what Arrow itself adds where values have different lengths."""
    if column.type in (pa.large_binary(), pa.string()):
        return pc.sum(pc.binary_length(column)).as_py() or 0
    return int(column.nbytes)


def _optional(batch: pa.RecordBatch, name: str, kind: pa.DataType) -> pa.Array:
    return batch.column(name).cast(kind) if name in batch.schema.names else pa.array([], kind)


def _pairs(properties: list[dict[str, str | None] | None]) -> list[tuple[str, str]]:
    return [(each["key"] or "", each["value"] or "") for each in properties if each]


def packet(thing: Rows | tuple[str, str] | None) -> bytes:
    data = pickle.dumps(thing, protocol=pickle.HIGHEST_PROTOCOL)
    return len(data).to_bytes(4, "big") + data


def main() -> None:
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    limit = pages * resource.getpagesize() + MEMORY
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    requests, answers = sys.stdin.buffer, sys.stdout.buffer
    while len(head := requests.read(2 * NUMBER)) == 2 * NUMBER:
        most, length = (int.from_bytes(head[at : at + NUMBER], "big") for at in (0, NUMBER))
        try:
            for rows in rows_of(requests.read(length), most):
                answers.write(packet(rows))
            answers.write(packet(None))
        except Refused as error:
            answers.write(packet((error.code, error.text)))
        answers.flush()


def _bytes(batch: pa.RecordBatch, name: str) -> pa.Array:
    column = batch.column(name)
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    column = column.cast(pa.large_binary())
    if column.null_count:  # only now: a dictionary's own nulls are not counted
        raise Refused("bad_body", f"the column {name} has nulls")
    return column


if __name__ == "__main__":
    main()
