"""The source as a batch: rows, columns, ranges, topics, times, and what it says when an option is wrong."""

from datetime import UTC, datetime, timedelta
from itertools import pairwise

import pytest
from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812

from log.logkit import ORIGINS, SOMETIME
from smbroker.spark.source import SCHEMA
from spark.sparkkit import Store, offsets, read, rows, rows_of_log

COLUMNS = (  # of INTERFACES.md
    "offset bigint, ts timestamp, topic string, payload binary, kind string, dialect string, source string, "
    "client string, retain boolean, qos int, properties array<struct<key:string,value:string>>"
)
SECOND = 1_000_000


def iso(microseconds: int) -> str:
    return (datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=microseconds)).isoformat()


def test_the_columns_are_those_of_the_interface(spark: SparkSession, store: Store) -> None:
    frame = read(spark, store)
    assert ", ".join(f"{name} {type_}" for name, type_ in frame.dtypes) == COLUMNS
    assert frame.schema == SCHEMA


def test_an_empty_log_has_no_rows(spark: SparkSession, store: Store) -> None:
    assert rows(read(spark, store)) == []


def test_all_rows_whichever_files_hold_them(spark: SparkSession, store: Store) -> None:
    store.publish_mixed(700)
    store.seal()
    store.publish_mixed(50)
    store.log.rotate()
    store.publish_mixed(30)
    before = rows(read(spark, store))
    assert before == rows_of_log(store)
    part = offsets(read(spark, store, startingOffset=690, endingOffset=770, topics="t/1,t/2"))
    assert part == [offset for offset in range(690, 770) if before[offset]["topic"] in ("t/1", "t/2")]
    store.seal()
    assert rows(read(spark, store)) == before
    assert offsets(read(spark, store, startingOffset=690, endingOffset=770, topics="t/1,t/2")) == part


def test_ranges(spark: SparkSession, store: Store) -> None:
    store.publish(10)
    store.seal()
    store.publish(10)
    for start, end, found in [
        ("earliest", "latest", range(20)),
        (3, 12, range(3, 12)),
        (0, 0, range(0)),
        (12, 3, range(0)),
        (15, 1000, range(15, 20)),
        (1000, "latest", range(0)),
        ("latest", "latest", range(0)),
        ("Earliest", 1, range(1)),
    ]:
        assert offsets(read(spark, store, startingOffset=start, endingOffset=end)) == list(found), (start, end)


def test_times(spark: SparkSession, store: Store) -> None:
    for second in range(6):
        store.publish(2, received=SOMETIME + second * SECOND)
        if second == 2:
            store.seal()
    at = [iso(SOMETIME + second * SECOND) for second in range(6)]
    for start, end, found in [
        (at[1], "latest", range(2, 12)),
        (at[1].replace("+00:00", ""), at[4].replace("+00:00", "Z"), range(2, 8)),
        ("2023-11-15T00:13:22+02:00", "latest", range(4, 12)),
        ("1999-12-31", "latest", range(12)),
        ("2999-01-01", "latest", range(0)),
    ]:
        assert offsets(read(spark, store, startingOffset=start, endingOffset=end)) == list(found), (start, end)


def test_topics(spark: SparkSession, store: Store) -> None:
    topics = [b"a", b"a/b", b"a/b/c", b"x/b", b"$alerts/a"]
    for topic in topics:
        store.publish(1, topic)
    store.seal()
    for topic in topics:
        store.publish(1, topic)
    for filters, found in [
        ("a/b", [1]),
        ("a/b, x/b", [1, 3]),
        ("a/#", [0, 1, 2]),
        ("+/b", [1, 3]),
        ("#", [0, 1, 2, 3]),
        ("$alerts/#", [4]),
        ("nobody/#", []),
        ("nobody", []),
        ("x/b,a/b/+", [2, 3]),
    ]:
        expected = found + [offset + 5 for offset in found]
        assert offsets(read(spark, store, topics=filters)) == expected, filters
    assert offsets(read(spark, store)) == list(range(10))  # without filters: all, also what begins with $


def test_payloads_of_all_sorts(spark: SparkSession, store: Store) -> None:
    payloads = [b"", bytes(range(256)), b"\xff\xfe", b"x" * (1 << 20), "ä€😀".encode()] + [b"y" * (1 << 20)] * 40
    store.publish_payloads(payloads, ORIGINS[1])
    assert [bytes(row.payload) for row in read(spark, store).collect()] == payloads
    store.seal()
    assert [bytes(row.payload) for row in read(spark, store).collect()] == payloads


def test_many_rows_are_read_by_several_tasks(spark: SparkSession, store: Store) -> None:
    for _ in range(6):
        store.publish(50_000)
    store.seal()
    store.publish(60_000)
    by_task = (
        read(spark, store)
        .groupBy(F.spark_partition_id().alias("task"))
        .agg(F.count("offset"), F.count_distinct("offset"), F.min("offset"), F.max("offset"))
    )
    cuts = [0, 262_144, 360_000]  # at a row group, while it is sealed
    assert [tuple(row) for row in by_task.orderBy("task").collect()] == [
        (task, end - start, end - start, start, end - 1) for task, (start, end) in enumerate(pairwise(cuts))
    ]


def test_what_is_gone_is_an_error_that_names_the_first_offset(spark: SparkSession, store: Store) -> None:
    store.publish(10)
    store.seal()
    store.publish(10)
    store.forget_sealed()
    assert offsets(read(spark, store)) == list(range(10, 20))
    with pytest.raises(AnalysisException, match=r"offset 4 is gone; the first there is is 10"):
        read(spark, store, startingOffset=4).collect()
    assert offsets(read(spark, store, startingOffset=4, failOnDataLoss=False)) == list(range(10, 20))
    assert offsets(read(spark, store, startingOffset=4, endingOffset=8, failOnDataLoss="false")) == []


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"topic": "a"}, "unknown option topic; the options of smb are path, topics, "),
        ({"topics": "a/#/b"}, "option topics: a/#/b: # can only be the last level"),
        ({"topics": "a,,b"}, "option topics: the topic is empty"),
        ({"startingOffset": "yesterday"}, "option startingOffset: 'yesterday' is none of earliest, latest, an offset"),
        ({"endingOffset": "-1"}, "option endingOffset: '-1' is none of"),
        ({"maxRowsPerBatch": "0"}, "option maxRowsPerBatch: '0' is not a number above 0"),
        ({"failOnDataLoss": "maybe"}, "option failOnDataLoss: 'maybe' is neither true nor false"),
        ({"path": ""}, "option path is missing: the data directory of the broker"),
    ],
)
def test_a_wrong_option_is_named_in_one_line(
    spark: SparkSession, store: Store, options: dict[str, str], said: str
) -> None:
    with pytest.raises(AnalysisException) as caught:
        spark.read.format("smb").options(**({"path": str(store.path)} | options)).load()
    assert any(said in line for line in str(caught.value).splitlines())


def test_a_place_without_a_log_and_a_schema_of_ones_own_are_refused(spark: SparkSession, store: Store) -> None:
    with pytest.raises(AnalysisException, match="there is no log in /nowhere/log"):
        spark.read.format("smb").load("/nowhere").collect()
    with pytest.raises(AnalysisException, match=r"columns of smb are fixed, leave out schema\(\)"):
        spark.read.format("smb").schema("topic string").load(str(store.path)).collect()
