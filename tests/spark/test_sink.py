"""The sink against a real broker: batches, streams, repeats, and a broker that goes away."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import AnalysisException, StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from flow.house import Broker
from flow.lasting import Home
from smbroker.client.batches import BatchClient
from smbroker.model.errors import SmbError
from smbroker.spark import publish_batch
from smbroker.spark.sink import publish_rows
from web.calls import KINDS, get, post_lines


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path, kinds=KINDS)


@pytest.fixture
def broker(home: Home) -> Iterator[Broker]:
    with home.broker() as broker:
        yield broker


def url(home: Home) -> str:
    return f"http://127.0.0.1:{home.ports['web']}"


def derived(broker: Broker, pattern: str = "derived/%23") -> list[dict[str, Any]]:
    return get(broker, f"/v1/messages?filter={pattern}").rows


def doubled(spark: SparkSession, home: Home) -> DataFrame:
    messages = spark.readStream.format("smb").option("path", str(home.data)).option("topics", "in/#").load()
    return messages.select(
        F.concat(F.lit("derived/"), "topic").alias("topic"),
        (F.col("payload").cast("string").cast("int") * 2).cast("string").alias("payload"),
    )


def test_a_batch_write_publishes_every_row_once(spark: SparkSession, home: Home, broker: Broker) -> None:
    frame = spark.range(1_000).select(
        F.concat(F.lit("derived/"), F.col("id") % 3).alias("topic"),
        F.col("id").cast("string").alias("payload"),
        F.lit("int").alias("kind"),
        (F.col("id") == 7).alias("retain"),
        F.array(F.struct(F.lit("unit").alias("key"), F.lit("m").alias("value"))).alias("properties"),
    )
    frame.repartition(4).write.format("smb").option("url", url(home)).mode("append").save()
    found = derived(broker)
    assert sorted(int(row["text"]) for row in found) == list(range(1_000))
    assert {row["kind"] for row in found} == {"int"}
    assert all(row["topic"] == f"derived/{int(row['text']) % 3}" for row in found)
    read = spark.read.format("smb").option("path", str(home.data)).load()
    assert [row.payload for row in read.where("retain").collect()] == [b"7"]
    assert read.select("properties").distinct().collect() == [([("unit", "m")],)]


def test_a_stream_publishes_each_row_once_across_restarts_of_both_sides(
    spark: SparkSession, home: Home, tmp_path: Path
) -> None:
    def run() -> None:
        writer = doubled(spark, home).writeStream.format("smb").option("url", url(home))
        query = writer.option("checkpointLocation", str(tmp_path / "check")).trigger(availableNow=True).start()
        assert query.awaitTermination(60)

    with home.broker() as broker:
        post_lines(broker, *({"topic": "in/a", "payload": str(n)} for n in range(50)))
        run()
        run()
        assert [int(row["text"]) for row in derived(broker)] == [2 * n for n in range(50)]
    for commit in (tmp_path / "check" / "commits").iterdir():
        commit.unlink()  # as if Spark had been killed between its sink's commit and its own
    with home.broker() as broker:
        post_lines(broker, *({"topic": "in/a", "payload": str(n)} for n in range(50, 60)))
        run()
        run()
        assert [int(row["text"]) for row in derived(broker)] == [2 * n for n in range(60)]


def test_publish_batch_in_update_mode_publishes_a_repeated_batch_once(
    spark: SparkSession, home: Home, broker: Broker, tmp_path: Path
) -> None:
    post_lines(broker, *({"topic": f"in/{n % 2}", "payload": str(n)} for n in range(10)))
    messages = spark.readStream.format("smb").option("path", str(home.data)).option("topics", "in/#").load()
    counts = messages.groupBy("topic").count()
    said = []

    def publish(frame: DataFrame, batch: int) -> None:
        rows = frame.select(
            F.concat(F.lit("derived/"), "topic").alias("topic"), F.col("count").cast("string").alias("payload")
        )
        said.extend(publish_batch(rows, batch, "counts", url(home)) for _ in range(2))

    query = (
        counts.writeStream.outputMode("update")
        .option("checkpointLocation", str(tmp_path / "check"))
        .foreachBatch(publish)
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(60)
    assert [answer["repeated"] for answer in said] == [False, True]
    assert {row["topic"]: row["text"] for row in derived(broker)} == {"derived/in/0": "5", "derived/in/1": "5"}
    assert len(derived(broker)) == 2


def test_large_rows_and_many_of_them_come_in_order_within_a_partition(
    spark: SparkSession, home: Home, broker: Broker
) -> None:
    frame = spark.range(0, 40, 1, 1).select(
        F.lit("derived/large").alias("topic"), F.repeat(F.col("id").cast("string"), 400_000).alias("payload")
    )
    answer = publish_batch(frame, 0, "large", url(home))
    assert answer["count"] == 40
    lengths = [len(row["text"]) for row in derived(broker)]
    assert lengths == [400_000 * len(str(n)) for n in range(40)]


def test_rows_that_cannot_be_published_fail_the_batch_or_are_left_out(
    spark: SparkSession, home: Home, broker: Broker
) -> None:
    frame = spark.createDataFrame(
        [("derived/a", b"1"), (None, b"2"), ("", b"3"), ("$SYS/x", b"4"), ("derived/b", None)],
        "topic string, payload binary",
    ).coalesce(1)
    with pytest.raises(Exception, match="needs a topic"):
        publish_batch(frame, 0, "bad", url(home))
    with pytest.raises(SmbError, match="message 2"):
        publish_batch(frame.where("topic is not null"), 0, "bad", url(home))
    assert derived(broker) == []
    answer = publish_batch(frame, 0, "bad", url(home), skip_bad=True)
    assert (answer["count"], answer["skipped"]) == (2, 2)
    assert [row["text"] for row in derived(broker)] == ["1", ""]


@pytest.mark.parametrize(
    ("columns", "options", "said"),
    [
        ("'t' AS topic", {"url": "http://127.0.0.1:1"}, "needs the columns topic and payload"),
        ("'t' AS topic, 1 AS payload", {"url": "http://127.0.0.1:1"}, "payload is int"),
        ("'t' AS topic, 'p' AS payload, 1 AS room", {"url": "http://127.0.0.1:1"}, "leave out room"),
        ("'t' AS topic, 'p' AS payload", {}, "option url is missing"),
        ("'t' AS topic, 'p' AS payload", {"url": "nonsense"}, "the broker's address is like"),
    ],
)
def test_a_mistake_is_told(spark: SparkSession, columns: str, options: dict[str, str], said: str) -> None:
    with pytest.raises((AnalysisException, Exception), match=said):
        spark.sql(f"SELECT {columns}").write.format("smb").options(**options).mode("append").save()


def test_a_stream_without_a_broker_fails_clearly_and_goes_on_when_it_is_back(
    spark: SparkSession, home: Home, tmp_path: Path
) -> None:
    def publish(frame: DataFrame, batch: int) -> None:
        publish_batch(frame, batch, "away", url(home), patience=0.5)

    def run() -> None:
        writer = doubled(spark, home).writeStream.foreachBatch(publish)
        query = writer.option("checkpointLocation", str(tmp_path / "check")).trigger(availableNow=True).start()
        query.awaitTermination(60)

    with home.broker() as broker:
        post_lines(broker, {"topic": "in/a", "payload": "21"})
    with pytest.raises(StreamingQueryException, match="does not answer"):
        run()
    with home.broker() as broker:
        run()
        assert [row["text"] for row in derived(broker)] == ["42"]


def test_rows_whose_stages_the_broker_has_lost_are_staged_again(
    home: Home, broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As when it was started anew between the two: their files are gone."""
    commit, tried = BatchClient.commit, []

    def after_a_loss(self: BatchClient, query: str, batch: int, stages: list[str], *rest: Any) -> dict[str, Any]:
        tried.append(stages)
        if len(tried) == 1:
            for file in [file for name in stages for file in home.data.rglob(f"*{name}*")]:
                file.unlink()
        return commit(self, query, batch, stages, *rest)

    monkeypatch.setattr(BatchClient, "commit", after_a_loss)
    rows = pa.table({"topic": ["derived/a", "derived/b"], "payload": ["1", "2"]})
    assert publish_rows(rows, 0, "lost", url(home))["count"] == 2
    assert publish_rows(rows, 0, "lost", url(home))["repeated"]
    assert [row["text"] for row in derived(broker)] == ["1", "2"]
    assert len(tried) == 3
