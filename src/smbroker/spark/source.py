"""The Spark data source `smb`: the log, as a batch and as a stream.

    spark.read.format("smb").option("path", "smb-data").option("topics", "home/#").load()
    spark.readStream.format("smb").option("path", "smb-data").load()

Options: `path` (the broker's data directory), `topics` (filters in MQTT's notation, comma-separated;
default all), `startingOffset` (`earliest`, `latest`, an offset or an ISO time, UTC unless it says
otherwise), `endingOffset` (batch; exclusive), `maxRowsPerBatch` and `maxBytesPerBatch` (stream), `failOnDataLoss`.
A stream's offset is {"offset": n}: the cursor, the offset to read next.
"""

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from smbroker.model.errors import UsageError
from smbroker.spark.options import ReadOptions, parsed
from smbroker.spark.reading import Reading, Split
from smbroker.spark.sink import SmbStreamWriter, SmbWriter

_PROPERTY = StructType([StructField("key", StringType()), StructField("value", StringType())])
SCHEMA = StructType(
    [
        StructField("offset", LongType()),
        StructField("ts", TimestampType()),
        StructField("topic", StringType()),
        StructField("payload", BinaryType()),
        StructField("kind", StringType()),
        StructField("dialect", StringType()),
        StructField("source", StringType()),
        StructField("client", StringType()),
        StructField("retain", BooleanType()),
        StructField("qos", IntegerType()),
        StructField("properties", ArrayType(_PROPERTY)),
    ]
)


class SmbDataSource(DataSource):
    @classmethod
    def name(cls) -> str:
        return "smb"

    def schema(self) -> StructType:
        parsed(self.options)  # a mistake is told at load(), not when the first row is wanted
        return SCHEMA

    def reader(self, schema: StructType) -> "SmbReader":
        return SmbReader(self._options(schema))

    def streamReader(self, schema: StructType) -> "SmbStreamReader":
        if "endingOffset" in self.options:
            raise UsageError("bad_option", "option endingOffset is for spark.read: a stream does not end")
        return SmbStreamReader(self._options(schema))

    def writer(self, schema: StructType, overwrite: bool) -> SmbWriter:
        if overwrite:
            raise UsageError("bad_option", "topics can only be appended to: mode('append')")
        return SmbWriter(self.options, schema)

    def streamWriter(self, schema: StructType, overwrite: bool) -> SmbStreamWriter:  # noqa: ARG002
        return SmbStreamWriter(self.options, schema)

    def _options(self, schema: StructType) -> ReadOptions:
        if schema.simpleString() != SCHEMA.simpleString():
            raise UsageError("bad_option", f"the columns of smb are fixed, leave out schema(): {SCHEMA.simpleString()}")
        return parsed(self.options)


class SmbReader(DataSourceReader):
    """A batch: the range is fixed when the query is planned."""

    def __init__(self, options: ReadOptions) -> None:
        self._reading = Reading(options)

    def partitions(self) -> list[Split]:
        reading = self._reading
        end = min(reading.offset_of(reading.options.end), reading.offset_of("latest"))
        start = reading.offset_of(reading.options.start)
        found = reading.splits(reading.kept(start), end) if start < end else []
        return found or [Split(end, end)]  # of an empty list Spark would make a split of its own

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, Split)
        return self._reading.rows(partition)


class SmbStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """A stream. One instance answers for offsets, for as long as the query runs; copies of it read."""

    def __init__(self, options: ReadOptions) -> None:
        self._reading = Reading(options)
        self._target: int | None = None  # not further than this: what was there when AvailableNow began

    def initialOffset(self) -> dict[str, int]:
        return {"offset": self._reading.kept(self._reading.offset_of(self._reading.options.start))}

    def prepareForTriggerAvailableNow(self) -> None:
        self._target = self._reading.offset_of("latest")

    def getDefaultReadLimit(self) -> ReadLimit:
        rows = self._reading.options.max_rows
        return ReadAllAvailable() if rows is None else ReadMaxRows(rows)

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, int]:
        cursor = self._reading.kept(start["offset"])
        end = self._reading.offset_of("latest") if self._target is None else self._target
        if isinstance(limit, ReadMaxRows):
            end = min(end, cursor + limit.max_rows)
        if (size := self._reading.options.max_bytes) is not None and cursor < end:
            end = self._reading.log.reach(cursor, end, size)
        return {"offset": max(end, start["offset"])}

    def reportLatestOffset(self) -> dict[str, int]:
        return {"offset": self._reading.offset_of("latest")}

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[Split]:
        if start["offset"] >= end["offset"]:
            return []
        return self._reading.splits(self._reading.kept(start["offset"]), end["offset"])

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, Split)
        return self._reading.rows(partition)
