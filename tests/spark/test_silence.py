"""`silence` while it catches up: topics that spoke in time are not told, however long reading what they said takes."""

from pathlib import Path

from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql.streaming import StreamingQuery

from flow.house import wait_for
from log.logkit import SOMETIME
from smbroker.spark.pipelines import files
from smbroker.spark.pipelines.frames import Place
from smbroker.spark.pipelines.query import PipelineQuery, Target
from smbroker.spark.pipelines.runner import BUILTIN
from spark.runnerkit import PATIENCE
from spark.sparkkit import Store

PORTION = 5  # messages of a batch
MILLISECOND = 1_000  # in microseconds


def test_a_topic_that_spoke_in_time_is_not_told_while_the_log_is_read(
    spark: SparkSession, store: Store, tmp_path: Path
) -> None:
    """The pump speaks within its 500 ms; between its words are batches of another topic's, which take seconds."""
    for number in range(PORTION):
        store.publish(1, b"pump", SOMETIME + 10 * number * MILLISECOND)
    for number in range(2 * PORTION):
        store.publish(1, b"fan", SOMETIME + (50 + 10 * number) * MILLISECOND)
    store.publish(1, b"pump", SOMETIME + 300 * MILLISECOND)
    file = tmp_path / "silence.py"
    file.write_text((BUILTIN / "silence.py").read_text().replace("LEAST = 10_000", "LEAST = 500"))
    place = Place(store.path, max_rows=PORTION)
    frame = PipelineQuery(spark, files.read(file), Target(store.path, ""), place).frame
    told: list[Row] = []

    def take(batch: DataFrame, _: int) -> None:
        told.extend(row for row in batch.collect() if row.topic == "pump")

    writer = frame.writeStream.outputMode("update").option("checkpointLocation", str(tmp_path / "checkpoint"))
    queries: list[StreamingQuery] = []

    def silent() -> bool:
        if not queries or not queries[-1].isActive:  # Spark's Python may come too late on a busy machine
            queries.append(writer.foreachBatch(take).start())
        return bool(told)

    try:
        wait_for(silent, "the silence after all was read", PATIENCE)
    finally:
        queries[-1].stop()
    assert [(row.state, row.since) for row in told] == [("silent", "2023-11-14T22:13:20.300Z")]
