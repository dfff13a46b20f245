"""Delta tables: each batch once, upserts, columns that come and change, packing. No Spark."""

import os
import time
from datetime import UTC as UTC_ZONE
from datetime import datetime
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from smbroker.model.errors import UsageError
from smbroker.spark import tables
from smbroker.spark.tables import TableWriter, last_rows

UTC = pa.timestamp("us", "UTC")


def rows(**columns: object) -> pa.Table:
    return pa.table(columns)


def content(path: Path) -> list[dict[str, object]]:
    return DeltaTable(path).to_pyarrow_table().to_pylist()


def test_a_batch_is_written_once_per_query(tmp_path: Path) -> None:
    path = tmp_path / "tables" / "t"
    assert TableWriter(path).write(rows(a=[1, 2]), "q", 0)
    assert not TableWriter(path).write(rows(a=[1, 2]), "q", 0)  # another process, after a crash
    writer = TableWriter(path)
    assert writer.write(rows(a=[3]), "q", 1)
    assert not writer.write(rows(a=[9]), "q", 1)
    assert not writer.write(rows(a=[9]), "q", 0)
    assert writer.write(rows(a=[4]), "another query", 0)
    assert sorted(row["a"] for row in content(path)) == [1, 2, 3, 4]


def test_an_empty_batch_makes_no_version(tmp_path: Path) -> None:
    writer = TableWriter(tmp_path / "t")
    assert not writer.write(rows(a=pa.array([], pa.int64())), "q", 0)
    assert not (tmp_path / "t").exists()


def test_an_upsert_replaces_rows_with_the_same_key(tmp_path: Path) -> None:
    writer = TableWriter(tmp_path / "t", key=("k", "w"))
    writer.write(rows(k=["a", "a", "b", None], w=pa.array([1, 1, 1, 1], UTC), v=[0, 1, 2, 3]), "q", 0)
    writer.write(rows(k=["a", None, "c", "c"], w=pa.array([1, 1, 2, 2], UTC), v=[10, 30, 4, 5]), "q", 1)
    assert {row["k"]: row["v"] for row in content(tmp_path / "t")} == {"a": 10, "b": 2, None: 30, "c": 5}
    assert len(content(tmp_path / "t")) == 4


@pytest.mark.parametrize("name", ['a"b', '"', "a'b", "a.b", "a\\b", " "])
@pytest.mark.parametrize("keys", [[1, 2], ["x", "y"]])
def test_a_key_may_have_quotes_in_its_name(tmp_path: Path, name: str, keys: list[object]) -> None:
    writer = TableWriter(tmp_path / "t", key=(name,))
    writer.write(rows(**{name: keys, "v": [0, 0]}), "q", 0)
    writer.write(rows(**{name: keys[1:], "v": [1]}), "q", 1)
    assert {row[name]: row["v"] for row in content(tmp_path / "t")} == {keys[0]: 0, keys[1]: 1}


def test_a_table_without_a_key_may_have_backticks_in_its_names(tmp_path: Path) -> None:
    writer = TableWriter(tmp_path / "tables" / "t")
    for batch in range(tables.PACK_AFTER):
        writer.write(rows(offset=[batch], **{"a`b": [batch]}, **({"`": [1]} if batch else {})), "q", batch)
    assert writer.tidy()
    assert last_rows(tmp_path, "t", 1) == [{"offset": batch, "a`b": batch, "`": 1}]


def test_complete_mode_replaces_all(tmp_path: Path) -> None:
    writer = TableWriter(tmp_path / "t", complete=True)
    writer.write(rows(k=["a", "b"]), "q", 0)
    writer.write(rows(k=["c"], n=[1]), "q", 1)
    assert content(tmp_path / "t") == [{"k": "c", "n": 1}]


@pytest.mark.parametrize("key", [(), ("k",)])
def test_a_new_column_is_added_and_a_missing_one_is_null(tmp_path: Path, key: tuple[str, ...]) -> None:
    writer = TableWriter(tmp_path / "t", key)
    writer.write(rows(k=["a"], old=[1]), "q", 0)
    writer.write(rows(k=["b"], new=["x"]), "q", 1)
    found = sorted(content(tmp_path / "t"), key=lambda row: str(row["k"]))
    assert found == [{"k": "a", "old": 1, "new": None}, {"k": "b", "old": None, "new": "x"}]


def test_a_replaced_row_keeps_nothing_of_the_old_one(tmp_path: Path) -> None:
    writer = TableWriter(tmp_path / "t", ("k",))
    writer.write(rows(k=["a", "b"], old=[1, 2], pairs=[[{"x": 1}], None]), "q", 0)
    writer.write(rows(k=["a"], new=["x"]), "q", 1)
    found = sorted(content(tmp_path / "t"), key=lambda row: str(row["k"]))
    assert found == [
        {"k": "a", "old": None, "pairs": None, "new": "x"},
        {"k": "b", "old": 2, "pairs": None, "new": None},
    ]


@pytest.mark.parametrize("key", [(), ("k",)])
@pytest.mark.parametrize("as_reader", [False, True])
def test_what_was_never_null_may_become_so(tmp_path: Path, key: tuple[str, ...], as_reader: bool) -> None:
    """Spark says of a count that it is never null, and likewise of what a list of constants holds."""
    number = pa.field("n", pa.int64(), nullable=False)
    listed = pa.field("l", pa.list_(pa.struct([number])), nullable=False)
    named = pa.field("m", pa.map_(pa.string(), pa.field("value", pa.int64(), nullable=False)))
    counts = pa.schema([pa.field("k", pa.string()), number, listed, named])
    never = pa.table({"k": ["a"], "n": [1], "l": [[{"n": 1}]], "m": [[("x", 1)]]}, counts)
    maybe = rows(k=["b"], n=pa.array([None], pa.int64()), l=[[{"n": 2}, {"n": None}]])
    writer = TableWriter(tmp_path / "t", key)
    for batch, each in enumerate([never, maybe, rows(k=["c"]), never.append_column(number.with_name("o"), [[5]])]):
        writer.write(each.to_reader() if as_reader else each, "q", batch)
    writer.write(rows(k=["d"]), "q", 4)
    found = {row["k"]: (row["n"], row["o"]) for row in content(tmp_path / "t") if row["k"] != "a" or row["o"]}
    assert found == {"a": (1, 5), "b": (None, None), "c": (None, None), "d": (None, None)}


def test_zeros_of_both_signs_are_one_key(tmp_path: Path) -> None:
    writer = TableWriter(tmp_path / "t", ("k",))
    for batch in range(2):
        writer.write(rows(k=[-0.0, 0.0, None, float("nan"), float("nan"), 1.0], v=[1, 2, 3, 4, 5, 6]), "q", batch)
    assert sorted(row["v"] for row in content(tmp_path / "t")) == [2, 3, 5, 6]  # type: ignore[type-var]


@pytest.mark.parametrize("key", [(), ("k",)])
def test_a_column_of_another_type_is_refused(tmp_path: Path, key: tuple[str, ...]) -> None:
    writer = TableWriter(tmp_path / "t", key)
    writer.write(rows(k=["a"], v=[1.5], s=[[{"x": 1}]]), "q", 0)
    with pytest.raises(UsageError, match="column v is double in table t and would become int64: give it another name"):
        writer.write(rows(k=["a"], v=[1]), "q", 1)
    with pytest.raises(UsageError, match="column s is list"):
        writer.write(rows(k=["a"], s=[[{"x": "text"}]]), "q", 1)
    with pytest.raises(UsageError, match="column n is null, which a table cannot hold"):
        writer.write(rows(n=pa.nulls(1)), "q", 1)
    writer.write(rows(k=["b"], v=[2.5], s=[[{"x": 2}]]), "q", 1)
    assert sorted(row["v"] for row in content(tmp_path / "t")) == [1.5, 2.5]


def test_many_small_files_are_packed_and_batches_still_known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tables, "PACK_AFTER", 5)
    monkeypatch.setattr(tables, "KEPT_HOURS", 0)
    writer = TableWriter(tmp_path / "t")
    for batch in range(5):
        writer.write(rows(a=[batch]), "q", batch)
        assert writer.tidy() == (batch == 4)
    assert len(list((tmp_path / "t").glob("*.parquet"))) == 1
    assert not TableWriter(tmp_path / "t").write(rows(a=[4]), "q", 4)
    assert sorted(row["a"] for row in content(tmp_path / "t")) == [0, 1, 2, 3, 4]


def test_what_a_killed_writer_left_is_removed_and_what_a_reader_may_need_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tables, "PACK_AFTER", 3)
    first = TableWriter(tmp_path / "t")
    for batch in range(4):
        first.write(rows(a=[batch]), "q", batch)
    DeltaTable(tmp_path / "t").create_checkpoint()
    old, new = (tmp_path / "t" / f"part-00000-{word}.zstd.parquet" for word in ("old", "new"))
    for file in (old, new):
        file.write_bytes(b"in no commit")
    before = time.time() - 2 * 3_600
    for file in (tmp_path / "t").glob("*.parquet"):
        if file != new:
            os.utime(file, (before, before))
    reader = DeltaTable(tmp_path / "t")
    second = TableWriter(tmp_path / "t")
    second.write(rows(a=[4]), "q", 4)
    assert second.tidy()
    assert (old.exists(), new.exists()) == (False, True)
    assert len(reader.to_pyarrow_table()) == 4
    assert len(content(tmp_path / "t")) == 5


def test_what_cannot_be_tidied_up_is_tried_again_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tables, "PACK_AFTER", 2)
    writer = TableWriter(tmp_path / "t")
    for batch in range(2):
        writer.write(rows(a=[batch]), "q", batch)
    lost = next((tmp_path / "t").glob("*.parquet"))
    kept = lost.rename(tmp_path / "kept")
    with pytest.raises(Exception, match=r"not found|No such file"):
        writer.tidy()
    assert not writer.tidy()
    kept.rename(lost)
    for batch in range(2, 4):
        writer.write(rows(a=[batch]), "q", batch)
    assert writer.tidy()
    assert sorted(row["a"] for row in content(tmp_path / "t")) == [0, 1, 2, 3]


def test_a_reader_of_batches_is_as_good_as_a_table(tmp_path: Path) -> None:
    writer = TableWriter(tmp_path / "t")
    for batch in range(2):
        writer.write(rows(a=list(range(5))).to_reader(2), "q", batch)
    assert len(content(tmp_path / "t")) == 10


def test_what_is_shown_of_tables(tmp_path: Path) -> None:
    assert list(tables.tables(tmp_path)) == []
    with pytest.raises(UsageError, match=r"there is no table x in .*; there are: none"):
        last_rows(tmp_path, "x", 3)
    writer = TableWriter(tmp_path / "tables" / "t")
    writer.write(rows(offset=[3, 1], payload=[b"a\xff", b""], ts=pa.array([0, 1], UTC)), "q", 0)
    writer.write(rows(offset=[2], payload=[b"b"], ts=pa.array([5], UTC)), "q", 1)
    (info,) = tables.tables(tmp_path)
    assert (info.name, info.rows, info.files) == ("t", 3, 2)
    assert [row["offset"] for row in last_rows(tmp_path, "t", 2)] == [2, 3]
    assert last_rows(tmp_path, "t", 1)[0]["payload"] == "a\\xff"


def test_what_is_shown_is_json_whatever_the_values(tmp_path: Path) -> None:
    last = datetime(9999, 12, 31, 23, 59, 59, 999_999, UTC_ZONE)
    ends = pa.array([[("end", last)]], pa.map_(pa.string(), UTC))
    values = rows(until=pa.array([last], UTC), ends=ends, mean=[float("nan")], means=[[float("inf"), 1.5]])
    TableWriter(tmp_path / "tables" / "t").write(values, "q", 0)
    shown = "9999-12-31T23:59:59.999999+00:00"
    assert last_rows(tmp_path, "t", 1) == [
        {"until": shown, "ends": [["end", shown]], "mean": None, "means": [None, 1.5]}
    ]


def test_a_column_offset_that_is_no_number_orders_nothing(tmp_path: Path) -> None:
    TableWriter(tmp_path / "tables" / "t").write(rows(offset=[[1], [2]]), "q", 0)
    assert last_rows(tmp_path, "t", 1) == [{"offset": [1]}]


@pytest.mark.parametrize("key", [(), ("k",)])
def test_a_column_in_another_case_is_told_with_what_to_do(tmp_path: Path, key: tuple[str, ...]) -> None:
    writer = TableWriter(tmp_path / "t", key)
    writer.write(rows(k=[1], room=["a"]), "q", 0)
    with pytest.raises(UsageError, match=r"column Room is called room in table t, .*: call it so, .*remove the table"):
        writer.write(rows(k=[2], Room=["b"]), "q", 1)


def test_a_plain_file_beside_the_tables_is_none(tmp_path: Path) -> None:
    TableWriter(tmp_path / "tables" / "t").write(rows(a=[1]), "q", 0)
    (tmp_path / "tables" / "notes.txt").write_text("x")
    assert [one.name for one in tables.tables(tmp_path)] == ["t"]
    with pytest.raises(UsageError, match=r"there is no table notes.txt in .*; there are: t"):
        last_rows(tmp_path, "notes.txt", 1)


@pytest.mark.parametrize("name", ["a" * 300, "a\0b", "a" * 5_000])
def test_there_is_no_table_with_a_name_that_no_file_can_have(tmp_path: Path, name: str) -> None:
    TableWriter(tmp_path / "tables" / "t").write(rows(a=[1]), "q", 0)
    with pytest.raises(UsageError, match=r"there is no table a.* in .*; there are: t"):
        last_rows(tmp_path, name, 1)
