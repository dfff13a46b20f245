"""Publishing over HTTP: one message by its address, or many in a body, all of them or none.

    POST /v1/publish/TOPIC     the body is the payload
    POST /v1/publish           lines of JSON, or an Arrow stream

A large body is decoded a little at a time, so that the turn goes on meanwhile.
"""

import asyncio
import json
from base64 import b64decode
from binascii import Error as Base64Error
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any
from urllib.parse import unquote_to_bytes

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from smbroker.model.errors import Refused
from smbroker.model.message import Columns, Dialect, Kind, Origin, Rows
from smbroker.model.topic import published_topic
from smbroker.web.body import Bodies
from smbroker.web.desk import Desk, Settings
from smbroker.web.entry import checked_by, grant_of
from smbroker.web.gather import RETAINED, Gathering

PREFIX = b"/v1/publish/"
LINES = "application/x-ndjson"
ARROW = "application/vnd.apache.arrow.stream"
STEP = 500  # messages that are decoded in one go: a millisecond or so
ORIGIN = Origin(Dialect.HTTP)  # without an address: a request's is that of a proxy, or of nobody for long
LARGEST = (1 << 63) - 1  # of what the log and the state can number
FLAGS = {"0": False, "1": True, "false": False, "true": True}

_decode = json.JSONDecoder().raw_decode


class Publishing:
    def __init__(self, desk: Desk, settings: Settings) -> None:
        self._desk = desk
        self._settings = settings
        self._bodies = Bodies()

    async def one(self, request: Request) -> Response:
        topic = published_topic(unquote_to_bytes(request.scope["raw_path"][len(PREFIX) :]))
        who = grant_of(request)
        who.check_publish(topic)
        retain = flag(request, "retain")
        most = min(self._settings.max_payload, self._settings.max_body)
        async with self._bodies.read(request, most, self._settings.max_body) as body:
            who.check_publish(topic)  # it may have taken long to come
            columns = Columns(0, [topic], [body], [Kind.BYTES], [ORIGIN], {0: RETAINED} if retain else {})
            return JSONResponse({"offset": await self._desk.publish(columns)})

    async def many(self, request: Request) -> Response:
        kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind not in (LINES, ARROW):
            raise Refused("bad_type", f"the content type must be {LINES} or {ARROW}")
        most = self._settings.max_body
        check = checked_by(grant_of(request), published_topic)
        async with self._bodies.read(request, most, most) as body:
            async with aclosing(_lines(body) if kind == LINES else self._desk.arrow_rows(body, most)) as parts:
                columns = await Gathering(ORIGIN, check, self._settings.max_payload).all(parts, most)
            if not columns.topics:
                return JSONResponse({"first_offset": None, "count": 0})
            return JSONResponse({"first_offset": await self._desk.publish(columns), "count": len(columns)})


async def _lines(body: bytes) -> AsyncGenerator[Rows, None]:
    start, number = 0, 0
    while start < len(body):
        topics: list[bytes] = []
        payloads: list[bytes] = []
        retain: list[bool] = []
        while start < len(body) and len(topics) < STEP:
            end = body.find(b"\n", start)
            end = len(body) if end < 0 else end
            number += 1
            line = body[start:end]
            start = end + 1
            if line and not line.isspace():
                topic, payload, kept = _message(line, number)
                topics.append(topic)
                payloads.append(payload)
                retain.append(kept)
        yield Rows(topics, payloads, retain)
        await asyncio.sleep(0)


def _message(line: bytes, number: int) -> tuple[bytes, bytes, bool]:
    try:
        text = line.decode().strip()
        found, end = _decode(text)
    except (ValueError, RecursionError) as error:
        raise Refused("bad_line", f"line {number}: not JSON: {error}") from error
    if end < len(text) or not isinstance(found, dict):
        raise Refused("bad_line", f"line {number}: one JSON object per line")
    topic, retain = found.get("topic"), found.get("retain", False)
    if not isinstance(topic, str) or not isinstance(retain, bool):
        raise Refused("bad_line", f"line {number}: topic must be a text; retain, if there, true or false")
    return topic.encode("utf-8", "surrogatepass"), _payload(found, number), retain


def _payload(found: dict[str, Any], number: int) -> bytes:
    text, packed = found.get("payload"), found.get("payload_base64")
    try:
        if isinstance(text, str) and packed is None:
            return text.encode()
        if isinstance(packed, str) and text is None:
            return b64decode(packed, validate=True)
    except (UnicodeEncodeError, Base64Error, ValueError) as error:
        raise Refused("bad_line", f"line {number}: {error}") from error
    raise Refused("bad_line", f"line {number}: either payload or payload_base64 must be there, as a text")


def flag(request: Request, name: str) -> bool:
    text = request.query_params.get(name, "0")
    if text not in FLAGS:
        raise Refused("bad_query", f"{name} must be 0 or 1")
    return FLAGS[text]


def whole(text: str, name: str) -> int:
    if not (text.isascii() and text.isdecimal()) or len(text) > 19 or int(text) > LARGEST:
        raise Refused("bad_query", f"{name} must be a whole number, not {text[:40]!r}")
    return int(text)
