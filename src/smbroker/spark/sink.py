"""Topics as a Spark sink: each batch is published once, however often Spark runs it.

    df.select("topic", "payload").writeStream.format("smb").option("url", "http://127.0.0.1:8090")…
    publish_batch(df, batch_id, query, url)          in foreachBatch, which also takes update mode

Tasks stage their rows at the broker; the driver then names the stages in one commit, which the broker appends to its
log together with (query, batch). A task that ran twice has staged twice, and only one of the two is named.
"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit
from uuid import uuid4

import pyarrow as pa
import pyarrow.compute as pc
from pyspark import TaskContext
from pyspark.sql import DataFrame
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from smbroker.client.batches import PATIENCE, BatchClient
from smbroker.client.errors import ClientError
from smbroker.model.errors import UsageError

COLUMNS = {
    "topic": ("string",),
    "payload": ("binary", "string"),
    "kind": ("string",),
    "retain": ("boolean",),
    "properties": ("array<struct<key:string,value:string>>",),
}
NEEDED = ("topic", "payload")
STAGE_BYTES = 8 << 20  # after which a stage is sent and another begun
TRIES = 3  # of a batch whose stages the broker does not have any more


@dataclass(frozen=True, slots=True)
class Target:
    """Where rows go, and as whose."""

    url: str
    token: str | None = None
    client: str | None = None
    skip_bad: bool = False  # leave out rows that cannot be published, instead of failing
    patience: float = PATIENCE  # seconds for a broker that is down to come back

    @property
    def broker(self) -> BatchClient:
        return BatchClient(self.url, self.token, self.patience)


def publish_batch(
    df: DataFrame,
    batch_id: int,
    query: str,
    url: str,
    token: str | None = None,
    *,
    client: str | None = None,
    skip_bad: bool = False,
    patience: float = PATIENCE,
) -> dict[str, Any]:
    """Publishes a batch of a streaming query, for `foreachBatch`. `query` is the id in the query's checkpoint.

    Returns what the broker said: `first_offset`, `count`, `skipped`, `repeated`. Raises ClientError."""
    target = Target(url, token, client, skip_bad, patience)
    check_columns(df.schema)
    last = target.broker.last(query)
    if last is not None and batch_id <= last:
        return {"first_offset": None, "count": 0, "skipped": 0, "repeated": True}

    def stage() -> list[str]:
        found = df.mapInArrow(_staging(target), "part int, number int, stage string").collect()
        return [row["stage"] for row in sorted(found, key=lambda row: (row["part"], row["number"]))]

    return _committed(stage, batch_id, query, target)


def publish_rows(
    rows: pa.Table, batch_id: int, query: str, url: str, token: str | None = None, *, client: str | None = None
) -> dict[str, Any]:
    """As `publish_batch` with `skip_bad`, for a batch that is here already: no task has to be started for it."""
    target = Target(url, token, client, skip_bad=True)
    return _committed(lambda: list(staged(iter(rows.to_batches()), target)), batch_id, query, target)


def _committed(stage: Callable[[], list[str]], batch_id: int, query: str, target: Target) -> dict[str, Any]:
    """Stages and commits; again where the broker has lost the stages meanwhile, as one that was started anew has."""
    for tried in range(TRIES):
        try:
            return target.broker.commit(query, batch_id, stage(), target.client, target.skip_bad)
        except ClientError as error:
            if error.code != "stage_missing" or tried == TRIES - 1:
                raise
    raise AssertionError("not reached")


def check_columns(schema: StructType) -> None:
    """Raises UsageError: what the sink cannot take."""
    for name in NEEDED:
        if name not in schema.names:
            raise UsageError("bad_columns", f"the sink needs the columns topic and payload; there are {schema.names}")
    for field in schema.fields:
        kinds = COLUMNS.get(field.name)
        if kinds is None:
            text = f"the sink takes {', '.join(COLUMNS)}; leave out {field.name}, or put it into the payload"
            raise UsageError("bad_columns", text)
        if field.dataType.simpleString() not in kinds:
            text = (
                f"the column {field.name} is {field.dataType.simpleString()}, but the sink takes {' or '.join(kinds)}"
            )
            raise UsageError("bad_columns", text)


def _staging(target: Target) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    def stage(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        context = TaskContext.get()
        part = context.partitionId() if context else 0
        for number, name in enumerate(staged(batches, target)):
            yield pa.RecordBatch.from_pydict(
                {
                    "part": pa.array([part], pa.int32()),
                    "number": pa.array([number], pa.int32()),
                    "stage": pa.array([name], pa.string()),
                }
            )

    return stage


def staged(batches: Iterator[pa.RecordBatch], target: Target) -> Iterator[str]:
    """Sends the rows to the broker; the names of their stages."""
    broker = target.broker
    held: list[pa.RecordBatch] = []
    size = 0
    for batch in batches:
        whole = _whole(batch, target.skip_bad)
        for start in range(0, len(whole), rows := _rows_of(whole)):
            held.append(whole.slice(start, rows))
            size += held[-1].nbytes
            if size >= STAGE_BYTES:
                yield broker.stage(_body(held))
                held, size = [], 0
    if held:
        yield broker.stage(_body(held))


def _rows_of(batch: pa.RecordBatch) -> int:
    """How many rows of the batch make a stage, about."""
    return max(1, len(batch) * STAGE_BYTES // max(int(batch.nbytes), 1))


def _whole(batch: pa.RecordBatch, skip_bad: bool) -> pa.RecordBatch:
    """Without nulls: a null payload is an empty one; a row without a topic cannot be published."""
    topics = batch.column("topic")
    if topics.null_count:
        if not skip_bad:
            raise ValueError("the column topic has a null: every row of the sink needs a topic")
        batch = batch.filter(pc.is_valid(topics))
    at = batch.schema.names.index("payload")
    payload = batch.column(at).cast(pa.binary())
    return batch.set_column(at, "payload", pc.fill_null(payload, b""))


def _body(batches: Sequence[pa.RecordBatch]) -> bytes:
    out = pa.BufferOutputStream()
    with pa.ipc.new_stream(out, batches[0].schema) as writer:
        for batch in batches:
            writer.write_batch(batch)
    return bytes(out.getvalue())


# --- as a data source ---


@dataclass
class Staged(WriterCommitMessage):
    stages: list[str]


def target_of(options: Mapping[str, str]) -> Target:
    url = options.get("url")
    if not url:
        raise UsageError("bad_option", "option url is missing: the broker's address, such as http://127.0.0.1:8090")
    return Target(url, options.get("token") or None, options.get("client") or None)


class SmbWriter(DataSourceArrowWriter):
    """`df.write.format("smb")`: one batch of a query that is never heard of again."""

    def __init__(self, options: Mapping[str, str], schema: StructType) -> None:
        check_columns(schema)
        self._target = target_of(options)
        self._query = f"write-{uuid4().hex}"

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Staged:
        return Staged(list(staged(iterator, self._target)))

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        self._target.broker.commit(self._query, 0, _named(messages), self._target.client)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """What was staged expires."""


class SmbStreamWriter(DataSourceStreamArrowWriter):
    """`df.writeStream.format("smb")`. Spark makes a new one for every batch."""

    def __init__(self, options: Mapping[str, str], schema: StructType) -> None:
        check_columns(schema)
        self._target = target_of(options)
        self._query = options.get("query") or _query_of(options.get("checkpointLocation"))

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Staged:
        return Staged(list(staged(iterator, self._target)))

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        self._target.broker.commit(self._query, batchId, _named(messages), self._target.client)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """What was staged expires."""


def _named(messages: list[WriterCommitMessage | None]) -> list[str]:
    return [stage for message in messages if isinstance(message, Staged) for stage in message.stages]


def _query_of(checkpoint: str | None) -> str:
    """The query's id, which Spark writes to the checkpoint at its first start. A new checkpoint counts from 0 again."""
    if not checkpoint:
        raise UsageError(
            "bad_option", "option checkpointLocation is missing: it names the query, so that batches count"
        )
    parts = urlsplit(checkpoint)
    path = Path(unquote(parts.path) if parts.scheme == "file" else checkpoint)
    try:
        query: str = json.loads((path / "metadata").read_text())["id"]
    except (OSError, ValueError, KeyError) as error:
        text = f"{checkpoint} cannot be read here ({error}); let option query name the query, the same at every start"
        raise UsageError("bad_option", text) from error
    return query
