"""What the Spark tests share: a data directory to publish to, and a stream whose batches are remembered."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.streaming import StreamingQuery

from log.logkit import SOMETIME, QuickDisk, mixed_turn, turn
from smbroker.log.log import Log
from smbroker.log.seal import seal_segment
from smbroker.log.settings import LogSettings
from smbroker.model.message import Columns, Kind, Origin
from smbroker.spark.source import SCHEMA


class Store:
    """A data directory with its log, as the broker would hold it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.log = Log.open(path / "log", LogSettings(retain_bytes=1), QuickDisk())

    def publish(self, count: int, topic: bytes = b"a/b", received: int = SOMETIME) -> None:
        first = self.log.next_offset
        self.log.append([turn((f"text {first + row}" for row in range(count)), topic, received)])

    def publish_mixed(self, count: int) -> None:
        self.log.append([mixed_turn(count)])

    def publish_payloads(self, payloads: list[bytes], origin: Origin, kind: Kind = Kind.BYTES) -> None:
        count = len(payloads)
        self.log.append([Columns(SOMETIME, [b"p"] * count, payloads, [kind] * count, [origin] * count)])

    def seal(self) -> None:
        self.log.rotate()
        for base in self.log.pending_seals:
            seal_segment(self.log.directory, base, disk=QuickDisk())

    def forget_sealed(self) -> None:
        """Retention: all that is sealed goes."""
        assert self.log.retain(time.time())


def read(spark: SparkSession, store: Store, **options: Any) -> DataFrame:
    return spark.read.format("smb").options(path=str(store.path), **options).load()


def offsets(frame: DataFrame) -> list[int]:
    return [row.offset for row in frame.select("offset").collect()]


def rows(frame: DataFrame) -> list[dict[str, Any]]:
    """As the log gives them, but for times: microseconds."""
    return [row.asDict(recursive=True) for row in frame.withColumn("ts", F.unix_micros("ts")).collect()]


def rows_of_log(store: Store) -> list[dict[str, Any]]:
    found = []
    for batch in store.log.read(store.log.first_offset):
        times = batch.column("ts").cast("int64").to_pylist()
        found += [row | {"ts": ts} for row, ts in zip(batch.to_pylist(), times, strict=True)]
    return found


class Stream:
    """A streaming query on a store, with its checkpoint; may be run several times.

    Remembers the offsets of each batch by its number, as a sink that takes a repeated batch once, and
    holds that a repeated batch has the rows that it had before.
    """

    def __init__(self, spark: SparkSession, store: Store, checkpoint: Path, **options: Any) -> None:
        self._spark, self._store, self._checkpoint, self._options = spark, store, checkpoint, options
        self.batches: dict[int, list[int]] = {}
        self.repeated: list[int] = []
        self.after: Callable[[int], None] = lambda _: None  # called in each batch, once its rows are remembered

    @property
    def offsets(self) -> list[int]:
        return [offset for number in sorted(self.batches) for offset in self.batches[number]]

    def _take(self, frame: DataFrame, number: int) -> None:
        assert frame.schema.simpleString() == SCHEMA.simpleString()
        found = offsets(frame)
        if number in self.batches:
            assert found == self.batches[number]
            self.repeated.append(number)
        self.batches[number] = found
        self.after(number)

    def start(self, **trigger: Any) -> StreamingQuery:
        frame = self._spark.readStream.format("smb").options(path=str(self._store.path), **self._options).load()
        writer = frame.writeStream.foreachBatch(self._take).option("checkpointLocation", str(self._checkpoint))
        return (writer.trigger(**trigger) if trigger else writer).start()

    @contextmanager
    def running(self) -> Iterator[StreamingQuery]:
        query = self.start()
        try:
            yield query
        finally:
            query.stop()

    def available(self) -> StreamingQuery:
        """Runs until all that is there is read."""
        query = self.start(availableNow=True)
        assert query.awaitTermination(60)
        return query
