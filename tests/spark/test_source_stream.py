"""The source as a stream: stories of batches, stops, sealing and retention; each offset comes exactly once."""

import json
from pathlib import Path

import pytest
from pyspark.errors import AnalysisException, StreamingQueryException
from pyspark.sql import SparkSession

from log.logkit import ORIGINS
from spark.sparkkit import Store, Stream


def test_batches_are_limited_and_what_is_published_meanwhile_follows(
    spark: SparkSession, store: Store, tmp_path: Path
) -> None:
    store.publish(100)
    store.seal()
    store.publish(50)
    stream = Stream(spark, store, tmp_path / "checkpoint", maxRowsPerBatch=40)
    with stream.running() as query:
        query.processAllAvailable()
        assert [len(batch) for batch in stream.batches.values()] == [40, 40, 40, 30]
        store.publish(10)
        store.seal()
        store.publish(1)
        query.processAllAvailable()
        progress = query.lastProgress
        assert progress is not None
        source = json.loads(progress.json)["sources"][0]
    assert stream.offsets == list(range(161))
    assert source["endOffset"] == source["latestOffset"] == {"offset": 161}


def test_batches_are_limited_by_their_bytes(spark: SparkSession, store: Store, tmp_path: Path) -> None:
    for _ in range(2):
        store.publish_payloads([b"x" * 100_000] * 20, ORIGINS[1])
    store.seal()
    store.publish_payloads([b"x" * 100_000] * 20, ORIGINS[1])
    stream = Stream(spark, store, tmp_path / "checkpoint", maxBytesPerBatch=1_000_000)
    with stream.running() as query:
        query.processAllAvailable()
    assert stream.offsets == list(range(60))
    assert all(8 <= len(batch) <= 10 for batch in list(stream.batches.values())[:-1])
    stream.available()


def test_a_stream_goes_on_where_it_was_across_failures_and_sealing(
    spark: SparkSession, store: Store, tmp_path: Path
) -> None:
    """[0, 1, 2 fails, sealed meanwhile, 2 again, 3 …]: the batch that is repeated has the same rows."""
    store.publish(150)
    stream = Stream(spark, store, tmp_path / "checkpoint", maxRowsPerBatch=40)

    def fail(number: int) -> None:
        if number == 2:
            raise RuntimeError("the sink broke")

    stream.after = fail
    query = stream.start()
    with pytest.raises(StreamingQueryException):
        query.awaitTermination(60)
    assert sorted(stream.batches) == [0, 1, 2]
    store.seal()
    store.publish(50)
    stream.after = lambda number: store.seal() if number == 3 else None  # sealed within a batch
    with stream.running() as query:
        query.processAllAvailable()
    assert stream.repeated == [2]
    assert stream.offsets == list(range(200))
    store.publish(5)
    with stream.running() as query:
        query.processAllAvailable()
    assert stream.offsets == list(range(205))


def test_available_now_ends_with_what_was_there_when_it_began(
    spark: SparkSession, store: Store, tmp_path: Path
) -> None:
    store.publish(100)
    stream = Stream(spark, store, tmp_path / "checkpoint", maxRowsPerBatch=30)
    stream.after = lambda number: store.publish(7) if number < 2 else None
    stream.available()
    assert stream.offsets == list(range(100))
    assert len(stream.batches) == 4
    stream.after = lambda _: None
    stream.available()
    assert stream.offsets == list(range(114))


def test_a_stream_of_some_topics_from_a_place_on(spark: SparkSession, store: Store, tmp_path: Path) -> None:
    store.publish_mixed(100)
    store.seal()
    store.publish_mixed(100)
    stream = Stream(spark, store, tmp_path / "checkpoint", topics="t/3", startingOffset=50)
    stream.available()
    assert stream.offsets == [offset for offset in range(50, 200) if offset % 5 == 3]


def test_latest_begins_with_what_comes(spark: SparkSession, store: Store, tmp_path: Path) -> None:
    store.publish(20)
    stream = Stream(spark, store, tmp_path / "checkpoint", startingOffset="latest")
    with stream.running() as query:
        query.processAllAvailable()
        store.publish(3)
        query.processAllAvailable()
    assert stream.offsets == [20, 21, 22]


def test_a_checkpoint_that_retention_has_overtaken(spark: SparkSession, store: Store, tmp_path: Path) -> None:
    store.publish(10)
    stream = Stream(spark, store, tmp_path / "checkpoint")
    stream.available()
    store.publish(10)
    store.seal()
    store.publish(5)
    store.forget_sealed()
    query = stream.start()
    with pytest.raises(StreamingQueryException, match="offset 10 is gone; the first there is is 20"):
        query.awaitTermination(60)
    going_on = Stream(spark, store, tmp_path / "checkpoint", failOnDataLoss=False)
    going_on.available()
    assert going_on.offsets == [20, 21, 22, 23, 24]


def test_another_log_under_an_old_checkpoint_is_told(spark: SparkSession, store: Store, tmp_path: Path) -> None:
    store.publish(10)
    Stream(spark, store, tmp_path / "checkpoint").available()
    other = Store(tmp_path / "other")
    other.publish(3)
    query = Stream(spark, other, tmp_path / "checkpoint").start()
    with pytest.raises(StreamingQueryException, match="offset 10 is past the log's end, 3: is it another log"):
        query.awaitTermination(60)
    other.log.close()


def test_a_stream_has_no_end(spark: SparkSession, store: Store, tmp_path: Path) -> None:
    stream = Stream(spark, store, tmp_path / "checkpoint", endingOffset=5)
    with pytest.raises((AnalysisException, StreamingQueryException), match=r"endingOffset is for spark\.read"):
        stream.available()
