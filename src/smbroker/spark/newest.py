"""The last rows of a table, from those files and row groups alone that can hold them.

Files are taken by the largest value of the column that orders the rows, as the table's own statistics have it, and
their row groups by Parquet's: what cannot hold a row that is newer than those found is not read. Statistics tell
nothing of one topic among many, so the search for it ends after so many rows.
"""

from datetime import datetime, timedelta
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable

MOST_ROWS = 2_000_000  # that are looked through for one topic: a second or so
ROUNDED = timedelta(milliseconds=1)  # Delta's statistics are cut to milliseconds


def newest(table: DeltaTable, order: str, limit: int, topic: str | None) -> pa.Table:
    """The `limit` rows with the largest `order`, oldest first."""
    dataset = table.to_pyarrow_dataset()
    found = _Found(dataset.schema, order, limit, topic)
    largest = _largest_by_file(table, order)
    files: list[tuple[Any, Any]] = [(largest.get(file.path), file) for file in dataset.get_fragments()]
    known = sorted((one for one in files if one[0] is not None), key=lambda one: one[0], reverse=True)
    for bound, file in [*(one for one in files if one[0] is None), *known]:
        if not found.wants(bound):
            break
        groups = [(_largest_of_group(group, order), group) for group in file.split_by_row_group()]
        for group_bound, group in reversed(groups):
            if found.wants(group_bound):
                found.look(group)
    return found.rows.take(pc.sort_indices(found.rows, [(order, "ascending")]))


class _Found:
    """The best so far."""

    def __init__(self, schema: pa.Schema, order: str, limit: int, topic: str | None) -> None:
        self.rows = schema.empty_table()
        self._order, self._limit, self._topic = order, limit, topic
        self._looked = 0

    def wants(self, largest: Any) -> bool:
        """Whether rows up to `largest` (None: not known) can be among the last."""
        column = self.rows.column(self._order)
        if self.rows.num_rows < self._limit or column.null_count:
            return self._topic is None or self._looked < MOST_ROWS
        return largest is None or bool(largest > pc.min(column).as_py())

    def look(self, group: Any) -> None:
        for batch in group.to_batches(schema=self.rows.schema):
            self._looked += batch.num_rows
            piece = pa.Table.from_batches([batch])
            if self._topic is not None:  # here: the dataset's filter trips over files whose statistics are string views
                piece = piece.filter(pc.equal(piece.column("topic").cast(pa.string()), self._topic))
            both = pa.concat_tables([self.rows, piece])
            self.rows = both.take(pc.select_k_unstable(both, self._limit, [(self._order, "descending")]))


def _largest_by_file(table: DeltaTable, order: str) -> dict[str, Any]:
    actions = pa.table(table.get_add_actions(flatten=True))
    name = f"max.{order}"
    if name not in actions.column_names:
        return {}
    values = zip(actions.column("path").to_pylist(), actions.column(name).to_pylist(), strict=True)
    return {path: _rounded_up(value) if isinstance(value, datetime) else value for path, value in values}


def _rounded_up(value: datetime) -> datetime | None:
    try:
        return value + ROUNDED
    except OverflowError:  # the end of time: then it is not known
        return None


def _largest_of_group(group: Any, order: str) -> Any:
    statistics = group.row_groups[0].statistics or {}
    return statistics.get(order, {}).get("max")
