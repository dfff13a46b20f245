"""Who asks over HTTP: by user and password, by token, by the page's cookie; else by certificate or address.

    POST /v1/login     {"user", "password"}   sets a cookie that scripts cannot read and no other site's page can use
    POST /v1/logout                           ends it
    GET  /v1/session                          {"rights": by rules, "user": name or null, "allowed": anything at all}

A cookie is sent by the browser whoever makes it ask: so what changes something is only taken with it if the browser
says that our own page asks (`Origin`, `Sec-Fetch-Site`); `smbroker.web.guard` refuses foreign ones anyway.
"""

import asyncio
import json
from base64 import b64decode
from binascii import Error as Base64Error
from collections.abc import Callable
from typing import Any

from starlette.datastructures import Headers
from starlette.requests import ClientDisconnect, Request, cookie_parser
from starlette.responses import JSONResponse, Response
from starlette.types import Scope

from smbroker.model.errors import Refused
from smbroker.model.grant import Grant
from smbroker.model.rights import Shown, named_by
from smbroker.model.topic import Topic
from smbroker.web.desk import Desk

COOKIE, SECURE_COOKIE = "smb-session", "__Host-smb-session"
MAX_LOGIN = 4_096  # bytes of a login
LOGIN_TIME = 10.0  # seconds for it to come in
SAFE = ("GET", "HEAD")


def grant_of(request: Request) -> Grant:
    grant: Grant = request.scope["smb.grant"]
    return grant


def may_publish(request: Request) -> None:
    """At least something. Raises Refused."""
    who = grant_of(request)
    if who.limited and who.publishes.permit.empty:
        raise Refused("not_allowed", "not allowed to publish")


def checked_by(who: Grant, check: Callable[[bytes], Topic]) -> Callable[[bytes], Topic]:
    """The check of a topic, with the right to publish to it."""
    if not who.limited:
        return check

    def checked(raw: bytes) -> Topic:
        topic = check(raw)
        who.check_publish(topic)
        return topic

    return checked


async def enter(desk: Desk, scope: Scope, headers: Headers, transport: Any) -> Grant:
    """Raises Refused."""
    shown = _shown(headers, scope) if desk.rights_on else Shown(token=_token(headers))
    if shown.session and scope["method"] not in SAFE and not _is_our_page(headers):
        raise Refused("bad_origin", "with the page's cookie only the page itself may change something")
    client = scope.get("client") or ("", 0)
    return await desk.enter(client[0], named_by(transport.get_extra_info("peercert") if transport else None), shown)


def _token(headers: Headers) -> str:
    scheme, _, value = headers.get("authorization", "").partition(" ")
    return value.strip() if scheme.lower() == "bearer" else ""


def _shown(headers: Headers, scope: Scope) -> Shown:
    scheme, _, value = headers.get("authorization", "").partition(" ")
    value = value.strip()
    if token := _token(headers):
        return Shown(token=token)
    if scheme.lower() == "basic" and value:
        try:
            user, colon, password = b64decode(value, validate=True).partition(b":")
            if colon:
                return Shown(user.decode(), password)
        except (Base64Error, ValueError) as error:
            raise Refused("bad_password", "the user and the password cannot be read") from error
    return Shown(session=_cookie(headers, scope))


def _cookie(headers: Headers, scope: Scope) -> str:
    name = _cookie_name(scope)
    return next((found[name] for text in headers.getlist("cookie") if name in (found := cookie_parser(text))), "")


def _cookie_name(scope: Scope) -> str:
    return SECURE_COOKIE if scope.get("scheme") == "https" else COOKIE


def _is_our_page(headers: Headers) -> bool:
    """`guard` has found that neither is foreign."""
    return "origin" in headers or headers.get("sec-fetch-site") == "same-origin"


class Entry:
    def __init__(self, desk: Desk) -> None:
        self._desk = desk

    async def login(self, request: Request) -> Response:
        if not _is_our_page(request.headers):
            raise Refused("bad_origin", "a login is for the page; programs show user and password with each request")
        user, password = await _login(request)
        client = request.scope.get("client") or ("", 0)
        who = await self._desk.enter(client[0], None, Shown(user, password))
        answer = JSONResponse({"user": who.user})
        self._set(answer, request, self._desk.begin_session(who))
        return answer

    async def logout(self, request: Request) -> Response:
        self._desk.end_session(_cookie(request.headers, request.scope))
        answer = JSONResponse({"user": None})
        self._set(answer, request, "", max_age=0)
        return answer

    async def session(self, request: Request) -> Response:
        who = grant_of(request)
        return JSONResponse({"rights": self._desk.rights_on, "user": who.user, "allowed": not who.nothing})

    @staticmethod
    def _set(answer: Response, request: Request, value: str, max_age: int | None = None) -> None:
        secure = request.scope.get("scheme") == "https"
        answer.set_cookie(
            _cookie_name(request.scope), value, max_age, path="/", secure=secure, httponly=True, samesite="strict"
        )
        answer.headers["cache-control"] = "no-store"


async def _login(request: Request) -> tuple[str, bytes]:
    try:
        body = await asyncio.wait_for(_body(request), LOGIN_TIME)
        found = json.loads(body)
        user, password = found["user"], found["password"]
        if isinstance(user, str) and isinstance(password, str):
            return user, password.encode()
    except TimeoutError as error:
        raise Refused("body_timeout", "the login did not come in time") from error
    except ClientDisconnect as error:
        raise Refused("disconnected", "the client has gone") from error
    except (ValueError, RecursionError, KeyError, TypeError):
        pass
    raise Refused("bad_body", "a login is a JSON object with user and password")


async def _body(request: Request) -> bytes:
    body = b""
    async for piece in request.stream():
        body += piece
        if len(body) > MAX_LOGIN:
            raise Refused("body_too_long", f"a login has at most {MAX_LOGIN} bytes")
    return body
