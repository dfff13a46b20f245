"""MQTT's packets as objects, all but runs of plain publishes (see `stream`), and their bytes in both directions.

`decode(first, body, version)` reads any packet of either side; each class has `encode(version)`.
A packet that breaks a rule of the standard which its bytes alone can show raises Malformed.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from smbroker.dialects.mqtt import fields as f
from smbroker.dialects.mqtt.fields import (
    Fields,
    Properties,
    encode_binary,
    encode_length,
    encode_properties,
    encode_string,
    malformed,
    protocol_error,
)
from smbroker.dialects.mqtt.reasons import (
    CLIENT_ID_NOT_VALID,
    PAYLOAD_FORMAT_INVALID,
    TOPIC_ALIAS_INVALID,
    TOPIC_NAME_INVALID,
    UNSUPPORTED_VERSION,
    Malformed,
)

NAMES: Final = {3: b"MQIsdp", 4: b"MQTT", 5: b"MQTT"}  # protocol level: protocol name
NONE: Final[Properties] = {}


def framed(first: int, body: bytes) -> bytes:
    return bytes((first,)) + encode_length(len(body)) + body


@dataclass(slots=True)
class Will:
    topic: bytes
    payload: bytes
    qos: int = 0
    retain: bool = False
    properties: Properties = field(default_factory=dict)


@dataclass(slots=True)
class Connect:
    version: int
    client: str = ""
    clean: bool = True
    keep_alive: int = 0
    will: Will | None = None
    user: str | None = None
    password: bytes | None = field(default=None, repr=False)
    properties: Properties = field(default_factory=dict)

    def encode(self, _version: int = 0) -> bytes:
        will = self.will
        flags = self.clean << 1 | (self.user is not None) << 7 | (self.password is not None) << 6
        if will:
            flags |= 4 | will.qos << 3 | will.retain << 5
        body = encode_binary(NAMES[self.version]) + bytes((self.version, flags)) + self.keep_alive.to_bytes(2, "big")
        if self.version == 5:
            body += encode_properties(self.properties)
        body += encode_string(self.client)
        if will:
            body += encode_properties(will.properties) if self.version == 5 else b""
            body += encode_binary(will.topic) + encode_binary(will.payload)
        body += encode_string(self.user) if self.user is not None else b""
        body += encode_binary(self.password) if self.password is not None else b""
        return framed(f.CONNECT << 4, body)


@dataclass(slots=True)
class Connack:
    present: bool = False
    code: int = 0  # MQTT 5: a reason; before: a return code
    properties: Properties = field(default_factory=dict)

    def encode(self, version: int) -> bytes:
        body = bytes((self.present, self.code))
        return framed(f.CONNACK << 4, body + encode_properties(self.properties) if version == 5 else body)


@dataclass(slots=True)
class Publish:
    topic: bytes
    payload: bytes = b""
    qos: int = 0
    retain: bool = False
    dup: bool = False
    packet_id: int = 0
    properties: Properties = field(default_factory=dict)

    def encode(self, version: int) -> bytes:
        first = f.PUBLISH << 4 | self.dup << 3 | self.qos << 1 | self.retain
        number = self.packet_id.to_bytes(2, "big") if self.qos else b""
        properties = encode_properties(self.properties) if version == 5 else b""
        return framed(first, b"".join((encode_binary(self.topic), number, properties, self.payload)))


@dataclass(slots=True)
class Ack:
    """PUBACK, PUBREC, PUBREL or PUBCOMP."""

    kind: int
    packet_id: int
    reason: int = 0
    properties: Properties = field(default_factory=dict)

    def encode(self, version: int) -> bytes:
        body = self.packet_id.to_bytes(2, "big")
        if version == 5 and (self.reason or self.properties):
            body += bytes((self.reason,))
            body += encode_properties(self.properties) if self.properties else b""
        return framed(self.kind << 4 | (2 if self.kind == f.PUBREL else 0), body)


@dataclass(slots=True)
class Topics:
    """One entry of a SUBSCRIBE: the filter and its options byte."""

    filter: bytes
    qos: int = 0
    no_local: bool = False
    as_published: bool = False
    handling: int = 0  # retained messages: 0 always, 1 if the subscription is new, 2 never


@dataclass(slots=True)
class Subscribe:
    packet_id: int
    topics: list[Topics]
    properties: Properties = field(default_factory=dict)

    def encode(self, version: int) -> bytes:
        body = self.packet_id.to_bytes(2, "big") + (encode_properties(self.properties) if version == 5 else b"")
        for one in self.topics:
            options = one.qos | one.no_local << 2 | one.as_published << 3 | one.handling << 4
            body += encode_binary(one.filter) + bytes((options,))
        return framed(f.SUBSCRIBE << 4 | 2, body)


@dataclass(slots=True)
class Unsubscribe:
    packet_id: int
    filters: list[bytes]
    properties: Properties = field(default_factory=dict)

    def encode(self, version: int) -> bytes:
        body = self.packet_id.to_bytes(2, "big") + (encode_properties(self.properties) if version == 5 else b"")
        return framed(f.UNSUBSCRIBE << 4 | 2, body + b"".join(map(encode_binary, self.filters)))


@dataclass(slots=True)
class Results:
    """SUBACK or UNSUBACK."""

    kind: int
    packet_id: int
    codes: list[int]
    properties: Properties = field(default_factory=dict)

    def encode(self, version: int) -> bytes:
        body = self.packet_id.to_bytes(2, "big")
        if version == 5:
            body += encode_properties(self.properties)
        if version == 5 or self.kind == f.SUBACK:
            body += bytes(self.codes)
        return framed(self.kind << 4, body)


@dataclass(slots=True)
class Ping:
    """PINGREQ or PINGRESP."""

    kind: int = f.PINGREQ

    def encode(self, _version: int = 0) -> bytes:
        return framed(self.kind << 4, b"")


@dataclass(slots=True)
class Disconnect:
    reason: int = 0
    properties: Properties = field(default_factory=dict)

    def encode(self, version: int) -> bytes:
        body = b""
        if version == 5 and (self.reason or self.properties):
            body = bytes((self.reason,)) + (encode_properties(self.properties) if self.properties else b"")
        return framed(f.DISCONNECT << 4, body)


@dataclass(slots=True)
class Auth:
    reason: int = 0
    properties: Properties = field(default_factory=dict)

    def encode(self, _version: int = 5) -> bytes:
        return framed(f.AUTH << 4, bytes((self.reason,)) + encode_properties(self.properties))


Packet: TypeAlias = Connect | Connack | Publish | Ack | Subscribe | Unsubscribe | Results | Ping | Disconnect | Auth


def decode(first: int, body: bytes, version: int) -> Packet:
    """The packet whose first byte and body these are. `version` counts for all but CONNECT, which tells it."""
    kind, flags = first >> 4, first & 15
    if kind == f.PUBLISH:
        return _publish(flags, Fields(body), version)
    if kind == 0:
        raise protocol_error("packets of type 0 are forbidden")
    # "Where a flag bit is marked as Reserved … it MUST be set to the value listed" (2.1.3)
    wanted = 2 if kind in (f.PUBREL, f.SUBSCRIBE, f.UNSUBSCRIBE) else 0
    if version == 3 and wanted:
        flags &= ~8  # in 3.1 these may be sent again, with DUP
    if flags != wanted:
        raise malformed("reserved flags of the first byte are wrong")
    if kind == f.AUTH and version != 5:
        raise malformed(f"there is no packet of type {kind}")
    source = Fields(body)
    packet = DECODE[kind](kind, source, version)
    source.finish()
    return packet


def checked_name(raw: bytes) -> bytes:
    """A topic to publish to: no wildcards, not empty."""
    checked = f.checked_text(raw)
    if not checked:
        raise Malformed("mqtt_topic_empty", "the topic is empty", TOPIC_NAME_INVALID)
    if b"+" in checked or b"#" in checked:
        raise Malformed("mqtt_topic_wildcard", "the topic of a message has a wildcard", TOPIC_NAME_INVALID)
    return checked


def _publish(flags: int, source: Fields, version: int) -> Publish:
    qos = flags >> 1 & 3
    if qos == 3:
        raise malformed("QoS 3")
    if flags & 8 and not qos:
        raise malformed("DUP with QoS 0")
    raw = source.binary()
    packet_id = _packet_id(source) if qos else 0
    properties = source.properties(f.PUBLISH) if version == 5 else {}
    if properties.get(f.TOPIC_ALIAS) == 0:
        raise Malformed("mqtt_alias", "a topic alias of 0", TOPIC_ALIAS_INVALID)
    if raw or f.TOPIC_ALIAS not in properties:
        if not raw and version == 5:
            raise protocol_error("neither a topic nor a topic alias")
        checked_name(raw)
    payload = source.rest()
    if properties:
        _check_properties(properties, payload)
    return Publish(raw, payload, qos, bool(flags & 1), bool(flags & 8), packet_id, properties)


def _check_properties(properties: Properties, payload: bytes) -> None:
    """Of a message or a will."""
    response = properties.get(f.RESPONSE_TOPIC)
    if response is not None and (not response or "+" in response or "#" in response):
        raise protocol_error("the response topic is empty or has a wildcard")
    if properties.get(f.PAYLOAD_FORMAT) != 1:
        return
    try:
        payload.decode()
    except UnicodeDecodeError as error:
        raise Malformed(
            "mqtt_payload_format", "the payload is said to be UTF-8 and is not", PAYLOAD_FORMAT_INVALID
        ) from error


def _packet_id(source: Fields) -> int:
    number = source.number(2)
    if not number:
        raise protocol_error("a packet identifier of 0")
    return number


def _connect(_kind: int, source: Fields, _version: int) -> Connect:
    name, version = source.binary(), source.number(1)
    if name not in NAMES.values():
        raise malformed("the protocol is not called MQTT")
    if NAMES.get(version) != name:
        raise Malformed("mqtt_version", f"MQTT protocol level {version} is not known", UNSUPPORTED_VERSION)
    try:
        packet = _connect_body(source, version)
        source.finish()
    except Malformed as error:
        error.version = version
        raise
    return packet


def _connect_body(source: Fields, version: int) -> Connect:
    flags = source.number(1)
    if flags & 1 and version > 3:  # 3.1 does not use that bit
        raise malformed("the reserved flag of CONNECT is set")
    will_qos, has_will = flags >> 3 & 3, bool(flags & 4)
    if will_qos == 3 or (not has_will and flags & 0x38):
        raise malformed("the will flags of CONNECT make no sense")
    if version < 5 and flags & 0xC0 == 0x40:
        raise malformed("a password without a user name")
    packet = Connect(version, clean=bool(flags & 2), keep_alive=source.number(2))
    if version == 5:
        packet.properties = source.properties(f.CONNECT)
        if f.AUTHENTICATION_DATA in packet.properties and f.AUTHENTICATION_METHOD not in packet.properties:
            raise protocol_error("authentication data without a method")
    packet.client = _client_id(source.binary())
    if has_will:
        properties = source.properties(f.WILL) if version == 5 else {}
        topic = checked_name(source.binary())
        packet.will = Will(topic, source.binary(), will_qos, bool(flags & 0x20), properties)
        _check_properties(properties, packet.will.payload)
    packet.user = source.string() if flags & 0x80 else None
    packet.password = source.binary() if flags & 0x40 else None
    return packet


def _client_id(raw: bytes) -> str:
    """ "The ClientID MUST be a UTF-8 Encoded String" [MQTT-3.1.3-4], and a bad one has its own reason."""
    try:
        return f.checked_text(raw).decode()
    except Malformed as error:
        raise Malformed(error.code, error.text, CLIENT_ID_NOT_VALID) from error


def _connack(_kind: int, source: Fields, version: int) -> Connack:
    flags = source.number(1)
    if flags > 1:
        raise malformed("reserved flags of CONNACK are set")
    code = source.number(1)
    return Connack(bool(flags), code, source.properties(f.CONNACK) if version == 5 else {})


_ACK_REASONS = {0x00, 0x10, 0x80, 0x83, 0x87, 0x90, 0x91, 0x97, 0x99}
REASONS: Final[dict[int, set[int]]] = {
    f.PUBACK: _ACK_REASONS,
    f.PUBREC: _ACK_REASONS,
    f.PUBREL: {0x00, 0x92},
    f.PUBCOMP: {0x00, 0x92},
    f.DISCONNECT: {0x00, 0x04, *range(0x80, 0x84), 0x87, 0x89, *range(0x8B, 0x8F), 0x8F, 0x90, *range(0x93, 0xA3)},
    f.AUTH: {0x00, 0x18, 0x19},
}


def _reason(kind: int, source: Fields, version: int) -> tuple[int, Properties]:
    """The reason and properties at the end of a packet; either may be left out."""
    if version != 5 or not source.left:
        return 0, {}
    reason = source.number(1)
    if reason not in REASONS[kind]:
        raise protocol_error(f"reason {reason} does not belong to this packet")
    return reason, source.properties(kind) if source.left else {}


def _ack(kind: int, source: Fields, version: int) -> Ack:
    return Ack(kind, _packet_id(source), *_reason(kind, source, version))


def _subscribe(_kind: int, source: Fields, version: int) -> Subscribe:
    packet_id = _packet_id(source)
    packet = Subscribe(packet_id, [], source.properties(f.SUBSCRIBE) if version == 5 else {})
    while source.left:
        pattern, options = _filter(source), source.number(1)
        qos, handling = options & 3, options >> 4 & 3
        # "MUST treat a SUBSCRIBE packet as malformed if any of Reserved bits … are non-zero" [MQTT-3.8.3-5]
        if options & (0xC0 if version == 5 else 0xFC):
            raise malformed("reserved bits of the subscription options are set")
        if qos == 3 or handling == 3:
            raise protocol_error("subscription options that do not exist")
        packet.topics.append(Topics(pattern, qos, bool(options & 4), bool(options & 8), handling))
    if not packet.topics:
        raise protocol_error("SUBSCRIBE without a topic filter")
    return packet


def _filter(source: Fields) -> bytes:
    """ "All Topic Names and Topic Filters MUST be at least one character long" [MQTT-4.7.3-1]"""
    pattern = source.text()
    if not pattern:
        raise malformed("an empty topic filter")
    return pattern


def _unsubscribe(_kind: int, source: Fields, version: int) -> Unsubscribe:
    packet_id = _packet_id(source)
    packet = Unsubscribe(packet_id, [], source.properties(f.UNSUBSCRIBE) if version == 5 else {})
    while source.left:
        packet.filters.append(_filter(source))
    if not packet.filters:
        raise protocol_error("UNSUBSCRIBE without a topic filter")
    return packet


def _results(kind: int, source: Fields, version: int) -> Results:
    packet_id = _packet_id(source)
    properties = source.properties(kind) if version == 5 else {}
    return Results(kind, packet_id, list(source.rest()), properties)


def _ping(kind: int, _source: Fields, _version: int) -> Ping:
    return Ping(kind)


def _disconnect(kind: int, source: Fields, version: int) -> Disconnect:
    return Disconnect(*_reason(kind, source, version))


def _auth(kind: int, source: Fields, version: int) -> Auth:
    return Auth(*_reason(kind, source, version))


DECODE: Final[dict[int, Callable[[int, Fields, int], Packet]]] = {
    f.CONNECT: _connect,
    f.CONNACK: _connack,
    **dict.fromkeys((f.PUBACK, f.PUBREC, f.PUBREL, f.PUBCOMP), _ack),
    f.SUBSCRIBE: _subscribe,
    f.SUBACK: _results,
    f.UNSUBSCRIBE: _unsubscribe,
    f.UNSUBACK: _results,
    f.PINGREQ: _ping,
    f.PINGRESP: _ping,
    f.DISCONNECT: _disconnect,
    f.AUTH: _auth,
}
