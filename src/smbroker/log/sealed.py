"""A sealed segment, for reading: ordinary Parquet, and short ways to a few topics' rows.

For chosen topics the index names the row groups that hold them; there the dictionary-encoded topic
column, small integers, gives the rows. Columns that are the same throughout a row group are known
from its statistics and not read; a few payloads are fetched by page, many by column.
"""

from collections.abc import Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from typing import TypeAlias

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from smbroker.log.disk import Disk
from smbroker.log.format import SCHEMA
from smbroker.log.index import Body, read_body
from smbroker.log.pages import Pages
from smbroker.log.segments import INDEX, SEALED, damage_told, file_of
from smbroker.log.topics import TopicChoice
from smbroker.model.errors import LogError

READ_ROWS = 65_536  # rows given out at once
_DICTIONARIES = ["topic", "kind", "dialect", "source", "client"]
_VARYING = {"offset", "ts", "topic", "payload"}  # not worth a look at their statistics
_SHORT = 32  # characters of a value whose column is kept for the next row group

_Value: TypeAlias = str | int | bool | tuple[()] | None


class SealedFile:
    """Open until closed: the rows stay readable though the file is removed meanwhile."""

    def __init__(self, disk: Disk, directory: Path, base: int, plain: bool = True) -> None:
        """Raises FileNotFoundError if it is not there (any more). Not `plain`: to be read by topics."""
        self.base = base
        self.path = file_of(directory, base, SEALED)
        self._disk = disk
        self._handle = disk.open(self.path)
        self._body: Body | None = None
        self._pages: Pages | None = None
        self._index = file_of(directory, base, INDEX)
        self._starts = [0]  # the first row of each row group, and the end
        try:
            with damage_told(self.path):
                self._file = self._parquet(read_dictionary=[] if plain else _DICTIONARIES)
                metadata = self._file.metadata
                for group in range(metadata.num_row_groups):
                    self._starts.append(self._starts[-1] + metadata.row_group(group).num_rows)
                self._leaves = {metadata.schema.column(leaf).path: leaf for leaf in range(metadata.num_columns)}
        except BaseException:
            disk.close(self._handle)
            raise

    def close(self) -> None:
        self._file.close(force=True)
        self._disk.close(self._handle)

    def weights(self) -> list[tuple[int, int, int]]:
        """Of each row group its first offset, the one after its last, and its bytes before compression."""
        metadata, base, starts = self._file.metadata, self.base, self._starts
        return [
            (base + starts[group], base + starts[group + 1], metadata.row_group(group).total_byte_size)
            for group in range(len(starts) - 1)
        ]

    def _parquet(self, read_dictionary: list[str]) -> pq.ParquetFile:
        return pq.ParquetFile(
            self.path, read_dictionary=read_dictionary, page_checksum_verification=True, pre_buffer=False
        )

    def read(
        self, start: int, end: int, choice: TopicChoice | None = None, columns: Sequence[str] | None = None
    ) -> Iterator[pa.RecordBatch]:
        """The rows with offsets in [start, end), in order, with these columns in the schema's order."""
        schema = SCHEMA if columns is None else pa.schema([field for field in SCHEMA if field.name in columns])
        first, last = start - self.base, end - self.base
        with damage_told(self.path):
            if choice is not None and self._holds_only(choice):
                choice = None  # nothing to leave out: much faster
                self._file.close(force=True)
                self._file = self._parquet(read_dictionary=[])
            groups = range(len(self._starts) - 1) if choice is None else self._groups_with(choice)
            for group in groups:
                low, high = max(first, self._starts[group]), min(last, self._starts[group + 1])
                if low >= high:
                    continue
                if choice is None:
                    yield from self._all(group, low - self._starts[group], high - self._starts[group], schema)
                else:
                    yield from self._chosen(group, low, high, choice, schema)

    def _all(self, group: int, low: int, high: int, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        same = self._same_columns(group, schema)
        varying = [name for name in schema.names if name not in same]
        if not varying:  # something must be read to know the rows
            varying = [schema.names[0]]
            del same[varying[0]]
        seen = 0
        for batch in self._file.iter_batches(READ_ROWS, row_groups=[group], columns=varying, use_threads=False):
            first, last = max(low - seen, 0), min(high - seen, len(batch))
            seen += len(batch)
            if first < last:
                rows = last - first
                arrays = dict(zip(varying, batch.slice(first, rows).columns, strict=True))
                arrays |= {name: column.slice(0, rows) for name, column in same.items()}
                yield pa.RecordBatch.from_arrays([arrays[name] for name in schema.names], schema=schema)
            if seen >= high:
                return

    def _same_columns(self, group: int, schema: pa.Schema) -> dict[str, pa.Array]:
        """Those that need not be read, for as many rows as are given out at once."""
        rows = min(READ_ROWS, self._starts[group + 1] - self._starts[group])
        found = {field.name: self._same(group, field, rows) for field in schema if field.name not in _VARYING}
        return {name: column for name, column in found.items() if column is not None}

    def _holds_only(self, choice: TopicChoice) -> bool:
        details = self._details()
        return details is not None and len(choice.among(_one(details.topics.column("topic")))) == len(details.topics)

    def _groups_with(self, choice: TopicChoice) -> list[int]:
        details = self._details()
        if details is None:
            return list(range(len(self._starts) - 1))
        topics = details.topics
        positions = choice.among(_one(topics.column("topic")))
        groups = topics.column("groups").combine_chunks().take(positions)
        return sorted(set(groups.flatten().to_pylist()))

    def _details(self) -> Body | None:
        """The index; None if it is missing or damaged: then all is read, as `smb log verify` will tell."""
        if self._body is None:
            try:
                self._body = read_body(self._disk, self._index)
            except (FileNotFoundError, LogError):
                return None
        return self._body

    def _chosen(
        self, group: int, low: int, high: int, choice: TopicChoice, schema: pa.Schema
    ) -> Iterator[pa.RecordBatch]:
        begin = self._starts[group]
        topics = self._column(group, "topic")
        rows = choice.rows(topics)
        if low > begin or high < self._starts[group + 1]:
            inside = pc.and_(pc.greater_equal(rows, low - begin), pc.less(rows, high - begin))
            rows = rows.filter(inside)
        if not len(rows):
            return
        offsets = pc.add(rows.cast(pa.int64()), pa.scalar(self.base + begin, pa.int64()))
        arrays = {"offset": offsets, "topic": _decoded(topics.take(rows))}
        if self._pages is None and self._body:
            self._pages = Pages(self._body.pages)
        if (
            "payload" in schema.names
            and self._pages
            and 2 * len(rows) < self._pages.between(begin, self._starts[group + 1])
        ):
            numbers = pc.add(rows.cast(pa.int64()), pa.scalar(begin, pa.int64())).to_pylist()
            payloads = self._pages.payloads(self._disk, self._handle, self.path, numbers)
            arrays["payload"] = pa.array(payloads, pa.binary())
        varying = []
        for field in schema:
            if field.name in arrays:
                continue
            same = self._same(group, field, len(rows))
            if same is None:
                varying.append(field.name)
            else:
                arrays[field.name] = same
        for name, column in self._columns(group, varying).items():
            arrays[name] = _decoded(column.take(rows))
        yield pa.RecordBatch.from_arrays([arrays[name] for name in schema.names], schema=schema)

    def _column(self, group: int, name: str) -> pa.Array:
        return self._columns(group, [name])[name]

    def _columns(self, group: int, names: Sequence[str]) -> dict[str, pa.Array]:
        if not names:
            return {}
        table = self._file.read_row_group(group, columns=list(names), use_threads=False)
        return {name: _one(table.column(name)) for name in names}

    def _same(self, group: int, field: pa.Field, rows: int) -> pa.Array | None:
        """The column for so many rows, if the statistics say that it is the same in all of the group."""
        metadata = self._file.metadata.row_group(group)
        if field.name == "properties":
            leaf = metadata.column(self._leaves["properties.list.element.key"])
            statistics = leaf.statistics
            if statistics is None or statistics.null_count != leaf.num_values:
                return None
            return _repeated(field.type, (), rows)
        statistics = metadata.column(self._leaves[field.name]).statistics
        if statistics is None:
            return None
        if statistics.null_count == metadata.num_rows:
            return _repeated(field.type, None, rows)
        if not statistics.has_min_max or statistics.null_count or statistics.min_raw != statistics.max_raw:
            return None
        return _repeated(field.type, statistics.min, rows)

    def offset_at(self, ts: int) -> int:
        """The first offset whose ts is `ts` or later; the segment must have one."""
        with damage_told(self.path):
            leaf = self._leaves["ts"]
            for group in range(len(self._starts) - 1):
                statistics = self._file.metadata.row_group(group).column(leaf).statistics
                if statistics is not None and statistics.max_raw < ts:
                    continue
                found = pc.index(pc.greater_equal(self._column(group, "ts").cast(pa.int64()), ts), True).as_py()
                if found >= 0:
                    return self.base + self._starts[group] + int(found)
        raise LogError("damaged", f"{self.path.name}: no row is as late as the index says")


def _one(column: pa.ChunkedArray) -> pa.Array:
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()


def _decoded(column: pa.Array) -> pa.Array:
    return column.dictionary_decode() if pa.types.is_dictionary(column.type) else column


def _repeated(kind: pa.DataType, value: _Value, rows: int) -> pa.Array:
    if rows > READ_ROWS or (isinstance(value, str) and len(value) > _SHORT):
        return pa.repeat(pa.scalar(value, kind), rows)
    return _kept(kind, value).slice(0, rows)


@lru_cache(maxsize=16)
def _kept(kind: pa.DataType, value: _Value) -> pa.Array:
    return pa.repeat(pa.scalar(value, kind), READ_ROWS)
