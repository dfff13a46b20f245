"""The calls, and what is the same for all of them: who may ask, and how errors are told."""

import asyncio
from collections.abc import Awaitable, Callable

from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Match, Route, Router
from starlette.types import Message, Receive, Scope, Send

from smbroker.model.errors import Refused, SmbError
from smbroker.model.grant import NOTHING
from smbroker.web import errors, guard, mqtt
from smbroker.web.desk import Desk, Settings
from smbroker.web.entry import Entry, enter
from smbroker.web.page import Page
from smbroker.web.publish import PREFIX, Publishing
from smbroker.web.reading import Reading
from smbroker.web.sink import Batches

LINGER = 1.0  # seconds for a client to hear that its body is not wanted
LINGER_BYTES = 8 << 20
POLICY = (  # of what the page may do: nothing but with our own files and calls
    b"default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    b"base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'"
)
HEADERS = (
    (b"content-security-policy", POLICY),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
)

OPEN = ("/v1/login", "/v1/logout")  # for whoever is not known yet

Call = Callable[[Request], Awaitable[Response]]


class TopicRoute(BaseRoute):
    """Everything after the prefix is the topic, as it was sent: it may hold any character, `/` too."""

    def __init__(self, call: Call) -> None:
        self._call = call

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        if not scope["raw_path"].startswith(PREFIX):
            return Match.NONE, {}
        return (Match.FULL if scope["method"] == "POST" else Match.PARTIAL), {}

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["method"] != "POST":
            raise HTTPException(405, headers={"allow": "POST"})
        response = await self._call(Request(scope, receive, send))
        await response(scope, receive, send)


class App:
    def __init__(self, desk: Desk, settings: Settings) -> None:
        publishing, reading = Publishing(desk, settings), Reading(desk, settings)
        batches, page, entry = Batches(desk, settings), Page(), Entry(desk)
        self.desk = desk
        self.settings = settings
        self._router = Router(
            [
                TopicRoute(publishing.one),
                Route("/v1/publish", publishing.many, methods=["POST"]),
                Route("/v1/stages", batches.stage, methods=["POST"]),
                Route("/v1/batches/{query}", batches.last),
                Route("/v1/batches/{query}/{batch}", batches.commit, methods=["POST"]),
                Route("/v1/messages", reading.messages),
                Route("/v1/subscribe", reading.subscribe),
                Route("/v1/topics", reading.topics),
                Route("/v1/clients", reading.clients),
                Route("/v1/pipelines", reading.pipelines),
                Route("/v1/tables", reading.tables),
                Route("/v1/tables/{name}", reading.table),
                Route("/v1/stats", reading.stats),
                Route("/v1/live", reading.live),
                Route("/v1/login", entry.login, methods=["POST"]),
                Route("/v1/logout", entry.logout, methods=["POST"]),
                Route("/v1/session", entry.session),
                Route("/health", reading.health),
                Route("/metrics", reading.metrics),
                Route("/mqtt", self._mqtt),
                Route("/", page.file),
                Route("/static/{name:path}", page.file),
            ],
            redirect_slashes=False,
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        transport = getattr(getattr(send, "__self__", None), "transport", None)
        scope["smb.abort"] = transport.abort if transport else lambda: None
        scope["app"] = self  # the router then raises what it does not find
        answering = _Answering(send)
        body = _Body(receive)
        try:
            headers = Headers(scope=scope)
            guard.check(headers, scope["server"][0], self.settings.hosts)
            scope["smb.grant"] = NOTHING
            if scope["path"] not in OPEN:
                scope["smb.grant"] = await enter(self.desk, scope, headers, transport)
            await self._router(scope, body, answering)
        except (SmbError, HTTPException) as error:
            response = self._refused(error, scope)
            if answering.begun:
                scope["smb.abort"]()  # the answer is cut short, and the reader must see that
            else:
                await self._tell(response, scope, body, answering)
        except Exception as error:
            if not answering.begun:
                await errors.failure(500, "bug", "a bug in the broker; its console says more")(scope, body, answering)
            context = {"message": f"while answering {scope['method']}", "exception": error}
            asyncio.get_running_loop().call_exception_handler(context)

    async def _mqtt(self, request: Request) -> Response:
        """A handshake that was not agreed to (see `server`)."""
        mqtt.agreed(request.headers)
        raise Refused("too_many_streams", "there are too many connections (web.max_connections), or the broker stops")

    def _refused(self, error: SmbError | HTTPException, scope: Scope) -> Response:
        if isinstance(error, HTTPException):
            code = "not_found" if error.status_code == 404 else "method_not_allowed"
            response = errors.failure(error.status_code, code, error.detail)
            response.headers.update(error.headers or {})
            return response
        if isinstance(error, Refused):
            self.desk.refused(error.code)
        response = errors.answer(error)
        if error.code == "not_allowed" and self.desk.rights_on and not scope["smb.grant"].user:
            response.status_code = 401
        if response.status_code == 401:  # not Basic: browsers would ask for a password themselves, over the page
            response.headers["www-authenticate"] = 'Bearer realm="smb"'
        return response

    async def _tell(self, response: Response, scope: Scope, body: "_Body", send: Send) -> None:
        """If the body has not come yet the connection ends, but not before the client can have read why."""
        if body.ended or scope["method"] in ("GET", "HEAD"):
            await response(scope, body, send)
            return
        headers = [*response.raw_headers, (b"connection", b"close")]
        await send({"type": "http.response.start", "status": response.status_code, "headers": headers})
        await send({"type": "http.response.body", "body": bytes(response.body), "more_body": True})
        try:
            await asyncio.wait_for(body.skip(LINGER_BYTES), LINGER)
        except TimeoutError:
            pass
        await send({"type": "http.response.body", "body": b""})


class _Body:
    """Passes the request's body on, and knows whether it has ended."""

    def __init__(self, receive: Receive) -> None:
        self._receive = receive
        self.ended = False

    async def __call__(self) -> Message:
        message = await self._receive()
        self.ended = message["type"] != "http.request" or not message.get("more_body", False)
        return message

    async def skip(self, most: int) -> None:
        while not self.ended and most > 0:
            most -= len((await self()).get("body", b""))


class _Answering:
    """Passes the answer on, with the headers that all have, and knows whether it has begun."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self.begun = False

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.begun = True
            message = {**message, "headers": [*message["headers"], *HEADERS]}
        await self._send(message)
