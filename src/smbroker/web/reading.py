"""Reading over HTTP: history as lines, streams of server-sent events, topics, clients, figures, health."""

import asyncio
import importlib
import json
from collections.abc import AsyncGenerator
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from functools import partial
from types import ModuleType

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.types import Receive, Scope, Send

from smbroker.model.errors import LogError, Refused
from smbroker.model.filter import Filter, exact, parse
from smbroker.model.topic import checked_topic
from smbroker.web.desk import Desk, Settings
from smbroker.web.entry import grant_of
from smbroker.web.publish import flag, whole

LIMIT, MOST = 1_000, 100_000  # messages of one answer
ROWS, MOST_ROWS = 100, 10_000  # of a table
CHARACTERS = 1_000  # of a topic's last text
SLOW = 30.0  # seconds for a reader to take what has been written
COMMENT = b":\n\n"  # shows both sides that the other is there
WHERE = {"earliest", "latest"}
ORDERS = ("name", "count")


class Reading:
    def __init__(self, desk: Desk, settings: Settings) -> None:
        self._desk = desk
        self._settings = settings
        self._metrics: ModuleType | None = None  # imported when somebody asks

    async def messages(self, request: Request) -> Response:
        limit = _limit(request, LIMIT)
        before = _offset(request.query_params.get("before"), "before", self._desk)
        start = _offset(request.query_params.get("from"), "from", self._desk)
        who, short = grant_of(request), flag(request, "short")
        pieces = self._desk.messages(who, _filter(request), start, _time(request), before, limit, short)
        return await Stream.begun(pieces, "application/x-ndjson")

    async def subscribe(self, request: Request) -> Response:
        self._check_streams()
        last = request.headers.get("last-event-id")
        start = _offset(request.query_params.get("from"), "from", self._desk)
        if last:
            start = whole(last, "Last-Event-ID") + 1
        pieces = self._desk.follow(grant_of(request), _filter(request), start)
        return await EventStream.begun(pieces, "text/event-stream")

    async def live(self, request: Request) -> Response:
        self._check_streams()
        pieces = self._desk.live(grant_of(request), _filter(request), flag(request, "tail"))
        return await EventStream.begun(pieces, "text/event-stream")

    def _check_streams(self) -> None:
        if self._desk.streams >= self._settings.max_streams:
            raise Refused("too_many_streams", f"there are {self._settings.max_streams} streams already")

    async def topics(self, request: Request) -> Response:
        search = request.query_params.get("search", "")
        since = _offset(request.query_params.get("since_offset"), "since_offset", self._desk) or 0
        characters = min(_number(request, "characters", CHARACTERS), CHARACTERS)
        order = request.query_params.get("order", "name")
        if order not in ORDERS:
            raise Refused("bad_query", f"order must be one of {', '.join(ORDERS)}")
        who, most = grant_of(request), _limit(request, MOST)
        pieces = self._desk.topics(who, search, since, most, characters, order == "count")
        return await ListStream.begun(pieces, "application/json")

    async def clients(self, request: Request) -> Response:
        dialect, most = request.query_params.get("dialect"), _limit(request, LIMIT)
        return JSONResponse(await self._desk.clients(grant_of(request), dialect, most))

    async def pipelines(self, request: Request) -> Response:
        return JSONResponse(await self._desk.pipelines(grant_of(request)))

    async def tables(self, request: Request) -> Response:
        return JSONResponse(await self._desk.tables(grant_of(request)))

    async def table(self, request: Request) -> Response:
        most, topic = min(_limit(request, ROWS), MOST_ROWS), request.query_params.get("topic")
        return JSONResponse(await self._desk.table(grant_of(request), request.path_params["name"], most, topic))

    async def stats(self, request: Request) -> Response:
        return JSONResponse(await self._desk.stats(grant_of(request)))

    async def metrics(self, request: Request) -> Response:
        who = grant_of(request)
        if self._metrics is None:
            load = partial(importlib.import_module, "smbroker.web.metrics")
            self._metrics = await asyncio.get_running_loop().run_in_executor(None, load)
        figures = await self._desk.stats(who) | {"pipelines": await self._desk.pipelines(who), "topics": []}
        most = self._settings.metric_topics
        if most and figures["log"]:
            with suppress(LogError):  # the other figures tell how the broker is, all the more then
                pieces = [piece async for piece in self._desk.topics(who, "", 0, most, 0, busiest=True)]
                figures["topics"] = json.loads(b"[" + b"".join(pieces) + b"]")
        return Response(self._metrics.text(figures), media_type=self._metrics.TYPE)

    async def health(self, request: Request) -> Response:
        well, said = await self._desk.health(grant_of(request))
        return JSONResponse(said, 200 if well else 503)


class Stream(Response):
    """An answer in pieces, made as fast as they are read. Ends when the reader goes, or takes nothing for too long."""

    before = after = idle = b""

    def __init__(self, first: bytes, pieces: AsyncGenerator[bytes, None], kind: str) -> None:
        super().__init__(headers={"cache-control": "no-store", "x-accel-buffering": "no"}, media_type=kind)
        del self.headers["content-length"]
        self._first = first
        self._pieces = pieces

    @classmethod
    async def begun(cls, pieces: AsyncGenerator[bytes, None], kind: str) -> Response:
        """Has the first piece made, so that what is wrong is known before the answer begins."""
        return cls(await anext(pieces, b""), pieces, kind)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        sending = asyncio.ensure_future(self._send_all(scope, send))
        tasks = [sending, asyncio.ensure_future(_left(receive))]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await self._pieces.aclose()
        if not sending.cancelled():
            sending.result()

    async def _send_all(self, scope: Scope, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        try:
            if scope["method"] != "HEAD":
                await _write(send, self.before + (self._first or self.idle))
                async for piece in self._pieces:
                    await _write(send, piece or self.idle)
                await _write(send, self.after)
        except TimeoutError:
            scope["smb.abort"]()
            return
        await send({"type": "http.response.body", "body": b""})


class ListStream(Stream):
    """The items of a JSON list."""

    before, after = b"[", b"]\n"


class EventStream(Stream):
    idle = COMMENT


async def _write(send: Send, data: bytes) -> None:
    if data:
        await asyncio.wait_for(send({"type": "http.response.body", "body": data, "more_body": True}), SLOW)


async def _left(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


# --- what is asked ---


def _filter(request: Request) -> Filter | None:
    """`filter`, with wildcards, or `topic`, which is meant as it is."""
    text, topic = request.query_params.get("filter"), request.query_params.get("topic")
    if topic is not None:
        if text is not None:
            raise Refused("bad_query", "either filter or topic, not both")
        return exact(checked_topic(topic.encode("utf-8", "surrogatepass")))
    return None if text is None else parse(text)


def _limit(request: Request, default: int) -> int:
    limit = _number(request, "limit", default)
    if not 1 <= limit <= MOST:
        raise Refused("bad_query", f"limit must be from 1 to {MOST}")
    return limit


def _number(request: Request, name: str, default: int) -> int:
    text = request.query_params.get(name)
    return default if text is None else whole(text, name)


def _offset(text: str | None, name: str, desk: Desk) -> int | None:
    if text in WHERE:
        return desk.first_offset if text == "earliest" else desk.next_offset
    return None if text is None else whole(text, name)


def _time(request: Request) -> int | None:
    """Microseconds since 1970; UTC unless it says otherwise."""
    text = request.query_params.get("since")
    if text is None:
        return None
    try:
        when = datetime.fromisoformat(text.replace(" ", "+") if "T" in text else text)
        when = when if when.tzinfo else when.replace(tzinfo=UTC)
        since = when - datetime(1970, 1, 1, tzinfo=UTC)
    except (ValueError, OverflowError) as error:
        raise Refused("bad_query", f"since must be an ISO time such as 2026-11-15T10:00:00Z: {error}") from error
    return since // timedelta(microseconds=1)
