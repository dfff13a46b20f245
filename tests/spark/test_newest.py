"""The last rows of a table: the same as by sorting all, from the newest files alone."""

import random
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from smbroker.spark.newest import newest
from smbroker.spark.tables import TableWriter, last_rows

UTC = pa.timestamp("us", "UTC")


def table(folder: Path, *batches: list[int]) -> DeltaTable:
    """Each batch is a file."""
    writer = TableWriter(folder)
    for number, offsets in enumerate(batches):
        topics, times = [f"t{n % 7}" for n in offsets], pa.array([1_000_000 + 317 * n for n in offsets], UTC)
        writer.write(pa.table({"offset": offsets, "topic": topics, "ts": times}), "query", number)
    return DeltaTable(folder)


@pytest.mark.parametrize("order", ["offset", "ts"])
@pytest.mark.parametrize("topic", [None, "t3"])
def test_they_are_the_same_as_by_sorting_all(tmp_path: Path, order: str, topic: str | None) -> None:
    numbers = random.Random(7).sample(range(2_000), 2_000)
    whole = table(tmp_path / "tables" / "t", *(numbers[start : start + 250] for start in range(0, 2_000, 250)))
    wanted = [n for n in range(2_000) if topic is None or f"t{n % 7}" == topic]
    for limit in (1, 100, 5_000):
        found = newest(whole, order, limit, topic)
        assert found.column("offset").to_pylist() == wanted[-limit:]


def test_files_that_cannot_hold_them_are_not_read(tmp_path: Path) -> None:
    folder = tmp_path / "tables" / "t"
    known: set[Path] = set()
    for number in range(5):
        table_of = TableWriter(folder)
        offsets = list(range(number * 100, number * 100 + 100))
        table_of.write(pa.table({"offset": offsets, "topic": ["a"] * 100}), "query", number)
        if number == 2:
            known = set(folder.glob("*.parquet"))
    for file in known:
        file.write_bytes(b"not to be read")
    assert [row["offset"] for row in last_rows(tmp_path, "t", 150)] == list(range(350, 500))
    assert [row["offset"] for row in last_rows(tmp_path, "t", 200, "a")] == list(range(300, 500))


def test_a_topic_that_is_not_there_is_not_searched_for_ever(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("smbroker.spark.newest.MOST_ROWS", 250)
    whole = table(tmp_path / "tables" / "t", *([*range(n, n + 100)] for n in range(0, 1_000, 100)))
    min((tmp_path / "tables" / "t").glob("*.parquet"), key=lambda file: file.stat().st_mtime_ns).write_bytes(b"")
    assert newest(whole, "offset", 10, "nowhere").num_rows == 0
