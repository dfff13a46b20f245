"""Sealing: closed tails become one Parquet file. The broker has a process of its own do it:

    python -m smbroker.log.seal DIRECTORY BASE... [--rows N] [--bytes N] [--until OFFSET]

It prints what it had to leave out: sentences, each a line of JSON.

The Parquet file and its index are written as `*.tmp` and synced, the index renamed, then the Parquet
file, whose name is what makes the segment sealed; the directory is synced; then the tails go.
Whatever is interrupted leaves the tails in place. One seal at a time per directory.
"""

import argparse
import json
import os
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple
from zlib import crc32

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from smbroker.log.disk import Disk, replace
from smbroker.log.format import SCHEMA, Bad
from smbroker.log.index import TOPICS, Body, Header, encode
from smbroker.log.lock import Lock
from smbroker.log.pages import payload_pages
from smbroker.log.past_cache import PastCache
from smbroker.log.recover import SEAL_LOCK
from smbroker.log.segments import DAMAGED, INDEX, SEALED, TAIL, TEMPORARY, Segment, file_of, segments_in
from smbroker.log.tail import TailIndex, read_rows
from smbroker.model.errors import LogError

GROUP_ROWS = 131_072  # of a row group: what a reader decodes at least
PAGE_BYTES = 32 << 10  # of a page, before compression: what one payload costs to fetch
PAGE_ROWS = 128  # how often the writer looks whether the page is full
WRITE_BYTES = 1 << 20  # given to the disk together
MERGE_ROWS, MERGE_BYTES = 1_000_000, 256 << 20  # small closed tails are put together up to this

LOW_PRIORITY = 10  # as `nice` has it
SESSION_PRIORITY = Path("/proc/self/autogroup")  # sched(7)

_DICTIONARIES = ["topic", "kind", "dialect", "source", "client"]
_STATISTICS = ["offset", "ts", *_DICTIONARIES, "retain", "qos", "properties.list.element.key"]
_PAYLOAD = SCHEMA.names.index("payload")


class Sealed(NamedTuple):
    end: int
    said: list[str]  # what had to be left out, in sentences


class _Closed(NamedTuple):
    base: int
    handle: int
    path: Path
    known: TailIndex
    bad: Bad | None


def seal_segment(
    directory: Path,
    base: int,
    rows: int = MERGE_ROWS,
    size: int = MERGE_BYTES,
    until: int | None = None,
    disk: Disk | None = None,
) -> Sealed | None:
    """Seals the closed tail at `base`, with those that follow it up to `rows` and `size` bytes in all.

    None if there is nothing to seal there (any more). No tail that goes past `until` is sealed.
    """
    disk = disk or Disk()
    try:
        with Lock(directory / SEAL_LOCK), ExitStack() as stack:
            closed = _closed_tails(disk, directory, base, rows, size, until, stack)
            if not closed:
                return None
            said = _say_damage(disk, closed)
            end = closed[-1].known.end
            if end > base:
                _write(disk, directory, base, end, closed)
            for tail in closed:
                disk.unlink(tail.path)
            return Sealed(end, said)
    except OSError as error:
        raise LogError("disk", f"the segment at {base} cannot be sealed: {error.strerror or error}") from error


def _closed_tails(
    disk: Disk, directory: Path, base: int, rows: int, size: int, until: int | None, stack: ExitStack
) -> list[_Closed]:
    """The closed tail at `base` and those right after it, as far as the limits allow."""
    found: list[_Closed] = []
    for segment in segments_in(disk, directory, {}):
        if segment.base < base:
            continue
        if segment.base != (found[-1].known.end if found else base) or not _ready(segment, until):
            break
        path = file_of(directory, segment.base, TAIL)
        handle = disk.open(path)
        stack.callback(disk.close, handle)
        assert segment.end is not None
        index, bad = _checked_up_to(disk, handle, segment.base, segment.end)
        total_rows = index.end - base
        total_bytes = index.length + sum(tail.known.length for tail in found)
        if found and (total_rows > rows or total_bytes > size):
            break
        found.append(_Closed(segment.base, handle, path, index, bad))
        if bad:
            break
    return found


def _ready(segment: Segment, until: int | None) -> bool:
    return not segment.sealed and segment.end is not None and (until is None or segment.end <= until)


def _checked_up_to(disk: Disk, handle: int, base: int, limit: int) -> tuple[TailIndex, Bad | None]:
    """What is sound before `limit`, and why that is not all."""
    listed = TailIndex(base)
    stopped = listed.extend(disk, handle, limit)
    index = TailIndex(base)
    bad = index.check(disk, handle, listed.length)
    if index.end == limit:
        return index, None
    return index, bad or (stopped if listed.length < disk.size(handle) else None)


def _say_damage(disk: Disk, closed: list[_Closed]) -> list[str]:
    """Keeps a copy of a damaged tail before it goes."""
    last = closed[-1]
    if last.bad is None:
        return []
    aside = last.path.with_name(last.path.name + DAMAGED)
    replace(disk, aside, disk.pread(last.handle, disk.size(last.handle), 0))
    return [
        f"{last.path.name}: damaged at byte {last.known.length} (a message {last.bad.reason}): "
        f"sealed up to offset {last.known.end}, a copy is in {aside.name}"
    ]


class _Sink:
    """A file for Arrow to write to, through our disk, with a checksum on the way."""

    def __init__(self, disk: Disk, handle: int) -> None:
        self._disk, self._handle = disk, handle
        self._past_cache = PastCache(disk, handle)
        self._waiting: list[bytes] = []  # to be written together
        self._written = 0
        self.size, self.crc = 0, 0
        self.closed = False

    def write(self, data: pa.Buffer | bytes) -> int:
        own = bytes(data)  # Arrow may use its memory again
        self._waiting.append(own)
        self.size += len(own)
        self.crc = crc32(own, self.crc)
        if self.size - self._written >= WRITE_BYTES:
            self._write()
        return len(own)

    def _write(self) -> None:
        self._written = self._past_cache.write(self._waiting, self._written)
        self._waiting = []

    def finish(self) -> None:
        """All of it is on disk."""
        self._write()
        self._disk.truncate(self._handle, self.size)
        self._disk.sync_data(self._handle)

    def tell(self) -> int:
        return self.size

    def flush(self) -> None:
        pass

    def close(self) -> None:
        self.closed = True

    def writable(self) -> bool:
        return True

    def readable(self) -> bool:
        return False

    def seekable(self) -> bool:
        return False


def _write(disk: Disk, directory: Path, base: int, end: int, closed: list[_Closed]) -> None:
    path = file_of(directory, base, SEALED)
    temporary = path.with_name(path.name + TEMPORARY)
    summary = _Summary()
    handle = disk.create(temporary)
    try:
        sink = _Sink(disk, handle)
        with _writer(sink) as writer:
            for group in _groups(disk, closed):
                summary.add(group)
                writer.write_table(group, row_group_size=len(group))
        sink.finish()
        metadata = pq.read_metadata(temporary)
        if metadata.num_rows != end - base:
            raise LogError("disk", f"{path.name}: {metadata.num_rows} rows were written of {end - base}")
        body = Body(summary.table(), payload_pages(disk, handle, metadata, _PAYLOAD))
    except BaseException:
        disk.unlink(temporary)  # a full disk needs the room
        raise
    finally:
        disk.close(handle)
    header = Header(base, end - base, summary.first_ts, summary.last_ts, sink.size, sink.crc)
    replace(disk, file_of(directory, base, INDEX), encode(header, body))
    disk.rename(temporary, path)
    disk.sync_directory(directory)


def _writer(sink: _Sink) -> pq.ParquetWriter:
    return pq.ParquetWriter(
        pa.PythonFile(sink, mode="w"),
        SCHEMA,
        compression="zstd",
        use_dictionary=_DICTIONARIES,
        dictionary_pagesize_limit=8 << 20,
        write_statistics=_STATISTICS,
        data_page_size=PAGE_BYTES,
        write_batch_size=PAGE_ROWS,
        write_page_checksum=True,
    )


def _groups(disk: Disk, closed: list[_Closed]) -> Iterator[pa.Table]:
    """The rows of all the tails, in tables of GROUP_ROWS."""
    ready: list[pa.RecordBatch] = []
    rows = 0
    for tail in closed:
        for batch in read_rows(disk, tail.handle, tail.path, tail.known, tail.base, tail.known.end, None):
            rest = batch
            while rows + len(rest) >= GROUP_ROWS:
                taken = GROUP_ROWS - rows
                yield pa.Table.from_batches([*ready, rest.slice(0, taken)], SCHEMA)
                ready, rows, rest = [], 0, rest.slice(taken)
            if len(rest):
                ready.append(rest)
                rows += len(rest)
    if rows:
        yield pa.Table.from_batches(ready, SCHEMA)


class _Summary:
    """What the index tells about topics and times."""

    def __init__(self) -> None:
        self.first_ts = self.last_ts = 0
        self._rows = 0
        self._groups = 0
        self._topics: dict[str, tuple[int, int, list[int]]] = {}  # count, last row, row groups

    def add(self, group: pa.Table) -> None:
        times = pc.min_max(group.column("ts").cast(pa.int64())).as_py()
        self.first_ts = min(self.first_ts, times["min"]) if self._groups else times["min"]
        self.last_ts = max(self.last_ts, times["max"]) if self._groups else times["max"]
        rows = pa.array(range(self._rows, self._rows + len(group)), pa.int64())
        found = pa.table({"topic": group.column("topic"), "row": rows}).group_by("topic")
        counts = found.aggregate([("row", "count"), ("row", "max")])
        columns = (counts.column(name).to_pylist() for name in ("topic", "row_count", "row_max"))
        for topic, count, last in zip(*columns, strict=True):
            before, _, groups = self._topics.get(topic, (0, 0, []))
            groups.append(self._groups)
            self._topics[topic] = (before + count, last, groups)
        self._rows += len(group)
        self._groups += 1

    def table(self) -> pa.Table:
        topics = sorted(self._topics)
        facts = [self._topics[topic] for topic in topics]
        return pa.table(
            [
                pa.array(topics, pa.string()),
                pa.array([count for count, _, _ in facts], pa.int64()),
                pa.array([last for _, last, _ in facts], pa.int64()),
                pa.array([groups for _, _, groups in facts], pa.list_(pa.int32())),
            ],
            schema=TOPICS,
        )


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m smbroker.log.seal")
    parser.add_argument("directory", type=Path)
    parser.add_argument("bases", type=int, nargs="+", metavar="base")
    parser.add_argument("--rows", type=int, default=MERGE_ROWS)
    parser.add_argument("--bytes", type=int, default=MERGE_BYTES)
    parser.add_argument("--until", type=int)
    options = parser.parse_args(arguments)
    for base in options.bases:
        try:
            sealed = seal_segment(options.directory, base, options.rows, options.bytes, options.until)
        except LogError as error:
            print(f"{error.code}: {error.text}", file=sys.stderr)
            return 1
        for sentence in sealed.said if sealed else ():
            print(json.dumps(sentence), flush=True)
    return 0


def give_way() -> None:
    """For the process, which has a session of its own, since Ctrl-C is for the broker. Linux shares the processors out
    among sessions before it looks at priorities within them, so both are told."""
    os.nice(LOW_PRIORITY)
    try:
        SESSION_PRIORITY.write_text(str(LOW_PRIORITY))
    except OSError:  # a system that knows no such thing, or not now
        pass


if __name__ == "__main__":
    give_way()
    sys.exit(main())
