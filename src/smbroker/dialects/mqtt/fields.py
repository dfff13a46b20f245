"""What MQTT packets are made of: numbers, strings, binary data, and MQTT 5's properties.

number     1, 2 or 4 bytes, big-endian
length     1 to 4 bytes, seven bits each, least first; the top bit says that more follow
string     2 bytes of length, UTF-8 without NUL
binary     2 bytes of length, any bytes
properties length · (identifier · value) …     each at most once, but user properties
"""

from typing import Any, Final, TypeAlias

from smbroker.dialects.mqtt.reasons import MALFORMED, PROTOCOL_ERROR, QUOTA_EXCEEDED, Malformed

MAX_LENGTH: Final = 268_435_455  # what four bytes of length can say
MAX_PROPERTIES: Final = 1_000  # in one packet: they become objects

Properties: TypeAlias = dict[int, Any]
"""By identifier. User properties are a list of pairs of strings, subscription identifiers a list of numbers."""

# Kinds of packets, as in the first four bits.
CONNECT, CONNACK, PUBLISH, PUBACK, PUBREC, PUBREL, PUBCOMP, SUBSCRIBE = range(1, 9)
SUBACK, UNSUBSCRIBE, UNSUBACK, PINGREQ, PINGRESP, DISCONNECT, AUTH = range(9, 16)
WILL: Final = 0  # not a packet: the properties of a will

PAYLOAD_FORMAT: Final = 1
MESSAGE_EXPIRY: Final = 2
CONTENT_TYPE: Final = 3
RESPONSE_TOPIC: Final = 8
CORRELATION_DATA: Final = 9
SUBSCRIPTION_ID: Final = 11
SESSION_EXPIRY: Final = 17
ASSIGNED_CLIENT_ID: Final = 18
SERVER_KEEP_ALIVE: Final = 19
AUTHENTICATION_METHOD: Final = 21
AUTHENTICATION_DATA: Final = 22
REQUEST_PROBLEM: Final = 23
WILL_DELAY: Final = 24
REQUEST_RESPONSE: Final = 25
RESPONSE_INFORMATION: Final = 26
SERVER_REFERENCE: Final = 28
REASON_STRING: Final = 31
RECEIVE_MAXIMUM: Final = 33
TOPIC_ALIAS_MAXIMUM: Final = 34
TOPIC_ALIAS: Final = 35
MAXIMUM_QOS: Final = 36
RETAIN_AVAILABLE: Final = 37
USER: Final = 38
MAXIMUM_PACKET_SIZE: Final = 39
WILDCARD_AVAILABLE: Final = 40
SUBSCRIPTION_ID_AVAILABLE: Final = 41
SHARED_AVAILABLE: Final = 42

_ACKS = (PUBACK, PUBREC, PUBREL, PUBCOMP)
_EVERY_REASON = (CONNACK, *_ACKS, SUBACK, UNSUBACK, DISCONNECT, AUTH)

# Identifier: the value's form, and the packets that may have it.
TABLE: Final[dict[int, tuple[str, tuple[int, ...]]]] = {
    PAYLOAD_FORMAT: ("flag", (PUBLISH, WILL)),
    MESSAGE_EXPIRY: ("four", (PUBLISH, WILL)),
    CONTENT_TYPE: ("string", (PUBLISH, WILL)),
    RESPONSE_TOPIC: ("string", (PUBLISH, WILL)),
    CORRELATION_DATA: ("binary", (PUBLISH, WILL)),
    SUBSCRIPTION_ID: ("length", (PUBLISH, SUBSCRIBE)),
    SESSION_EXPIRY: ("four", (CONNECT, CONNACK, DISCONNECT)),
    ASSIGNED_CLIENT_ID: ("string", (CONNACK,)),
    SERVER_KEEP_ALIVE: ("two", (CONNACK,)),
    AUTHENTICATION_METHOD: ("string", (CONNECT, CONNACK, AUTH)),
    AUTHENTICATION_DATA: ("binary", (CONNECT, CONNACK, AUTH)),
    REQUEST_PROBLEM: ("flag", (CONNECT,)),
    WILL_DELAY: ("four", (WILL,)),
    REQUEST_RESPONSE: ("flag", (CONNECT,)),
    RESPONSE_INFORMATION: ("string", (CONNACK,)),
    SERVER_REFERENCE: ("string", (CONNACK, DISCONNECT)),
    REASON_STRING: ("string", _EVERY_REASON),
    RECEIVE_MAXIMUM: ("two", (CONNECT, CONNACK)),
    TOPIC_ALIAS_MAXIMUM: ("two", (CONNECT, CONNACK)),
    TOPIC_ALIAS: ("two", (PUBLISH,)),
    MAXIMUM_QOS: ("flag", (CONNACK,)),
    RETAIN_AVAILABLE: ("flag", (CONNACK,)),
    USER: ("pair", (CONNECT, PUBLISH, WILL, SUBSCRIBE, UNSUBSCRIBE, *_EVERY_REASON)),
    MAXIMUM_PACKET_SIZE: ("four", (CONNECT, CONNACK)),
    WILDCARD_AVAILABLE: ("flag", (CONNACK,)),
    SUBSCRIPTION_ID_AVAILABLE: ("flag", (CONNACK,)),
    SHARED_AVAILABLE: ("flag", (CONNACK,)),
}
# "It is a Protocol Error to include … a value of 0" (3.1.2.11.3, 3.1.2.11.4, 3.8.2.1.2); an alias has its own reason.
_NOT_ZERO = {RECEIVE_MAXIMUM, MAXIMUM_PACKET_SIZE, SUBSCRIPTION_ID}


def malformed(text: str) -> Malformed:
    return Malformed("mqtt_malformed", text, MALFORMED)


def protocol_error(text: str) -> Malformed:
    return Malformed("mqtt_protocol", text, PROTOCOL_ERROR)


def checked_text(raw: bytes) -> bytes:
    """UTF-8 without NUL; the decoder refuses surrogates."""
    if b"\0" in raw:
        raise malformed("a string holds a NUL")
    if not raw.isascii():
        try:
            raw.decode()
        except UnicodeDecodeError as error:
            raise malformed("a string is not UTF-8") from error
    return raw


class Fields:
    """The fields of one packet's body, taken one after the other."""

    __slots__ = ("_data", "_end", "_position")

    def __init__(self, data: bytes, position: int = 0, end: int | None = None) -> None:
        self._data = data
        self._position = position
        self._end = len(data) if end is None else end

    @property
    def left(self) -> int:
        return self._end - self._position

    def take(self, size: int) -> bytes:
        start = self._position
        if start + size > self._end:
            raise malformed("the packet ends within a field")
        self._position = start + size
        return self._data[start : start + size]

    def rest(self) -> bytes:
        return self.take(self.left)

    def number(self, size: int) -> int:
        return int.from_bytes(self.take(size), "big")

    def length(self) -> int:
        value = 0
        for shift in (0, 7, 14, 21):
            byte = self.number(1)
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                if shift and not byte:
                    raise malformed("a length has more bytes than it needs")
                return value
        raise malformed("a length has more than four bytes")

    def binary(self) -> bytes:
        return self.take(self.number(2))

    def text(self) -> bytes:
        return checked_text(self.binary())

    def string(self) -> str:
        return self.text().decode()

    def properties(self, kind: int) -> Properties:
        size = self.length()
        if size > self.left:
            raise malformed("the properties are longer than the packet")
        inner = Fields(self._data, self._position, self._position + size)
        self._position += size
        found: Properties = {}
        count = 0
        while inner.left:
            count += 1
            if count > MAX_PROPERTIES:
                raise Malformed("mqtt_too_many_properties", f"more than {MAX_PROPERTIES} properties", QUOTA_EXCEEDED)
            inner.property(kind, found)
        return found

    def property(self, kind: int, found: Properties) -> None:
        identifier = self.length()
        form, allowed = TABLE.get(identifier, ("", ()))
        if kind not in allowed:
            raise malformed(f"property {identifier} does not belong to this packet")
        value = READ[form](self)
        if identifier in _NOT_ZERO and not value:
            raise protocol_error(f"property {identifier} is 0")
        if identifier == USER or (identifier == SUBSCRIPTION_ID and kind == PUBLISH):
            found.setdefault(identifier, []).append(value)
        elif identifier in found:
            raise protocol_error(f"property {identifier} is there twice")
        else:
            found[identifier] = value

    def flag(self) -> int:
        value = self.number(1)
        if value > 1:
            raise protocol_error("a property that is 0 or 1 has another value")
        return value

    def pair(self) -> tuple[str, str]:
        return self.string(), self.string()

    def finish(self) -> None:
        if self.left:
            raise malformed("the packet is longer than its fields")


READ: Final[dict[str, Any]] = {
    "flag": Fields.flag,
    "two": lambda fields: fields.number(2),
    "four": lambda fields: fields.number(4),
    "length": Fields.length,
    "string": Fields.string,
    "binary": Fields.binary,
    "pair": Fields.pair,
}


def encode_length(value: int) -> bytes:
    if value < 0x80:
        return bytes((value,))
    out = bytearray()
    while True:
        value, low = value >> 7, value & 0x7F
        out.append(low | 0x80 if value else low)
        if not value:
            return bytes(out)


def encode_binary(raw: bytes) -> bytes:
    return len(raw).to_bytes(2, "big") + raw


def encode_string(text: str) -> bytes:
    return encode_binary(text.encode())


WRITE: Final[dict[str, Any]] = {
    "flag": lambda value: bytes((value,)),
    "two": lambda value: value.to_bytes(2, "big"),
    "four": lambda value: value.to_bytes(4, "big"),
    "length": encode_length,
    "string": encode_string,
    "binary": encode_binary,
    "pair": lambda value: encode_string(value[0]) + encode_string(value[1]),
}


def encode_properties(properties: Properties) -> bytes:
    """With their length before them."""
    if not properties:
        return b"\0"
    parts = []
    for identifier, value in properties.items():
        write = WRITE[TABLE[identifier][0]]
        for one in value if isinstance(value, list) else (value,):
            parts.append(bytes((identifier,)) + write(one))
    body = b"".join(parts)
    return encode_length(len(body)) + body
