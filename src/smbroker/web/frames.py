"""WebSocket frames (RFC 6455) of a client that sends binary data: what they carry, as it arrives.

    fin 000 opcode │ mask length │ (2 or 8 bytes of length) │ 4 bytes of mask │ payload

A frame's payload is passed on before all of it is there, so that its length costs no memory; where frames
and messages begin and end means nothing to MQTT. Only the head of a frame, or a control frame, is held back.
"""

from typing import Final, NamedTuple

CONTINUED, TEXT, BINARY, CLOSE, PING, PONG = 0, 1, 2, 8, 9, 10
MAX_CONTROL: Final = 125  # bytes of a control frame
PIECE: Final = 64 << 10  # bytes of a frame that we send, at most: some clients hold a whole one

NORMAL: Final = 1000  # why a connection is closed
BROKEN: Final = 1002
NOT_BINARY: Final = 1003


class End(NamedTuple):
    code: int
    text: str = ""  # empty: the client wishes it


class Fed(NamedTuple):
    data: bytes
    pings: list[bytes]
    end: End | None  # what comes after it is not looked at


class _Broken(Exception):
    def __init__(self, text: str, code: int = BROKEN) -> None:
        self.end = End(code, text)


class Decoder:
    __slots__ = ("_begun", "_left", "_mask", "_rest")

    def __init__(self) -> None:
        self._rest = b""
        self._left = 0  # bytes of the frame at hand that have not arrived
        self._mask = b""
        self._begun = False  # a message whose last frame has not come

    def feed(self, data: bytes) -> Fed:
        if self._rest:
            data, self._rest = self._rest + data, b""
        pieces: list[bytes] = []
        pings: list[bytes] = []
        position, end = 0, None
        try:
            while position < len(data) and end is None:
                if self._left:
                    piece = data[position : position + self._left]
                    pieces.append(self._taken(piece))
                    position += len(piece)
                    continue
                head = _Head.of(data, position)
                if head is None:
                    self._rest = data[position:]
                    break
                if head.opcode >= CLOSE:
                    payload = data[head.body : head.body + head.length]
                    end = _control(head, unmasked(payload, head.mask), pings)
                else:
                    self._begin(head)
                    head = head._replace(length=0)
                position = head.body + head.length
        except _Broken as broken:
            end = broken.end
        return Fed(b"".join(pieces), pings, end)

    def _begin(self, head: "_Head") -> None:
        if head.opcode == TEXT:
            raise _Broken("a text frame: MQTT is binary", NOT_BINARY)  # [MQTT-6.0.0-1]
        if (head.opcode == CONTINUED) is not self._begun:
            raise _Broken("a frame that does not go on with its message")
        self._begun = not head.last
        self._left, self._mask = head.length, head.mask

    def _taken(self, piece: bytes) -> bytes:
        mask, turned = self._mask, len(piece) % 4
        self._left -= len(piece)
        self._mask = mask[turned:] + mask[:turned]
        return unmasked(piece, mask)


class _Head(NamedTuple):
    last: bool
    opcode: int
    length: int
    mask: bytes
    body: int  # where the payload begins

    @staticmethod
    def of(data: bytes, start: int) -> "_Head | None":
        """None: it has not arrived; nor has a control frame that is not all there."""
        if len(data) - start < 2:
            return None
        first, second = data[start], data[start + 1]
        opcode, length, at = first & 15, second & 127, start + 2
        if first & 0x70 or opcode not in (CONTINUED, TEXT, BINARY, CLOSE, PING, PONG):
            raise _Broken("bits or an opcode that nobody agreed on")
        if not second & 128:
            raise _Broken("a frame without a mask")
        if opcode >= CLOSE and (length > MAX_CONTROL or not first & 128):
            raise _Broken("a control frame that is long or in pieces")
        if length > MAX_CONTROL:
            size, least = (2, 126) if length == 126 else (8, 1 << 16)
            if len(data) < at + size:
                return None
            length, at = int.from_bytes(data[at : at + size], "big"), at + size
            if length < least or length >> 63:
                raise _Broken("a length with more bytes than it needs")
        if len(data) < at + 4 + (length if opcode >= CLOSE else 0):
            return None
        return _Head(bool(first & 128), opcode, length, data[at : at + 4], at + 4)


def _control(head: _Head, payload: bytes, pings: list[bytes]) -> End | None:
    if head.opcode == PING:
        pings.append(payload)
    if head.opcode != CLOSE:
        return None
    if len(payload) == 1:
        raise _Broken("half a reason to close")
    return End(NORMAL)


def unmasked(data: bytes, mask: bytes) -> bytes:
    size = len(data)
    key = (mask * (size // 4 + 1))[:size]
    return (int.from_bytes(data, "little") ^ int.from_bytes(key, "little")).to_bytes(size, "little")


def encode(opcode: int, payload: bytes) -> bytes:
    size = len(payload)
    first = bytes((0x80 | opcode,))
    if size <= MAX_CONTROL:
        return first + bytes((size,)) + payload
    if size < 1 << 16:
        return first + b"\x7e" + size.to_bytes(2, "big") + payload
    return first + b"\x7f" + size.to_bytes(8, "big") + payload


def encode_binary(data: bytes) -> bytes:
    if len(data) <= PIECE:
        return encode(BINARY, data)
    return b"".join(encode(BINARY, data[at : at + PIECE]) for at in range(0, len(data), PIECE))


def encode_end(end: End) -> bytes:
    return encode(CLOSE, end.code.to_bytes(2, "big") + end.text.encode()[: MAX_CONTROL - 2])
