"""uvicorn in the broker's loop: no signals, no lifespan, no output of its own; connections that say nothing end.

A connection that turns to WebSocket at `/mqtt` is handed over to the broker.
"""

import asyncio
import contextlib
import logging
import socket
from collections.abc import Callable, Iterator
from typing import Any

import uvicorn
from starlette.datastructures import Headers
from uvicorn.protocols.http.h11_impl import H11Protocol

from smbroker.model.errors import ProtocolError, Refused
from smbroker.web import guard, mqtt
from smbroker.web.app import App
from smbroker.web.desk import Desk, Gate, Settings
from smbroker.web.listener import MakeProtocol

MAX_HEAD = 256 << 10  # bytes of a request's line and headers: the longest topic, percent-encoded, fits
IDLE = 30.0  # seconds within which a request must have come in, and the next one
STOP_LIMIT = 1  # second for answers to end
KEEP_ALIVE = (  # a reader that lost its power must not hold its stream for ever
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 60),
    (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 20),
    (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3),
)


class Connection(H11Protocol):
    """Goes through the gate, and does not wait for ever for a request's head."""

    desk: Desk
    gate: Gate

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._host = self._entered(transport)
        for level, option, value in KEEP_ALIVE:
            transport.get_extra_info("socket").setsockopt(level, option, value)
        self._check = self.loop.call_later(IDLE, self._look)
        self._cycle_seen: object = None

    def connection_lost(self, exc: Exception | None) -> None:
        self._check.cancel()
        self._leave()
        super().connection_lost(exc)

    def _entered(self, transport: asyncio.Transport) -> str:
        """The address that is to leave the gate; empty if it did not come in."""
        host = str((transport.get_extra_info("peername") or ("",))[0])
        try:
            if host:
                self.gate.enter(host)
                return host
        except ProtocolError as error:
            self.desk.refused(error.code)
            self.desk.warn(error.code, f"web: {error.text}")
        transport.abort()
        return ""

    def _leave(self) -> None:
        if self._host:
            self.gate.leave(self._host)
            self._host = ""

    def _should_upgrade(self) -> bool:
        """To MQTT over WebSocket. If that is refused it is a request as any other, and its answer says why."""
        if self.scope["raw_path"] != mqtt.PATH or self.scope["method"] != "GET":
            return False
        app = self.config.app
        assert isinstance(app, App)
        headers = Headers(raw=self.headers)
        try:
            guard.check(headers, self.scope["server"][0], app.settings.hosts)  # type: ignore[index]
            mqtt.agreed(headers)
        except Refused:
            return False
        return app.desk.open and len(self.connections) < app.settings.max_connections

    def handle_websocket_upgrade(self, event: Any) -> None:  # noqa: ARG002
        app = self.config.app
        assert isinstance(app, App)
        self._check.cancel()
        self.connections.discard(self)
        self._leave()  # it is one of MQTT's from here on
        transport = self.transport
        transport.write(mqtt.agreed(Headers(raw=self.headers)))
        sock = mqtt.MqttSocket(app.desk, self.connections.discard)
        self.connections.add(sock)  # type: ignore[arg-type]
        transport.set_protocol(sock)
        sock.connection_made(transport)
        early, _ = self.conn.trailing_data
        if early:
            sock.data_received(early)

    def _look(self) -> None:
        """Twice nothing but the same finished request, or none: nobody is there."""
        idle = self.cycle is None or self.cycle.response_complete
        if idle and self.cycle is self._cycle_seen:
            self.transport.abort()
            return
        self._cycle_seen = self.cycle
        self._check = self.loop.call_later(IDLE, self._look)


class Server(uvicorn.Server):
    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Signals are the broker's."""
        yield


class Warnings(logging.Handler):
    """What uvicorn has to say goes to the broker's console, which neither blocks nor floods."""

    def __init__(self, desk: Desk) -> None:
        super().__init__(logging.WARNING)
        self._desk = desk

    def emit(self, record: logging.LogRecord) -> None:
        self._desk.warn("web", f"web: {self.format(record)}")


def made(desk: Desk, settings: Settings, gate: Gate, around: Callable[[MakeProtocol], MakeProtocol]) -> Server:
    class Entered(Connection):
        pass

    Entered.desk, Entered.gate = desk, gate
    logger = logging.getLogger("uvicorn.error")
    logger.propagate = False
    logger.handlers = [Warnings(desk)]
    logger.setLevel(logging.WARNING)
    options: dict[str, Any] = {
        "loop": "none",
        "lifespan": "off",
        "interface": "asgi3",
        "http": lambda **given: around(lambda: Entered(**given))(),
        "ws": "none",
        "log_config": None,
        "access_log": False,
        "proxy_headers": False,
        "server_header": False,
        "h11_max_incomplete_event_size": MAX_HEAD,
        "limit_concurrency": settings.max_connections,
        "timeout_keep_alive": int(IDLE),
        "timeout_graceful_shutdown": STOP_LIMIT,
    }
    return Server(uvicorn.Config(App(desk, settings), **options))
