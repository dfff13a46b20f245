"""Rows of the log for people and programs: one JSON object per message.

    offset, ts, topic, kind, text (or payload_base64 where it is not UTF-8), value, dialect, source, client
`value` is the number that the message is: a typed number, or plain numeric text; otherwise null.
"""

import json
import re
from base64 import b64encode
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from math import isfinite
from typing import Any

import pyarrow as pa

from smbroker.log.questions import Form
from smbroker.model.message import Columns

COLUMNS = ("offset", "ts", "topic", "payload", "kind", "dialect", "source", "client")
NUMBER = re.compile(rb"\s*[+-]?(\d+(\.\d*)?|\.\d+)([eE][+-]?\d+)?\s*")
LONGEST = 2_000  # bytes that are shown of a payload to people
LONGEST_NUMBER = 400  # bytes; what is longer is text
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

as_text = json.JSONEncoder(ensure_ascii=False).encode


def as_json(batch: pa.RecordBatch, *, short: bool = False) -> Iterator[dict[str, Any]]:
    """Column by column: Arrow is slow at making times of a zone, one by one."""
    columns = [batch.column(name) for name in COLUMNS]
    columns[1] = columns[1].cast(pa.int64())
    for row in zip(*(column.to_pylist() for column in columns), strict=True):
        yield message(*row, short=short)


def message(
    offset: int | None,
    ts: int,
    topic: str,
    payload: bytes,
    kind: str,
    dialect: str,
    source: str,
    client: str | None,
    *,
    short: bool = False,
) -> dict[str, Any]:
    """`short`: with the beginning of its payload, and the size of all of it."""
    shown = {
        "offset": offset,
        "ts": shown_time(ts),
        "topic": topic,
        "kind": kind,
        **_text(cut(payload, LONGEST) if short else payload),
        "value": value(payload),
        "dialect": dialect,
        "source": source,
        "client": client,
    }
    return shown | {"size": len(payload)} if short else shown


def message_at(row: int, columns: Columns, offset: int | None, *, short: bool = False) -> dict[str, Any]:
    """As `message`, of a row that is in memory."""
    origin = columns.origins[row]
    return message(
        offset,
        columns.ts(row),
        columns.topics[row].decode(),
        columns.payloads[row],
        columns.kinds[row].name.lower(),
        origin.dialect.value,
        origin.source,
        origin.client,
        short=short,
    )


def cut(payload: bytes, most: int) -> bytes:
    """At most so many bytes, and no broken character at the end of what is text."""
    if len(payload) <= most:
        return payload
    end = most
    while end > most - 3 and payload[end] & 0xC0 == 0x80:
        end -= 1
    return payload[:end]


def formed(row: dict[str, Any], form: Form) -> bytes:
    """A message as it leaves the broker; without an offset an event has no id."""
    text = as_text(row)
    if form is not Form.EVENTS:
        return f"{text}\n".encode()
    name = "" if row["offset"] is None else f"id: {row['offset']}\n"
    return f"{name}data: {text}\n\n".encode()


@lru_cache(maxsize=1_000)  # all that a turn brought has one time
def shown_time(ts: int) -> str:
    """Microseconds since 1970 UTC, as ISO time."""
    return (EPOCH + timedelta(microseconds=ts)).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def _text(payload: bytes) -> dict[str, str]:
    try:
        return {"text": payload.decode()}
    except UnicodeDecodeError:
        return {"payload_base64": b64encode(payload).decode()}


def value(payload: bytes) -> float | None:
    if len(payload) > LONGEST_NUMBER or not NUMBER.fullmatch(payload):
        return None
    number = float(payload)
    return number if isfinite(number) else None  # JSON has no infinity
