"""HTTP as people use it: the standard library's client, and raw sockets for what it would not send."""

import http.client
import json
import socket
from collections.abc import Iterator
from typing import Any, NamedTuple

from flow.house import LIMIT, Broker

KINDS = ("web", "udp", "padded", "typed")
LINES = "application/x-ndjson"
ARROW = "application/vnd.apache.arrow.stream"


class Said(NamedTuple):
    status: int
    body: bytes
    headers: dict[str, str]

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def rows(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.body.splitlines()]

    @property
    def code(self) -> str:
        """Of an error."""
        assert self.body, self.status
        code: str = self.json["error"]["code"]
        assert self.json["error"]["text"]
        return code


def call(broker: Broker, method: str, path: str, body: Any = None, **headers: str) -> Said:
    connection = http.client.HTTPConnection("127.0.0.1", broker.ports["web"], timeout=LIMIT)
    try:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        connection.request(method, path, body, named)
        answer = connection.getresponse()
        return Said(answer.status, answer.read(), {key.lower(): value for key, value in answer.getheaders()})
    finally:
        connection.close()


def get(broker: Broker, path: str, **headers: str) -> Said:
    return call(broker, "GET", path, **headers)


def post(broker: Broker, topic: str, payload: bytes = b"", **headers: str) -> Said:
    return call(broker, "POST", f"/v1/publish/{topic}", payload, **headers)


def post_lines(broker: Broker, *messages: Any) -> Said:
    body = "".join(f"{one if isinstance(one, str) else json.dumps(one)}\n" for one in messages)
    return call(broker, "POST", "/v1/publish", body.encode(), content_type=LINES)


def raw(broker: Broker, data: bytes) -> socket.socket:
    sock = socket.create_connection(("127.0.0.1", broker.ports["web"]), timeout=LIMIT)
    sock.sendall(data)
    return sock


def answer_to(sock: socket.socket) -> Said:
    answer = http.client.HTTPResponse(sock)
    answer.begin()
    return Said(answer.status, answer.read(), dict(answer.getheaders()))


class Event(NamedTuple):
    id: int | None
    kind: str
    data: dict[str, Any]


class Events:
    """A stream of server-sent events."""

    def __init__(
        self, broker: Broker, query: str = "", last: int | None = None, path: str = "/v1/subscribe", **more: str
    ) -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", broker.ports["web"], timeout=LIMIT)
        headers = more if last is None else {"Last-Event-ID": str(last), **more}
        self._connection.request("GET", f"{path}{query}", headers=headers)
        self._answer = self._connection.getresponse()
        assert self._answer.status == 200, self._answer.read()
        assert self._answer.headers["Content-Type"].startswith("text/event-stream")
        self._events = self._read()

    def _read(self) -> Iterator[Event]:
        name, kind, data = None, "message", ""
        while line := self._answer.readline():
            field, _, value = line.decode().rstrip("\n").partition(": ")
            if field == "id":
                name = int(value)
            elif field == "event":
                kind = value
            elif field == "data":
                data = value
            elif not field and data:
                yield Event(name, kind, json.loads(data))
                name, kind, data = None, "message", ""

    def line(self) -> str:
        """As it comes; not together with events."""
        return self._answer.readline().decode().rstrip("\n")

    def next(self) -> Event:
        return next(self._events)

    def take(self, count: int) -> list[Event]:
        return [next(self._events) for _ in range(count)]

    def ended(self) -> bool:
        return next(self._events, None) is None

    def close(self) -> None:
        self._answer.close()
        self._connection.close()
