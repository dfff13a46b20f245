"""TLS between a socket's transport and the protocol that serves it.

    socket ─► transport ─► Tls.data_received ─► OpenSSL ─► protocol.data_received
    socket ◄─ transport ◄───────────── OpenSSL ◄─ Tls.write ◄─ protocol

To the protocol it is a transport. What one read brings is one call of the protocol, however many records it is in;
one write makes records as large as they can be. The gate is asked before the handshake, which must end in time.
OpenSSL sees a piece at a time, because its buffers stay as large as they once were.
"""

import asyncio
import ssl
from collections.abc import Callable
from functools import partial
from typing import Any, cast

from smbroker.model.errors import ProtocolError
from smbroker.server.certificates import Certificates
from smbroker.server.gate import Gate
from smbroker.server.turn import Turn

PIECE = 128 << 10  # bytes
RECORD = 16 << 10  # bytes that a record holds at most

MakeProtocol = Callable[[], asyncio.Protocol]


class TlsDoor:
    """One listener's: makes what stands between its sockets and their protocols."""

    def __init__(self, turn: Turn, gate: Gate, certificates: Certificates, timeout: float) -> None:
        self.turn = turn
        self.gate = gate
        self.certificates = certificates
        self.timeout = timeout

    def around(self, make: MakeProtocol) -> MakeProtocol:
        return lambda: Tls(self, make)

    def refuse(self, host: str, error: ProtocolError) -> None:
        self.turn.stats.dropped[error.code] += 1
        self.turn.console.warn(error.code, f"{host}: {error.text}")
        self.turn.begin()


class Tls(asyncio.Protocol, asyncio.Transport):
    def __init__(self, door: TlsDoor, make: MakeProtocol) -> None:
        self._door = door
        self._make = make
        self._protocol: asyncio.Protocol | None = None  # once the handshake is done
        self._host = ""  # while it is to leave the gate
        self._closing = False
        self._timer: asyncio.TimerHandle | None = None
        self._incoming = ssl.MemoryBIO()
        self._outgoing = ssl.MemoryBIO()
        self._context = door.certificates.context
        self._object = self._context.wrap_bio(self._incoming, self._outgoing, server_side=True)
        # What stands behind the object does the same without a step of Python, a sixth of what a short record costs.
        self._record: Callable[[], bytes] = partial(getattr(self._object, "_sslobj", self._object).read, RECORD)

    # --- the socket's transport calls ---

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        host = (transport.get_extra_info("peername") or ("",))[0]
        if not host:  # reset before it was accepted
            self.abort()
            return
        try:
            self._door.gate.enter(host)
        except ProtocolError as error:
            self._door.refuse(host, error)
            self.abort()
            return
        self._host = host
        self._timer = self._door.turn.loop.call_later(self._door.timeout, self._late)

    def data_received(self, data: bytes) -> None:
        if self._closing:
            return
        if len(data) <= PIECE:
            self._take(data)
            return
        for start in range(0, len(data), PIECE):
            self._take(data[start : start + PIECE])

    def eof_received(self) -> bool | None:
        if self._protocol is None or self._closing:
            return False
        return self._protocol.eof_received()

    def connection_lost(self, error: Exception | None) -> None:
        self._closing = True
        self._end_handshake()
        if self._protocol:
            self._protocol.connection_lost(error)

    def pause_writing(self) -> None:
        if self._protocol:
            self._protocol.pause_writing()

    def resume_writing(self) -> None:
        if self._protocol:
            self._protocol.resume_writing()

    # --- the protocol calls ---

    def write(self, data: Any) -> None:
        if self._closing:
            return
        try:
            if len(data) <= PIECE:
                self._object.write(data)
                self._transport.write(self._outgoing.read())
                return
            rest = memoryview(data)
            while rest:
                written = self._object.write(rest[:PIECE])
                self._transport.write(self._outgoing.read())
                rest = rest[written:]
        except ssl.SSLError as error:
            self._fail(ProtocolError("tls_broken", f"TLS: {_reason(error)}"))

    def close(self) -> None:
        self._say_end()
        self._transport.close()

    def write_eof(self) -> None:
        """Not closed yet: what still comes is read and thrown away, until the other side goes as well."""
        self._say_end()
        self._transport.resume_reading()
        self._transport.write_eof()

    def _say_end(self) -> None:
        if self._closing:
            return
        self._closing = True
        try:
            self._object.unwrap()  # that the other side says so too is not waited for
        except (ssl.SSLError, ValueError):
            pass
        self._send()

    def abort(self) -> None:
        self._closing = True
        self._transport.abort()

    def can_write_eof(self) -> bool:
        return True

    def is_closing(self) -> bool:
        return self._closing or self._transport.is_closing()

    def is_reading(self) -> bool:
        return self._transport.is_reading()

    def pause_reading(self) -> None:
        self._transport.pause_reading()

    def resume_reading(self) -> None:
        self._transport.resume_reading()

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._transport.set_write_buffer_limits(high=high, low=low)

    def get_write_buffer_size(self) -> int:
        return self._transport.get_write_buffer_size()

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self._protocol = cast(asyncio.Protocol, protocol)

    def get_protocol(self) -> asyncio.BaseProtocol:
        return self._protocol or self

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        if name == "peercert":
            return self._object.getpeercert()
        if name == "sslcontext":
            return self._context
        if name == "ssl_object":
            return self._object
        return self._transport.get_extra_info(name, default)

    # --- between the two ---

    def _take(self, data: bytes) -> None:
        self._incoming.write(data)
        if self._protocol is None and not self._shake_hands():
            return
        self._read()

    def _shake_hands(self) -> bool:
        """Whether that is done."""
        if self._closing:
            return False
        try:
            self._object.do_handshake()
        except ssl.SSLWantReadError:
            self._send()
            return False
        except ssl.SSLError as error:
            self._send()  # OpenSSL has written what is wrong
            self._fail(ProtocolError("tls_handshake", f"TLS handshake: {_reason(error)}"))
            return False
        self._send()
        self._end_handshake()
        self._protocol = self._make()
        self._protocol.connection_made(self)
        return True

    def _end_handshake(self) -> None:
        if self._timer:
            self._timer.cancel()
            self._timer = None
        if self._host:  # the protocol enters by itself
            self._door.gate.leave(self._host)
            self._host = ""

    def _read(self) -> None:
        if self._closing:
            return
        assert self._protocol
        data, end = self._decrypt()
        if data:
            self._protocol.data_received(data)
        if self._closing:
            return
        if self._outgoing.pending:
            self._send()  # an answer of TLS itself
        if isinstance(end, ssl.SSLZeroReturnError):
            self._ended()
        elif end:
            self._fail(ProtocolError("tls_broken", f"TLS: {_reason(end)}"))

    def _decrypt(self) -> tuple[bytes, ssl.SSLError | None]:
        """All records that are here, which is no more than came, and why there will be none after them."""
        records: list[bytes] = []
        try:
            records.append(self._record())
            if records[0] and not self._incoming.pending and not self._object.pending():
                return records[0], None
            records.extend(iter(self._record, b""))
        except ssl.SSLWantReadError:
            return b"".join(records), None
        except ssl.SSLError as error:
            return b"".join(records), error
        return b"".join(records), ssl.SSLZeroReturnError()  # an empty record: the other side has ended

    def _ended(self) -> None:
        """The other side has said that it will send no more."""
        if not self._closing and self._protocol and not self._protocol.eof_received():
            self.close()

    def _send(self) -> None:
        if self._outgoing.pending:
            self._transport.write(self._outgoing.read())

    def _late(self) -> None:
        text = f"no TLS handshake within {self._door.timeout:g} s (tls.handshake_timeout)"
        self._door.refuse(self._host, ProtocolError("tls_timeout", text))
        self._end_handshake()
        self.abort()

    def _fail(self, error: ProtocolError) -> None:
        self._door.refuse((self._transport.get_extra_info("peername") or ("",))[0], error)
        self._closing = True
        self._end_handshake()
        self._transport.close()


def _reason(error: ssl.SSLError) -> str:
    return (error.reason or str(error)).replace("_", " ").lower()
