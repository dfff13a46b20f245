"""What Spark's sink asks for: rows are staged by its tasks, and published by one commit of its driver.

    POST /v1/stages                    an Arrow stream of rows              → {"stage": name}
    POST /v1/batches/QUERY/BATCH       {"stages": [name, …], "client": …}   → {"first_offset", "count", "repeated", …}
    GET  /v1/batches/QUERY             the last batch that was published    → {"batch": n or null}

A batch that was published before is not published again. One commit is under way at a time,
because its messages are in memory.
"""

import asyncio
import json
from contextlib import aclosing
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from smbroker.model.errors import Refused
from smbroker.model.grant import TRUSTED, Grant
from smbroker.model.message import Dialect, Origin
from smbroker.model.topic import Topic, checked_topic, published_topic
from smbroker.web.body import Bodies
from smbroker.web.desk import Desk, Settings
from smbroker.web.entry import checked_by, grant_of, may_publish
from smbroker.web.gather import Gathering
from smbroker.web.publish import ARROW, whole

MAX_BATCH = 256 << 20  # bytes of the messages of one batch
MAX_STAGE = 64 << 20  # bytes of a stage, also where max_body is less: Spark's have some 8 to 16 MiB, or one long row
MAX_ORDER = 1 << 20  # bytes of a commit's body
LONGEST = 256  # characters of a query's or client's name
PIPELINE = "pipeline:"  # begins the client of what a pipeline publishes
RESERVED = (b"$stats/", b"$alerts/")


class Batches:
    def __init__(self, desk: Desk, settings: Settings) -> None:
        self._desk = desk
        self._settings = settings
        self._bodies = Bodies()
        self._max_stage = max(settings.max_body, MAX_STAGE)
        self._committing = asyncio.Lock()

    async def stage(self, request: Request) -> Response:
        may_publish(request)
        kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind != ARROW:
            raise Refused("bad_type", f"the content type must be {ARROW}")
        async with self._bodies.read(request, self._max_stage, self._max_stage) as body:
            return JSONResponse({"stage": await self._desk.stage(body)})

    async def last(self, request: Request) -> Response:
        may_publish(request)
        query = self._own(grant_of(request), _name(request.path_params["query"], "query"))
        return JSONResponse({"batch": await self._desk.last_batch(query)})

    async def commit(self, request: Request) -> Response:
        query, batch = _name(request.path_params["query"], "query"), whole(request.path_params["batch"], "batch")
        who = grant_of(request)
        trusted = self._trusted(request, who)
        query = self._own(who, query)
        async with self._bodies.read(request, MAX_ORDER, self._max_stage) as body:
            order = _order(body)
        client = order["client"]
        if client and client.startswith(PIPELINE) and not trusted:
            raise Refused("bad_token", f"the client {PIPELINE}… needs the token of the broker's data directory")
        async with self._committing:
            last = await self._desk.last_batch(query)
            repeated = last is not None and batch <= last
            said = {"first_offset": None, "count": 0, "skipped": 0, "repeated": True}
            try:
                if not repeated:
                    said = await self._publish(who, query, batch, order, trusted)
            except Refused as error:
                if error.code != "stage_missing":  # the same rows would be refused again
                    await self._desk.drop_stages(order["stages"])
                raise
            await self._desk.drop_stages(order["stages"])
            return JSONResponse(said)

    async def _publish(
        self, who: Grant, query: str, batch: int, order: dict[str, Any], trusted: bool
    ) -> dict[str, Any]:
        origin = Origin(Dialect.HTTP, client=order["client"])
        check = checked_by(who, _trusted_topic if trusted else published_topic)
        gathering = Gathering(origin, check, self._settings.max_payload, order["skip_bad"])
        async with aclosing(self._desk.staged_rows(order["stages"], MAX_BATCH)) as parts:
            columns = await gathering.all(parts, MAX_BATCH)
        for error in gathering.skipped:
            self._desk.warn(error.code, f"{order['client'] or query}, batch {batch}: left out: {error.text}")
        offset = await self._desk.publish_batch(columns, query, batch) if len(columns) else None
        return {
            "first_offset": offset,
            "count": len(columns),
            "skipped": gathering.skipped_count,
            "skipped_because": gathering.skipped[0].text if gathering.skipped else None,
            "repeated": False,
        }

    def _own(self, who: Grant, query: str) -> str:
        """Users cannot count up one another's queries, nor the pipelines'."""
        return query if who is TRUSTED or not self._desk.rights_on else f"{who.user or ''}/{query}"

    def _trusted(self, request: Request, who: Grant) -> bool:
        """Whether the request shows the token. A wrong one is refused, so that nobody wonders."""
        if who is TRUSTED or self._desk.rights_on:
            return who is TRUSTED
        scheme, _, token = request.headers.get("authorization", "").partition(" ")
        if not token:
            return False
        if scheme.lower() != "bearer" or not self._desk.knows_token(token.strip()):
            raise Refused("bad_token", "the token is not that of the broker's data directory (pipeline.token)")
        return True


def _trusted_topic(raw: bytes) -> Topic:
    topic = checked_topic(raw)
    return topic if topic.startswith(RESERVED) else published_topic(topic)


def _order(body: bytes) -> dict[str, Any]:
    try:
        found = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise Refused("bad_body", f"not JSON: {error}") from error
    stages = found.get("stages") if isinstance(found, dict) else None
    if not isinstance(stages, list) or not all(isinstance(stage, str) for stage in stages):
        raise Refused("bad_body", "stages must be a list of the names that /v1/stages gave")
    client = found.get("client")
    if client is not None:
        if not isinstance(client, str):
            raise Refused("bad_body", "client must be a text")
        client = _name(client, "client")
    return {"stages": stages, "client": client, "skip_bad": found.get("skip_bad") is True}


def _name(text: str, what: str) -> str:
    if not 0 < len(text) <= LONGEST or not text.isprintable():
        raise Refused("bad_body", f"the {what} must have 1 to {LONGEST} printable characters")
    return text
