"""MQTT over WebSocket at `/mqtt`: the handshake, and a transport whose bytes travel in frames.

The connection that speaks MQTT is the broker's own, as over TCP; it takes this one for its transport.
What holds back there holds back here: who does not read, and who is to be read from no more for a while.
"""

import asyncio
import base64
import binascii
import hashlib
from collections.abc import Callable
from typing import Any, cast

from starlette.datastructures import Headers

from smbroker.model.errors import Refused
from smbroker.web.desk import Desk
from smbroker.web.frames import NORMAL, PONG, Decoder, End, encode, encode_binary, encode_end

PATH = b"/mqtt"
PROTOCOLS = ("mqtt", "mqttv3.1")  # [MQTT-6.0.0-3]; the second was 3.1's
VERSION = "13"
GUID = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"  # of RFC 6455
KEY_BYTES = 16


def agreed(headers: Headers) -> bytes:
    """The answer to a handshake. Raises Refused."""
    if "websocket" not in _words(headers, "upgrade") or "upgrade" not in _words(headers, "connection"):
        raise Refused("not_websocket", "this is for MQTT over WebSocket; publish with POST /v1/publish/TOPIC")
    if headers.get("sec-websocket-version") != VERSION:
        raise Refused("bad_websocket", f"the version of WebSocket is not {VERSION}")
    key = headers.get("sec-websocket-key", "")
    if not _is_key(key):
        raise Refused("bad_websocket", "the handshake has no proper Sec-WebSocket-Key")
    offered = _words(headers, "sec-websocket-protocol")
    protocol = next((one for one in PROTOCOLS if one in offered), None)
    if protocol is None:
        raise Refused("bad_websocket", "the client must offer the subprotocol mqtt (Sec-WebSocket-Protocol)")
    accept = base64.b64encode(hashlib.sha1(key.encode() + GUID, usedforsecurity=False).digest())
    return (
        b"HTTP/1.1 101 Switching Protocols\r\nupgrade: websocket\r\nconnection: Upgrade\r\n"
        b"sec-websocket-accept: " + accept + b"\r\nsec-websocket-protocol: " + protocol.encode() + b"\r\n\r\n"
    )


def _words(headers: Headers, name: str) -> list[str]:
    return [word.strip().lower() for line in headers.getlist(name) for word in line.split(",")]


def _is_key(key: str) -> bool:
    try:
        return len(base64.b64decode(key.encode(), validate=True)) == KEY_BYTES
    except (binascii.Error, UnicodeEncodeError):
        return False


class MqttSocket(asyncio.Protocol, asyncio.Transport):
    """A protocol to the transport below, a transport to the connection above."""

    def __init__(self, desk: Desk, lost: Callable[[Any], None]) -> None:
        super().__init__()
        self._desk = desk
        self._above = desk.mqtt_connection()
        self._lost = lost
        self._decoder = Decoder()
        self._full = False
        self._ended = False

    # --- the transport below ---

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self._above.connection_made(self)

    def data_received(self, data: bytes) -> None:
        if self._ended:
            return
        fed = self._decoder.feed(data)
        if fed.data:
            self._above.data_received(fed.data)
        if fed.pings and not self.is_closing() and not self._full:
            self.transport.write(encode(PONG, fed.pings[-1]))  # "MAY elect to send … only … the most recent" (5.5.3)
        if fed.end and not self._ended:
            self._end(fed.end)

    def _end(self, end: End) -> None:
        stays = self._above.eof_received()
        if end.text:
            self._desk.refused("bad_websocket")
        elif stays:
            return  # closed by the connection, which owes acknowledgements
        self._close(end)

    def eof_received(self) -> bool | None:
        return self._above.eof_received()

    def pause_writing(self) -> None:
        self._full = True
        self._above.pause_writing()

    def resume_writing(self) -> None:
        self._full = False
        self._above.resume_writing()

    def connection_lost(self, error: Exception | None) -> None:
        self._ended = True
        self._lost(self)
        self._above.connection_lost(error)

    def shutdown(self) -> None:
        """The server stops; the broker ends its MQTT connections by itself."""

    # --- for the connection above ---

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if not self._ended:
            self.transport.write(encode_binary(bytes(data)))

    def close(self) -> None:
        self._close(End(NORMAL))

    def _close(self, end: End) -> None:
        self._say_end(end)
        self.transport.close()

    def write_eof(self) -> None:
        """Not closed yet: what still comes is read and thrown away, until the other side goes as well."""
        self._say_end(End(NORMAL))
        self.transport.resume_reading()
        self.transport.write_eof()

    def _say_end(self, end: End) -> None:
        if not self._ended and not self.transport.is_closing():
            self.transport.write(encode_end(end))
        self._ended = True

    def abort(self) -> None:
        self._ended = True
        self.transport.abort()

    def can_write_eof(self) -> bool:
        return True

    def is_closing(self) -> bool:
        return self._ended or self.transport.is_closing()

    def is_reading(self) -> bool:
        return self.transport.is_reading()

    def pause_reading(self) -> None:
        self.transport.pause_reading()

    def resume_reading(self) -> None:
        self.transport.resume_reading()

    def get_write_buffer_size(self) -> int:
        return self.transport.get_write_buffer_size()

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self.transport.set_write_buffer_limits(high, low)

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return self.transport.get_extra_info(name, default)
