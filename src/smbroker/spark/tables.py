"""Delta tables: DIR/tables/NAME, written here alone, one transaction per batch and query.

    TableWriter(path, key).write(rows, query, batch)      one per table, in the process of the pipelines
    tables(data), last_rows(data, name, limit)            for anyone, without Spark

Rows and the note *query has written batch* (Delta's application transaction) are one commit. A batch that the table
has a note of is not written again; delta-rs does not refuse that by itself. Any reader sees whole batches only.

A new column is added to the table; a column whose type has changed is an error that says what to do. Small files are
packed, and files that no version of the last hour needs are removed, by the same writer between two batches.
"""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import isfinite
from os.path import isdir
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake
from deltalake.exceptions import TableNotFoundError

from smbroker.model.errors import UsageError
from smbroker.spark.newest import newest

TABLES = "tables"  # within the data directory
PACK_AFTER = 100  # commits; each is a file, and every one of them costs all later commits time
VACUUM_AFTER = 600.0  # seconds
KEPT_HOURS = 1  # how long a reader may take over the version that it opened
SETTINGS = {
    "delta.logRetentionDuration": "interval 6 hours",  # a commit a second is a file a second
    "delta.deletedFileRetentionDuration": f"interval {KEPT_HOURS} hours",
}
_ORDERED = (pa.types.is_timestamp, pa.types.is_integer, pa.types.is_date)


class TableWriter:
    """The one writer of a table. `key`: rows replace those with the same key; `complete`: all that were there."""

    def __init__(self, path: Path, key: Sequence[str] = (), complete: bool = False) -> None:
        self.path = path
        self._key = tuple(key)
        self._complete = complete
        self._table = _opened(path)
        self._commits = PACK_AFTER if self._table else 0  # whoever wrote before may have left small files
        self._vacuumed = 0.0

    def has(self, query: str, batch: int) -> bool:
        written = self._table.transaction_version(query) if self._table else None
        return written is not None and written >= batch

    def write(self, rows: pa.Table | pa.RecordBatchReader, query: str, batch: int) -> bool:
        """False if there is nothing to do: no rows, or the batch is in the table already."""
        if self.has(query, batch):
            return False
        if isinstance(rows, pa.Table) and not rows.num_rows and not self._complete:
            return False
        _check(rows.schema, self.path.name)
        rows = rows.cast(
            _open_to_null(rows.schema, None if self._complete or not self._table else _schema(self._table))
        )
        note = CommitProperties(app_transactions=[Transaction(query, batch)])
        if self._table is None:
            self._create(rows, note)
        elif self._complete:
            write_deltalake(self._table, rows, mode="overwrite", schema_mode="overwrite", commit_properties=note)
        else:
            _check_change(_schema(self._table), rows.schema, self.path)
            if self._key:
                self._merge(rows, note)
            else:
                write_deltalake(self._table, rows, mode="append", schema_mode="merge", commit_properties=note)
        assert self._table
        self._table.update_incremental()
        self._commits += 1
        return True

    def _create(self, rows: pa.Table | pa.RecordBatchReader, note: CommitProperties) -> None:
        """The table and its first rows are one commit."""
        first = _last_of_each(rows, self._key) if self._key else rows
        self.path.parent.mkdir(parents=True, exist_ok=True)
        write_deltalake(self.path, first, mode="append", configuration=SETTINGS, commit_properties=note)
        self._table = DeltaTable(self.path)

    def _merge(self, rows: pa.Table | pa.RecordBatchReader, note: CommitProperties) -> None:
        last = _last_of_each(rows, self._key)
        if not last.num_rows:
            return
        assert self._table
        last = _with_all(last, _schema(self._table))
        merger = self._table.merge(
            last,
            _predicate(last, self._key),
            source_alias="source",
            target_alias="target",
            merge_schema=True,
            commit_properties=note,
        )
        merger.when_matched_update_all().when_not_matched_insert_all().execute()

    def tidy(self) -> bool:
        """Packs small files after so many commits, and removes those that nobody needs; whether it did anything.

        What fails here is tried again after as many commits more."""
        if self._table is None or self._commits < PACK_AFTER:
            return False
        self._commits = 0
        now = time.monotonic()
        self._table.optimize.compact()
        if not self._vacuumed or now - self._vacuumed >= VACUUM_AFTER:
            whole = not self._vacuumed  # the first time also what a writer that was killed left behind
            self._table.vacuum(KEPT_HOURS, dry_run=False, enforce_retention_duration=False, full=whole)
            self._table.create_checkpoint()
            self._table.cleanup_metadata()
            self._vacuumed = now
        self._table.update_incremental()
        return True


def _opened(path: Path) -> DeltaTable | None:
    try:
        return DeltaTable(path)
    except TableNotFoundError:
        return None


def _schema(table: DeltaTable) -> pa.Schema:
    return pa.schema(table.schema().to_arrow())


# --- upsert ---


def _last_of_each(rows: pa.Table | pa.RecordBatchReader, key: Sequence[str]) -> pa.Table:
    """Of rows with the same key the last: a merge would take them all."""
    whole = _with_one_zero(rows if isinstance(rows, pa.Table) else rows.read_all(), key)
    numbered = whole.select(list(key)).append_column("", pa.array(range(whole.num_rows), pa.int64()))
    last = numbered.group_by(list(key)).aggregate([("", "max")]).column("_max")
    return whole if len(last) == whole.num_rows else whole.take(last.take(pc.sort_indices(last)))


def _with_one_zero(rows: pa.Table, key: Sequence[str]) -> pa.Table:
    """A merge takes 0.0 and -0.0 for equal, grouping does not."""
    for name in key:
        if pa.types.is_floating(rows.column(name).type):
            plain = pc.add(rows.column(name), pa.scalar(0.0, rows.column(name).type))
            rows = rows.set_column(rows.column_names.index(name), name, plain)
    return rows


def _with_all(rows: pa.Table, there: pa.Schema) -> pa.Table:
    """With nulls in the columns that the table alone has: a merge would leave those of the old row."""
    for field in there:
        if field.name not in rows.column_names:
            rows = rows.append_column(field.name, pa.nulls(rows.num_rows, field.type))
    return rows


def _predicate(rows: pa.Table, key: Sequence[str]) -> str:
    """Equal keys, null to null; and between which values they lie, so that other files are not read."""
    quoted = {name: '"' + name.replace('"', '""') + '"' for name in key}
    terms = [f"(target.{said} IS NOT DISTINCT FROM source.{said})" for said in quoted.values()]
    for name, said in quoted.items():
        column = rows.column(name)
        if column.null_count or not any(ordered(column.type) for ordered in _ORDERED):
            continue
        ends = pc.min_max(column)
        terms += [f"(target.{said} {sign} {_literal(ends[end])})" for sign, end in ((">=", "min"), ("<=", "max"))]
    return " AND ".join(terms)


def _literal(scalar: pa.Scalar) -> str:
    if pa.types.is_integer(scalar.type):
        return str(scalar.as_py())
    if pa.types.is_date(scalar.type):
        return f"arrow_cast('{scalar.as_py().isoformat()}', 'Date32')"
    zone = 'Some("UTC")' if scalar.type.tz else "None"
    return f"arrow_cast('{scalar.as_py().isoformat()}', 'Timestamp(Microsecond, {zone})')"


# --- types ---


def _check(schema: pa.Schema, table: str) -> None:
    for field in schema:
        if pa.types.is_null(field.type) or pa.types.is_duration(field.type) or pa.types.is_interval(field.type):
            text = f"column {field.name} is {field.type}, which a table cannot hold (table {table}); cast it"
            raise UsageError("bad_column", text)


def _open_to_null(schema: pa.Schema, there: pa.Schema | None) -> pa.Schema:
    """New columns may be null, whatever Spark knows of them (a count never is): they may be left out one day."""
    known = there.names if there else ()
    return pa.schema([field if field.name in known else _nullable(field) for field in schema])


def _nullable(field: pa.Field) -> pa.Field:
    kind = field.type
    if pa.types.is_list(kind):
        kind = pa.list_(_nullable(kind.value_field))
    elif pa.types.is_struct(kind):
        kind = pa.struct([_nullable(part) for part in kind])
    elif pa.types.is_map(kind):
        kind = pa.map_(kind.key_field, _nullable(kind.item_field))
    return field.with_type(kind).with_nullable(True)


def _check_change(there: pa.Schema, new: pa.Schema, path: Path) -> None:
    for field in new:
        place = there.get_field_index(field.name)
        if place >= 0 and not _same(there.field(place).type, field.type):
            was, now = there.field(place).type, field.type
            text = f"column {field.name} is {was} in table {path.name} and would become {now}: give it another name, "
            raise UsageError("bad_column", text + f"cast it, or remove the table ({path})")
        if place < 0 and (known := next((name for name in there.names if name.lower() == field.name.lower()), None)):
            text = f"column {field.name} is called {known} in table {path.name}, and case is not told apart: "
            raise UsageError("bad_column", text + f"call it so, give it another name, or remove the table ({path})")


def _same(one: pa.DataType, other: pa.DataType) -> bool:
    """Equal but for what may be null, and for the width of lengths."""
    if pa.types.is_nested(one) or pa.types.is_nested(other):
        if one.num_fields != other.num_fields or _family(one) != _family(other):
            return False
        pairs = [(one.field(place), other.field(place)) for place in range(one.num_fields)]
        named = pa.types.is_struct(one)
        return all((not named or a.name == b.name) and _same(a.type, b.type) for a, b in pairs)
    return bool(_family(one) == _family(other))


def _family(kind: pa.DataType) -> Any:
    families = {
        "text": (pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view),
        "bytes": (pa.types.is_binary, pa.types.is_large_binary, pa.types.is_binary_view),
        "list": (pa.types.is_list, pa.types.is_large_list, pa.types.is_list_view),
        "struct": (pa.types.is_struct,),
        "map": (pa.types.is_map,),
    }
    return next((name for name, tests in families.items() if any(test(kind) for test in tests)), kind)


# --- for anyone ---


@dataclass(frozen=True, slots=True)
class TableInfo:
    name: str
    rows: int
    files: int
    bytes: int
    version: int
    columns: tuple[tuple[str, str], ...]  # name, type


def tables(data: Path) -> Iterator[TableInfo]:
    for path in sorted((data / TABLES).iterdir()) if (data / TABLES).is_dir() else ():
        if not path.name.startswith(".") and (table := _kept(path)):
            yield _info(path.name, table)


def _kept(path: Path) -> DeltaTable | None:
    """None for a plain file, too, of which delta-rs says that its path does not exist.

    Of a name that is too long for a file `Path.is_dir` raises."""
    return _opened(path) if isdir(path) else None  # noqa: PTH112


def _info(name: str, table: DeltaTable) -> TableInfo:
    files = pa.table(table.get_add_actions(flatten=True))
    columns = tuple((field.name, str(field.type)) for field in _schema(table))
    rows, size = (pc.sum(files.column(column)).as_py() or 0 for column in ("num_records", "size_bytes"))
    return TableInfo(name, rows, files.num_rows, size, table.version(), columns)


def last_rows(data: Path, name: str, limit: int, topic: str | None = None) -> list[dict[str, Any]]:
    """The last rows by time where there is one (`ts`, `window_start` …), otherwise any. Raises UsageError.

    With `topic` those of that topic, if the table has such a column."""
    table = _kept(data / TABLES / name) if name and "/" not in name and not name.startswith(".") else None
    if table is None:
        known = ", ".join(info.name for info in tables(data)) or "none"
        raise UsageError("no_table", f"there is no table {name} in {data / TABLES}; there are: {known}")
    schema = _schema(table)
    order = next((field.name for field in schema if field.name == "offset" and pa.types.is_integer(field.type)), None)
    order = order or next((field.name for field in schema if pa.types.is_timestamp(field.type)), None)
    of_topic = topic if schema.get_field_index("topic") >= 0 else None
    if order is None:
        return _as_json(table.to_pyarrow_dataset().head(limit))
    return _as_json(newest(table, order, limit, of_topic))


def _as_json(rows: pa.Table) -> list[dict[str, Any]]:
    return [{name: _plain(value) for name, value in row.items()} for row in rows.to_pylist()]


def _plain(value: Any) -> Any:
    if isinstance(value, bytes):
        return value.decode("utf-8", "backslashreplace")
    if isinstance(value, list | tuple):  # a tuple: key and value of a map
        return [_plain(each) for each in value]
    if isinstance(value, dict):
        return {name: _plain(each) for name, each in value.items()}
    if isinstance(value, float):
        return value if isfinite(value) else None  # JSON has no infinity
    return value.isoformat() if hasattr(value, "isoformat") else value
