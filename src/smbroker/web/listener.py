"""The `web` listener, as the broker sees it. What it is made of is imported once the broker is ready: it takes long.

Until then clients wait in the socket's queue.
"""

import asyncio
import importlib
import socket
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeAlias

from smbroker.web.desk import Desk, Gate, Settings

if TYPE_CHECKING:
    from smbroker.web.server import Server

STOP_LIMIT = 2.0  # seconds until what is still open is left to its fate


MakeProtocol: TypeAlias = Callable[[], asyncio.Protocol]


class WebListener:
    """`around` puts TLS between a connection and its socket, or nothing."""

    def __init__(
        self,
        desk: Desk,
        settings: Settings,
        sock: socket.socket,
        gate: Gate,
        around: Callable[[MakeProtocol], MakeProtocol],
    ) -> None:
        self._desk = desk
        self._settings = settings
        self._sock = sock
        self._gate = gate
        self._around = around
        self._server: Server | None = None
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._serve())
        self._task.add_done_callback(_report)

    def stop(self) -> None:
        """New requests are answered with 503 from here on: see `Desk.open`."""

    async def close(self) -> None:
        if self._server:
            self._server.should_exit = True
        elif self._task:
            self._task.cancel()
        if self._task:
            await asyncio.wait([self._task], timeout=STOP_LIMIT)
            self._task.cancel()
        for connection in list(self._server.server_state.connections) if self._server else ():
            connection.transport.abort()
        self._sock.close()

    async def _serve(self) -> None:
        loop = asyncio.get_running_loop()
        module = await loop.run_in_executor(None, importlib.import_module, "smbroker.web.server")
        self._server = module.made(self._desk, self._settings, self._gate, self._around)
        await self._server.serve([self._sock])


def _report(task: "asyncio.Task[None]") -> None:
    if not task.cancelled() and (error := task.exception()):
        context = {"message": "in the web listener", "exception": error}
        task.get_loop().call_exception_handler(context)
