"""One pipeline as a running query: each batch goes to its table, then to its topics, both at most once.

Spark repeats a batch that it does not know to be done; table and broker each know the last batch of a query and skip
what they have. *Query* is the id in the checkpoint: a new checkpoint counts batches from 0 again and is another query.
"""

import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow.dataset
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from smbroker.spark.pipelines import frames
from smbroker.spark.pipelines.errors import located
from smbroker.spark.pipelines.files import Pipeline
from smbroker.spark.pipelines.frames import Place
from smbroker.spark.pipelines.problem import Problem
from smbroker.spark.pipelines.reset import CHECKPOINTS, start_of
from smbroker.spark.sink import publish_batch, publish_rows
from smbroker.spark.tables import TABLES, TableWriter

INITIALIZING = "Initializing sources"  # Spark's words
EVERY_WITH_STATE = "1 second"
TOO_LARGE = "spark.driver.maxResultSize"  # Spark names it when a result is
SETTINGS = {
    "spark.sql.streaming.stateStore.providerClass": (
        "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"  # state need not fit in memory
    ),
    "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
    "spark.sql.streaming.pollingDelay": "50ms",  # how often an idle query asks whether there is something new
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",  # as tables have it
    "spark.sql.streaming.minBatchesToRetain": "20",
    "spark.sql.streaming.numRecentProgressUpdates": "5",
}
SCRATCH = ".batch"  # beside the tables: a batch that is too large for memory


@dataclass(frozen=True, slots=True)
class Target:
    """Where results go."""

    data: Path
    url: str | None  # of the broker's HTTP listener; None: there is none, so no topics
    token: Callable[[], str | None] = lambda: None  # asked for each batch: a broker that starts makes a new one


def _own_session(spark: SparkSession) -> SparkSession:
    """One of its own for each pipeline: views and settings do not meet."""
    made = spark.newSession()
    for name, value in SETTINGS.items():
        made.conf.set(name, value)
    return made


class PipelineQuery:
    def __init__(
        self,
        spark: SparkSession,
        pipeline: Pipeline,
        target: Target,
        place: Place,
        warn: Callable[[str], None] = lambda _: None,
    ) -> None:
        """Reads the file into Spark; raises Problem. `spark` is the session of all: this gets one of its own."""
        self.pipeline = pipeline
        self._warn = warn
        self._target = target
        self._checkpoint = target.data / CHECKPOINTS / pipeline.name
        self._topic = None if target.url is None else pipeline.topic
        if pipeline.table is None and self._topic is None:
            raise pipeline.problem("topic", "there is no web listener (--url), so nothing can be published")
        started = start_of(target.data, pipeline.name)
        self.frame = frames.frame(_own_session(spark), pipeline, replace(place, start=started or place.start))
        self._writer: TableWriter | None = None
        self._failure: Exception | None = None  # of the batch: it knows more than what Spark makes of it
        self._query: StreamingQuery | None = None

    def start(self, once: bool = False) -> None:
        """Raises Problem."""
        pipeline = self.pipeline
        writer = self.frame.writeStream.outputMode(pipeline.mode).queryName(pipeline.name).foreachBatch(self._write)
        every = pipeline.every or (EVERY_WITH_STATE if frames.is_stateful(self.frame) else "0 seconds")
        try:
            timed = writer.trigger(availableNow=True) if once else writer.trigger(processingTime=every)
            if pipeline.table:
                self._writer = TableWriter(
                    self._target.data / TABLES / pipeline.table, pipeline.key, pipeline.mode == "complete"
                )
            self._query = timed.option("checkpointLocation", str(self._checkpoint)).start()
        except Exception as error:  # unsupported plans, a checkpoint of another query, a table that cannot be opened
            raise located(pipeline, error) from error

    @property
    def is_active(self) -> bool:
        return self._query is not None and self._query.isActive

    @property
    def is_starting(self) -> bool:
        """Whether Spark still makes its readers, which takes seconds of processor time."""
        return self.is_active and self._query is not None and self._query.status["message"] == INITIALIZING

    def stop(self) -> None:
        if self._query:
            self._query.stop()

    def problem(self) -> Problem | None:
        """Why it has ended, if it failed."""
        error = self._query.exception() if self._query else None
        if error is None:
            return None
        return located(self.pipeline, self._failure or error)

    def progress(self) -> dict[str, Any] | None:
        last = self._query.lastProgress if self._query else None
        return json.loads(last.json) if last else None

    # --- a batch ---

    def _write(self, batch: DataFrame, number: int) -> None:
        try:
            self._failure = None
            self._write_both(batch, number)
        except Exception as error:
            self._failure = error
            raise

    def _write_both(self, batch: DataFrame, number: int) -> None:
        """By one job of Spark where the batch fits in memory: each costs some 0.1 s, however few its rows."""
        topic, writer = self._topic, self._writer
        if topic is None:
            rows = frames.storable(batch)
        elif writer is None:
            rows = frames.published(batch, topic)
        else:
            rows = frames.stored_and_published(batch, topic)
        try:
            table = rows.toArrow()
        except Exception as error:
            if TOO_LARGE not in str(error):
                raise
            self._write_large(batch, number)
            return
        published = table if topic else None
        if topic and writer:
            table, published = frames.parted(table)
        if writer:
            writer.write(table, self._query_id(), number)
        if published is not None and published.num_rows:
            target, client = self._target, self.pipeline.client
            assert target.url is not None
            publish_rows(published, number, self._query_id(), target.url, target.token(), client=client)
        self._tidy()

    def _write_large(self, batch: DataFrame, number: int) -> None:
        """So that no process holds the whole of it."""
        if self._writer is None:
            self._publish_large(batch, number)
        elif self._topic is None:
            self._store_large(frames.storable(batch), number)
        else:
            kept = batch.persist()
            try:
                self._store_large(frames.storable(kept), number)
                self._publish_large(kept, number)
            finally:
                kept.unpersist()
        self._tidy()

    def _tidy(self) -> None:
        """After all else: nobody waits for it, and the batch is done, whatever goes wrong here."""
        try:
            if self._writer:
                self._writer.tidy()
        except Exception as error:
            self._warn(f"{self.pipeline.name}: table {self.pipeline.table} cannot be tidied up now: {error}")

    def _store_large(self, rows: DataFrame, number: int) -> None:
        """By way of the disk."""
        assert self._writer
        scratch = self._target.data / TABLES / SCRATCH / self.pipeline.name
        rows.write.mode("overwrite").parquet(str(scratch))
        try:
            stored = pyarrow.dataset.dataset(scratch, format="parquet")
            scanner = stored.scanner(batch_size=1024, batch_readahead=1, fragment_readahead=1)
            self._writer.write(scanner.to_reader(), self._query_id(), number)
        finally:
            shutil.rmtree(scratch, ignore_errors=True)

    def _publish_large(self, batch: DataFrame, number: int) -> None:
        """By the tasks."""
        target = self._target
        assert self._topic
        assert target.url is not None
        rows = frames.published(batch, self._topic)
        publish_batch(
            rows, number, self._query_id(), target.url, target.token(), client=self.pipeline.client, skip_bad=True
        )

    def _query_id(self) -> str:
        identity: str = json.loads((self._checkpoint / "metadata").read_text())["id"]
        return identity
