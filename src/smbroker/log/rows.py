"""Rows of the log for people and programs: one JSON object per message.

    offset, ts, topic, kind, text (or payload_base64 where it is not UTF-8), value, dialect, source, client
`value` is the number that the message is: a typed number, or plain numeric text; otherwise null.
"""

import re
from base64 import b64encode
from collections.abc import Iterator
from math import isfinite
from typing import Any

import pyarrow as pa

COLUMNS = ("offset", "ts", "topic", "payload", "kind", "dialect", "source", "client")
NUMBER = re.compile(rb"\s*[+-]?(\d+(\.\d*)?|\.\d+)([eE][+-]?\d+)?\s*")
LONGEST_NUMBER = 400  # bytes; what is longer is text


def as_json(batch: pa.RecordBatch) -> Iterator[dict[str, Any]]:
    for row in batch.select(list(COLUMNS)).to_pylist():
        payload = row["payload"]
        yield {
            "offset": row["offset"],
            "ts": row["ts"].strftime("%Y-%m-%dT%H:%M:%S.%fZ"),
            "topic": row["topic"],
            "kind": row["kind"],
            **_text(payload),
            "value": value(payload),
            "dialect": row["dialect"],
            "source": row["source"],
            "client": row["client"],
        }


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
