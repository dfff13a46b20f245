"""TCP: connections that feed their decoder, hand the commands to the turn and write what it leaves.

A connection is in one dialect, told by the listener or found from its first bytes. A subscriber that
lets too much wait is disconnected; unfinished input is bounded for all connections together.
"""

import asyncio
from collections.abc import Callable
from typing import Protocol, cast

from smbroker.core.sessions import Session
from smbroker.dialects import padded, typed
from smbroker.model.commands import Alive, Command
from smbroker.model.errors import ProtocolError, Refused
from smbroker.model.message import Dialect, Origin
from smbroker.server.access import certified
from smbroker.server.client import Client
from smbroker.server.config import Config
from smbroker.server.detect import stream_dialect
from smbroker.server.gate import Gate
from smbroker.server.mqtt.connection import MqttConnection
from smbroker.server.mqtt.service import Mqtt
from smbroker.server.pace import Pace, StallWatch
from smbroker.server.sockets import FULL
from smbroker.server.turn import Turn

MOST_OF_ADDRESS = 1_000  # connections, where the setting is `auto` and the address not on loopback
MAX_HEAD = 4_096  # bytes within which a stream must show its dialect


class Decoder(Protocol):
    @property
    def held(self) -> int: ...

    def feed(self, data: bytes) -> None: ...

    def next(self) -> Command | None: ...


DECODERS: dict[Dialect, Callable[[Config], Decoder]] = {
    Dialect.PADDED: lambda config: padded.Decoder(config.max_payload),
    Dialect.TYPED: lambda _: typed.Decoder(),
}


class Connections:
    """All TCP connections of the broker, and what they hold together."""

    def __init__(self, turn: Turn, config: Config, mqtt: Mqtt) -> None:
        self.loop = turn.loop
        self.turn = turn
        self.config = config
        self.mqtt = mqtt
        self.open: set[Connection | MqttConnection] = set()
        limits = config.tcp
        self.gate = Gate(
            limits.max_connections, limits.max_connections_per_address, MOST_OF_ADDRESS, "tcp.max_connections"
        )
        self.held = 0  # bytes of unfinished input
        self.stopping = False  # nothing more is read
        self.watch = StallWatch(self.loop, self.open, limits.stall_timeout)

    def rights_changed(self) -> None:
        """Whoever may do nothing any more has to leave."""
        for connection in list(self.open):
            connection.rights_changed()

    def protocol(self, dialect: Dialect | None) -> "Callable[[], asyncio.Protocol]":
        if dialect is Dialect.MQTT:
            return lambda: MqttConnection(self, self.mqtt)
        return lambda: Connection(self, dialect)

    def new_pace(self) -> Pace | None:
        rate = self.config.tcp.max_rate
        return Pace(rate, self.loop.time()) if rate else None

    def enter(self, connection: "Connection | MqttConnection") -> None:
        """Raises ProtocolError: there is no room for it."""
        self.gate.enter(connection.origin.host)
        self.open.add(connection)

    def leave(self, connection: "Connection | MqttConnection") -> None:
        if connection in self.open:
            self.open.discard(connection)
            self.gate.leave(connection.origin.host)


class Connection(Client, asyncio.Protocol):
    __slots__ = (
        "_closing", "_decoder", "_dialect", "_ended", "_follows", "_full", "_given", "_head", "_held", "_keep_alive",
        "_left", "_pace", "_shared", "_timer", "_transport", "_user", "received",
    )  # fmt: skip

    _transport: asyncio.Transport

    def __init__(self, shared: Connections, dialect: Dialect | None) -> None:
        self._shared = shared
        self._dialect = dialect
        self._head = b""
        self._held = 0
        self._decoder: Decoder | None = None
        self._keep_alive: padded.KeepAlive | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._closing = False
        self._full = False
        self._given = 0  # bytes handed to the transport
        self._left = 0
        self._ended = False  # the transport cannot tell any more what has left
        self._follows = shared.turn.followers
        self.received = 0  # bytes
        self._pace = shared.new_pace()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(high=FULL, low=0)
        host, port = (transport.get_extra_info("peername") or ("", 0))[:2]
        super().__init__(Origin(self._dialect or Dialect.TYPED, host, port))
        self._user = certified(transport)
        if not host:  # reset before it was accepted
            self.abort()
            return
        try:
            self._shared.enter(self)
        except ProtocolError as error:
            self._fail(error)
            return
        self._timer = self._shared.loop.call_later(self._shared.config.tcp.first_timeout, self._first_due)
        if self._dialect is not None:
            try:
                self._speak(self._dialect)
            except ProtocolError as error:
                self._fail(error)

    def _first_due(self) -> None:
        self._timer = None
        if self.session is None and not self._closing:
            seconds = self._shared.config.tcp.first_timeout
            self._fail(
                ProtocolError("first_timeout", f"has not said who it is within {seconds:g} s (tcp.first_timeout)")
            )

    @property
    def unfinished(self) -> int:
        return self._held if self._transport.is_reading() else 0  # else it is the broker who does not listen

    def stalled(self) -> None:
        error = ProtocolError("stalled", "a message that it has begun does not go on (tcp.stall_timeout)")
        self._fail(error, abort=True)

    @property
    def full(self) -> bool:
        return self._full

    @property
    def waiting(self) -> int:
        return super().waiting + self._transport.get_write_buffer_size()

    def left(self) -> int:
        waiting = self._transport.get_write_buffer_size()
        # A transport that closes with nothing waiting has sent all or has failed: its end will tell which.
        if not self._ended and (waiting or not self._transport.is_closing()):
            self._left = max(self._left, self._given - waiting)  # over TLS what waits is a little longer than it was
        return self._left

    def pause_writing(self) -> None:
        self._full = True
        if self._follows and self.session:
            self._follows.full(self.session)

    def resume_writing(self) -> None:
        self._full = False
        if self._follows and self.session:
            self._follows.drained(self.session)
            self._shared.turn.begin()

    def data_received(self, data: bytes) -> None:
        if self._closing:
            return
        turn = self._shared.turn
        turn.begin()
        self.received += len(data)
        if self._pace and (pause := self._pace.wait(len(data), self._shared.loop.time())):
            self.stop_reading()
            self._shared.loop.call_later(pause, self._resume_reading)
        if turn.behind and turn.commits and self._transport.is_reading():
            self._transport.pause_reading()
            turn.commits.when_caught_up(self._resume_reading)
        try:
            if self._decoder is None:
                data = self._detect(data)
            if self._decoder is not None:
                self._decode(self._decoder, data)
        except ProtocolError as error:
            self._fail(error)

    def stop_reading(self) -> None:
        if self._transport.is_reading():
            self._transport.pause_reading()

    def _resume_reading(self) -> None:
        turn = self._shared.turn
        if self._transport.is_closing() or self._shared.stopping:
            return
        if self._keep_alive:
            self._keep_alive.heard(self._shared.loop.time())
        if turn.behind and turn.commits:
            turn.commits.when_caught_up(self._resume_reading)
        else:
            self._transport.resume_reading()

    def connection_lost(self, error: Exception | None) -> None:
        if error is None and not self._ended:
            self._left = self._given
        self._ended = True
        if self._follows and self.session:
            self._follows.ended(self.session)
        self._closing = True
        if self._timer:
            self._timer.cancel()
        self._shared.held -= self._held
        self._shared.leave(self)
        self.frames.clear()
        self._shared.turn.left(self)

    def new_session(self) -> Session:
        return Session(self.origin.dialect, self.origin.source, self.origin.host)

    def flush(self) -> None:
        frames = self.frames
        if not frames:
            return
        data = frames[0] if len(frames) == 1 else b"".join(frames)
        frames.clear()
        self.written += len(data)
        self._shared.turn.stats.bytes_out += len(data)
        was_full, closing = self._full, self._transport.is_closing()
        if not closing:
            self._transport.write(data)
            self._given = self.written
        if self._follows and self.session:
            self._follows.flushed(self.session)
            if closing:
                self._follows.full(self.session)
        # Who is fed from the log is fed no more once it is full; this is for the others.
        if was_full and not closing and self._transport.get_write_buffer_size() > self._shared.config.tcp.outbox_bytes:
            self._fail(ProtocolError("outbox_full", "disconnected: it does not read what it subscribed to"), abort=True)

    def close(self) -> None:
        self._closing = True
        if not self.owed:
            self.flush()
            self._transport.close()

    def paid(self) -> None:
        if self._closing:
            self.close()

    def eof_received(self) -> bool:
        """The client has said all; it stays until it has what is owed to it."""
        self._closing = True
        self.flush()  # acknowledgements may be among it
        return self.owed > 0

    def abort(self) -> None:
        self.left()
        self._ended = self._closing = True
        self._transport.abort()

    def rights_changed(self) -> None:
        if self.grant.nothing and (self.session or self.origin.dialect is Dialect.PADDED):
            self._fail(ProtocolError("not_allowed", "disconnected: it may do nothing any more"))

    def _fail(self, error: ProtocolError, *, abort: bool = False) -> None:
        self._shared.turn.reject(self, error)
        self._shared.turn.begin()
        if abort:
            self.abort()
        else:
            self.close()

    def _detect(self, data: bytes) -> bytes:
        """Holds the first bytes until they show the dialect; then returns them all."""
        self._head += data
        dialect = stream_dialect(self._head)
        if dialect is Dialect.MQTT:
            self._hand_over()
            return b""
        if dialect is not None:
            self._speak(dialect)
        elif len(self._head) > MAX_HEAD:
            raise ProtocolError("unknown_dialect", "neither padded nor typed")
        return self._head

    def _hand_over(self) -> None:
        """To a connection of its own kind."""
        self._closing = True
        if self._timer:
            self._timer.cancel()
        self._shared.leave(self)
        other = MqttConnection(self._shared, self._shared.mqtt)
        self._transport.set_protocol(other)
        other.connection_made(self._transport)
        other.data_received(self._head)

    def _speak(self, dialect: Dialect) -> None:
        if self.origin.dialect is not dialect:
            self.origin = Origin(dialect, self.origin.host, self.origin.port)
        self.grant = self._shared.turn.access.grant(dialect, self.origin.host, None, self._user)
        if self.grant.nothing and dialect is Dialect.PADDED:  # a typed client may have rights by its id
            raise ProtocolError("not_allowed", "nothing is allowed from this address")
        self._decoder = DECODERS[dialect](self._shared.config)
        if dialect is Dialect.PADDED:
            if self._timer:
                self._timer.cancel()  # its own keep-alive finds those that are silent
            self._keep_alive = padded.KeepAlive(self._shared.loop.time())
            self._timer = self._shared.loop.call_at(self._keep_alive.deadline, self._check_alive)

    def _decode(self, decoder: Decoder, data: bytes) -> None:
        if self._keep_alive:
            self._keep_alive.heard(self._shared.loop.time())
        decoder.feed(data)
        while not self._closing and (command := decoder.next()) is not None:
            if isinstance(command, Alive) and self._keep_alive:
                self._keep_alive.answered()
            try:
                self._shared.turn.handle(self, command)
            except Refused as error:
                self._shared.turn.reject(self, error)
        self._account(decoder.held)

    def _account(self, held: int) -> None:
        self._shared.held += held - self._held
        self._held = held
        if held and self._shared.held > self._shared.config.tcp.input_bytes:
            raise ProtocolError("input_full", "too much unfinished input is waiting (tcp.input_bytes)")

    def _check_alive(self) -> None:
        keep_alive, now = self._keep_alive, self._shared.loop.time()
        assert keep_alive is not None
        if not self._transport.is_reading():  # it is the broker who does not listen
            keep_alive.heard(now)
        due = keep_alive.due(now)
        turn = self._shared.turn
        name = repr((self.origin.host, self.origin.port))
        if due.unanswered:
            turn.console.say(f"{name} did not answer. [{due.unanswered}]")
        if due.ping:
            turn.delivery.put(self, padded.PING)
        if due.lost:
            turn.console.say(f"{name} disconnected by Server")
            self.abort()
        else:
            self._timer = self._shared.loop.call_at(keep_alive.deadline, self._check_alive)
        turn.begin()
