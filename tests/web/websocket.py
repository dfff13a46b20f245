"""A WebSocket client for tests: it sends the frames that it is told to, whole or in pieces."""

import base64
import hashlib
import os
import socket

from flow.house import LIMIT, Broker
from web.calls import Said, answer_to, raw

CONTINUED, TEXT, BINARY, CLOSE, PING, PONG = 0, 1, 2, 8, 9, 10
KEY = "dGhlIHNhbXBsZSBub25jZQ=="


def handshake(**changed: str | None) -> bytes:
    """The request; a header that is None is left out."""
    headers: dict[str, str | None] = {
        "Host": "127.0.0.1",
        "Upgrade": "websocket",
        "Connection": "keep-alive, Upgrade",
        "Sec-WebSocket-Version": "13",
        "Sec-WebSocket-Key": KEY,
        "Sec-WebSocket-Protocol": "mqtt",
    }
    headers |= {name.replace("_", "-"): value for name, value in changed.items()}
    lines = [f"{name}: {value}\r\n" for name, value in headers.items() if value is not None]
    return ("GET /mqtt HTTP/1.1\r\n" + "".join(lines) + "\r\n").encode()


def asked(broker: Broker, **changed: str | None) -> Said:
    """The answer to a handshake."""
    with raw(broker, handshake(**changed)) as sock:
        return answer_to(sock)


def frame(opcode: int, payload: bytes = b"", *, last: bool = True, masked: bool = True, bits: int = 0) -> bytes:
    size = len(payload)
    mask = os.urandom(4)
    head = bytes((last << 7 | bits << 4 | opcode,))
    flag = masked << 7
    if size < 126:
        head += bytes((flag | size,))
    elif size < 1 << 16:
        head += bytes((flag | 126,)) + size.to_bytes(2, "big")
    else:
        head += bytes((flag | 127,)) + size.to_bytes(8, "big")
    if not masked:
        return head + payload
    return head + mask + bytes(byte ^ mask[at % 4] for at, byte in enumerate(payload))


class WebSocket:
    """For `flow.mqtt.Mqtt(over=…)`: each `send` is one binary message."""

    def __init__(
        self, broker: Broker, protocol: str = "mqtt", early: bytes = b"", over: socket.socket | None = None
    ) -> None:
        """`over`: a connection to the web listener that there is."""
        request = handshake(Sec_WebSocket_Protocol=protocol) + early
        if over:
            over.sendall(request)
        self.sock = over or raw(broker, request)
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        head, self._rest = b"", b""
        while b"\r\n\r\n" not in head:
            data = self.sock.recv(65_536)
            assert data, head
            head += data
        head, _, self._rest = head.partition(b"\r\n\r\n")
        self.head = head.decode().lower()
        accept = base64.b64encode(hashlib.sha1(KEY.encode() + b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11").digest())
        assert self.head.startswith("http/1.1 101 ")
        assert f"sec-websocket-accept: {accept.decode().lower()}" in self.head
        assert f"sec-websocket-protocol: {protocol.rpartition(' ')[2]}" in self.head

    def send(self, data: bytes) -> None:
        self.sock.sendall(frame(BINARY, data))

    def next(self, limit: float = LIMIT) -> tuple[int, bytes]:
        """The broker's next frame."""
        first, second = self._take(2, limit)
        assert first & 0xF0 == 0x80
        assert second < 128, "a server's frame has no mask"
        size = second
        if second > 125:
            size = int.from_bytes(self._take(2 if second == 126 else 8, limit), "big")
        return first & 15, self._take(size, limit)

    def _take(self, size: int, limit: float) -> bytes:
        self.sock.settimeout(limit)
        while len(self._rest) < size:
            data = self.sock.recv(65_536)
            assert data, "closed by the broker"
            self._rest += data
        data, self._rest = self._rest[:size], self._rest[size:]
        return data

    def some(self, limit: float = LIMIT) -> bytes:
        opcode, payload = self.next(limit)
        if opcode == CLOSE:
            return b""
        assert opcode == BINARY
        return payload

    def ended(self, code: int) -> bool:
        """Whether the broker says this, and closes."""
        opcode, payload = self.next()
        assert (opcode, int.from_bytes(payload[:2], "big")) == (CLOSE, code)
        return self._closed()

    def closed(self) -> bool:
        return self.ended(1000)

    def _closed(self) -> bool:
        try:
            return not self._rest and self.sock.recv(1) == b""
        except ConnectionResetError:
            return True
