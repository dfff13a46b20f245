"""The broker: starts the listeners, runs until told to stop, stops in order.

It stops on SIGINT, SIGTERM and the word `exit` on standard input; the end of that input does not
stop it. SIGUSR1 makes the next semicolon subscribe drop the others first; SIGHUP has files read again (`reloads`).
"""

import asyncio
import gc
import os
import resource
import signal
import stat
import sys
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

import uvloop

from smbroker.model.rights import is_loopback
from smbroker.server import listeners
from smbroker.server.config import Config
from smbroker.server.console import Console
from smbroker.server.desk import Desk
from smbroker.server.gate import Gate
from smbroker.server.heap import keep_freed
from smbroker.server.listeners import Bound, Endpoint
from smbroker.server.mqtt.service import Mqtt
from smbroker.server.mqtt.sys import Sys
from smbroker.server.reloads import Reloads
from smbroker.server.store import Store
from smbroker.server.tcp import Connections
from smbroker.server.tls import MakeProtocol, TlsDoor
from smbroker.server.turn import Turn
from smbroker.server.udp import UdpListener

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP)
STOP_LIMIT = 2.0  # seconds for clients to take what has been written to them
SWITCH_INTERVAL = 0.0005  # seconds: how long the loop may wait for the log's thread to yield the interpreter
GC_THRESHOLDS = (50_000, 20, 50)  # a turn makes many objects and no cycles: look for those less often
WEB_OF_ADDRESS = 200  # connections, where the setting is `auto` and the address not on loopback
UDP_OPEN = (
    "{} takes subscriptions from the network. Whoever sends it a datagram with a forged address has it send messages "
    "to that address, which never asked (reflection). Name the ranges of your clients in udp.allow, keep others out "
    "with a firewall, and read docs/howto/network.md"
)
BACKGROUND_CHECK = 1.0  # seconds between looks whether a terminal is ours again


class Service(Protocol):
    """A listener of another package, with a socket that is bound."""

    def start(self) -> None:
        """The broker is ready."""

    def stop(self) -> None:
        """Take no more requests; what was asked before may still be answered."""

    async def close(self) -> None:
        """Everything that was published is on disk: end what is open, soon."""


@dataclass(frozen=True, slots=True)
class Entrance:
    """What a service has its connections go through: the gate, which each enters and leaves, and perhaps TLS."""

    gate: Gate
    around: Callable[[MakeProtocol], MakeProtocol]


ServiceOf: TypeAlias = Callable[[Desk, Config, Bound, Entrance], Service]


def run(config: Config, services: Mapping[str, ServiceOf]) -> None:
    """Serves until told to stop. Raises UsageError or LogError if a listener or the log cannot be had.

    `services` makes those for `listeners.SERVICE_KINDS`."""
    endpoints = [listeners.endpoint(text) for text in config.listen]
    signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)  # until there is someone to take them
    _allow_many_descriptors()
    sys.setswitchinterval(SWITCH_INTERVAL)
    keep_freed()
    gc.freeze()
    gc.set_threshold(*GC_THRESHOLDS)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        try:
            runner.run(_serve(config, endpoints, services))
        finally:
            signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)  # the loop takes no more of them, and it is ending
    for number in SIGNALS:
        signal.signal(number, signal.SIG_IGN)


async def _serve(config: Config, endpoints: list[Endpoint], services: Mapping[str, ServiceOf]) -> None:
    broker = Broker(asyncio.get_running_loop(), config, services)
    try:
        await broker.start([listeners.bind(each, config) for each in endpoints])
        await broker.stopped.wait()
    finally:
        await broker.stop()


class Broker:
    def __init__(self, loop: asyncio.AbstractEventLoop, config: Config, services: Mapping[str, ServiceOf]) -> None:
        self._loop = loop
        self._config = config
        self.console = Console(loop.time, as_json=config.log_format == "json")
        self.turn = Turn(loop, config, self.console)
        self.store = None if config.no_log else Store.open(config, self.turn)
        history = self.store.history if self.store else None
        self.mqtt = Mqtt(self.turn, config.mqtt, history, config.tcp.max_subscriptions)
        if self.store:
            self.store.keep_mqtt(self.mqtt)
        self._sys: Sys | None = None
        self.connections = Connections(self.turn, config, self.mqtt)
        self.stopped = asyncio.Event()
        self._servers: list[asyncio.Server] = []
        self._udp: list[UdpListener] = []
        self._service_of = services
        self._services: list[Service] = []
        web = config.web
        # Up to max_connections requests are answered, from there on refused; what comes beyond twice as many is closed.
        self._web_gate = Gate(
            2 * web.max_connections, web.max_connections_per_address, WEB_OF_ADDRESS, "web.max_connections"
        )
        self.reloads = Reloads(self.console)
        self.desk = Desk(config, self.turn, self.store, self.connections)
        self.turn.access.rights.changed += [
            self.turn.rights_changed,
            self.mqtt.rights_changed,
            self.connections.rights_changed,
            self.desk.rights_changed,
        ]
        if self.turn.access.on:
            self.reloads.add("rules and users", self.turn.access.reload)
        self._input = b""

    async def start(self, bound: list[Bound]) -> None:
        self._loop.set_exception_handler(self._report_bug)
        if self.store:
            self.store.start()  # first: the process that reads history takes a moment to be there
            await asyncio.sleep(0)
        for number in (signal.SIGINT, signal.SIGTERM):
            self._loop.add_signal_handler(number, self.stopped.set)
        self._loop.add_signal_handler(signal.SIGUSR1, self._drop_semicolon_next)
        self._loop.add_signal_handler(signal.SIGHUP, self._hang_up)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
        for one in bound:
            await self._listen(one)
        if self.store:
            self.store.restore_peers(self._udp)
        if self._services:
            self.desk.start()
        if not self._config.quiet:
            self.console.say("ready")
        self.console.write()
        self._watch_input()
        self._sys = Sys(self.mqtt, self._config.mqtt.sys_interval)
        for service in self._services:
            service.start()

    async def stop(self) -> None:
        """Stops listening, finishes writes, lets clients take what is theirs."""
        for server in self._servers:
            server.close()
        if self._sys:
            self._sys.stop()
        for listener in self._udp:
            listener.stop_reading()
        self.connections.watch.stop()
        self.connections.stopping = True
        for connection in self.connections.open:
            connection.stop_reading()
        for service in self._services:
            service.stop()
        self.desk.close()
        self.turn.end()
        if self.store:
            await self.store.stop()
            self.turn.end()
        await asyncio.gather(self._close_connections(), *(service.close() for service in self._services))
        for listener in self._udp:
            listener.close()
        if self.store:
            await self.store.close()
        self.turn.access.close()
        self._say_farewell()

    async def _close_connections(self) -> None:
        for connection in list(self.connections.open):
            connection.close()
        deadline = self._loop.time() + STOP_LIMIT
        while self.connections.open and self._loop.time() < deadline:
            await asyncio.sleep(0.01)
        for connection in list(self.connections.open):
            connection.abort()
        await asyncio.sleep(0)
        self.turn.end()

    def _say_farewell(self) -> None:
        self.console.tell_left_out()
        if summary := self.turn.stats.summary():
            self.console.note(f"dropped in all: {summary}")
        self.console.write()

    async def _listen(self, one: Bound) -> None:
        kind = one.endpoint.kind
        if kind in listeners.SERVICE_KINDS:
            entrance = Entrance(self._web_gate, self._around(one, self._web_gate))
            self._services.append(self._service_of[kind](self.desk, self._config, one, entrance))
        if one.datagram:
            decoders = listeners.decoders(kind, self._config.semicolon)
            if kind != "typed" and not is_loopback(one.endpoint.host):
                self.console.warn("udp_open", UDP_OPEN.format(one.endpoint))
            self._udp.append(UdpListener(self.turn, self._config, str(one.endpoint), one.datagram, decoders))
        if one.stream and kind in listeners.TCP_KINDS:
            around = self._around(one, self.connections.gate)
            protocol = around(self.connections.protocol(listeners.TCP_KINDS[kind]))
            self._servers.append(await self._loop.create_server(protocol, sock=one.stream, backlog=listeners.BACKLOG))
        if not self._config.quiet:
            self.console.say(f"listening {one.endpoint.shown_kind} {one.endpoint.host} {one.endpoint.port}")

    def _around(self, one: Bound, gate: Gate) -> Callable[[MakeProtocol], MakeProtocol]:
        if not one.certificates:
            return lambda make: make
        if one.certificates.key_is_open:
            files = one.certificates.files
            self.console.warn(
                "tls_key_open", f"anyone on this machine may read the key in {files.key or files.certificate}"
            )
        self.reloads.add(f"certificates of {one.endpoint}", one.certificates.read_again)
        return TlsDoor(self.turn, gate, one.certificates, self._config.tls.handshake_timeout).around

    def _hang_up(self) -> None:
        if self.reloads.terminal_gone:
            self.stopped.set()
        self.reloads.read_again()
        self.turn.begin()

    def _drop_semicolon_next(self) -> None:
        self.turn.drop_semicolon = True

    def _report_bug(self, _loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        detail = "".join(traceback.format_exception(error)) if error else ""
        self.console.error(f"a bug in the broker: {context.get('message')}\n{detail}".rstrip())
        self.turn.begin()

    # --- standard input ---

    def _watch_input(self) -> None:
        try:
            mode = os.fstat(0).st_mode
            if stat.S_ISREG(mode):
                self._take_input(os.read(0, 1 << 16) + b"\n")  # the last line may have no end
            else:
                self._loop.add_reader(0, self._read_input)
        except (OSError, ValueError):
            pass  # closed, or nothing that can be waited for

    def _read_input(self) -> None:
        if _is_anothers_terminal():
            # The terminal is another program's now: to read from it would stop us.
            self._loop.remove_reader(0)
            self._loop.call_later(BACKGROUND_CHECK, self._watch_input)
            return
        try:
            data = os.read(0, 1 << 16)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if data:
            self._take_input(data)
        else:
            self._loop.remove_reader(0)
            self._take_input(b"\n")  # the last line may have had no end

    def _take_input(self, data: bytes) -> None:
        *lines, self._input = (self._input + data).split(b"\n")
        self._input = self._input[-100:]
        if any(line.strip() == b"exit" for line in lines):
            self.stopped.set()


def _is_anothers_terminal() -> bool:
    """Whether standard input is a terminal that another program has in the foreground."""
    try:
        return os.isatty(0) and os.tcgetpgrp(0) != os.getpgrp()
    except OSError:  # a terminal, but not the one that controls us
        return False


def _allow_many_descriptors() -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
