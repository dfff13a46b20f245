"""The bytes of a PUBLISH to an MQTT client.

    first byte │ length │ topic │ identifier (QoS 1, 2) │ properties (MQTT 5) │ payload
    └────────── head ──────────┘

Most messages have no properties and differ in identifier and payload alone: their heads are remembered, for all
sessions together. The others are put together one at a time.
"""

import time
from typing import TYPE_CHECKING

from smbroker.dialects import mqtt
from smbroker.dialects.mqtt import fields as f
from smbroker.dialects.mqtt.fields import encode_binary, encode_length, encode_properties
from smbroker.dialects.mqtt.stream import HIGH, LOW
from smbroker.model.message import Columns, Wire
from smbroker.model.topic import Topic
from smbroker.server.mqtt.items import Item

if TYPE_CHECKING:
    from smbroker.server.mqtt.session import MqttSession

MAX_HEADS = 1_000  # heads that are remembered, and the longest topic in them
MAX_ALIASES = 1_000  # topics that get an alias for one client, at most
NO_PROPERTIES = {3: b"", 4: b"", 5: b"\0"}  # by version
PUBLISH_1 = f.PUBLISH << 4 | 1 << 1  # the first byte with QoS 1


def frame_of(session: "MqttSession", item: Item, number: int) -> bytes | None:
    """The PUBLISH, or None if it cannot or need not be sent any more."""
    first = f.PUBLISH << 4 | item.dup << 3 | item.qos << 1 | item.retain
    if not (item.extra.properties or item.identifiers or session.alias_maximum) and session.max_packet == f.MAX_LENGTH:
        head = head_of(session, item.topic, len(item.payload), first)
        if head:
            none = NO_PROPERTIES[session.version]
            return b"".join((head, number.to_bytes(2, "big") if number else b"", none, item.payload))
    return _full_frame(session, item, number, first)


def head_of(session: "MqttSession", topic: Topic, size: int, first: int) -> bytes:
    """The head of such messages; nothing if it is better not to remember it."""
    heads, version = session.mqtt.heads, session.version
    key = (topic, size, first, version)
    head = heads.get(key)
    if head:
        return head
    length = 2 + len(topic) + (2 if first & 6 else 0) + (version == 5) + size
    if b"+" in topic or b"#" in topic or length > f.MAX_LENGTH or len(topic) > MAX_HEADS:
        return b""
    if len(heads) >= MAX_HEADS:
        heads.clear()
    head = heads[key] = bytes((first,)) + encode_length(length) + encode_binary(topic)
    return head


def row_of(session: "MqttSession", columns: Columns, start: int, end: int, wire: Wire | None, number: int) -> bytes:
    """PUBLISHes of QoS 1 and one topic that have no properties, with identifiers from `number` on; nothing if that
    cannot be. Those that came as packets (`wire`) differ in their identifiers alone."""
    count, none = end - start, NO_PROPERTIES[session.version]
    if wire and (wire.version == 5) == (session.version == 5):
        length = wire.length
        packets = bytearray(wire.packets[(start - wire.first) * length : (end - wire.first) * length])
        at = length - wire.size - len(none) - 2
        packets[at::length] = HIGH[number : number + count]
        packets[at + 1 :: length] = LOW[number : number + count]
        return bytes(packets)
    payloads = columns.payloads[start:end]
    heads = {size: head_of(session, columns.topics[start], size, PUBLISH_1) for size in set(map(len, payloads))}
    if not all(heads.values()):
        return b""
    numbered = zip(range(number, number + count), payloads, strict=True)
    return b"".join([heads[len(payload)] + to.to_bytes(2, "big") + none + payload for to, payload in numbered])


def _full_frame(session: "MqttSession", item: Item, number: int, first: int) -> bytes | None:
    extra, topic = item.extra, item.topic
    properties: f.Properties = {}
    if extra.properties:
        now = time.time()
        when = mqtt.expires(extra.properties)
        if when is not None and when <= now:
            session.undeliverable("expired")
            return None
        if session.version == 5:
            properties = mqtt.to_properties(extra.properties, now)
    if b"+" in topic or b"#" in topic:
        session.undeliverable("topic_wildcard")
        return None
    name = topic
    if session.version == 5:
        if item.identifiers:
            properties[f.SUBSCRIPTION_ID] = list(item.identifiers)
        if session.alias_maximum:
            name = _aliased(session, topic, properties)
    parts = [
        encode_binary(name),
        number.to_bytes(2, "big") if number else b"",
        encode_properties(properties) if session.version == 5 else b"",
        item.payload,
    ]
    size = sum(map(len, parts))
    frame = b"".join((bytes((first,)), encode_length(min(size, f.MAX_LENGTH)), *parts))
    if len(frame) > session.max_packet or size > f.MAX_LENGTH:
        # "it MUST discard it without sending it" [MQTT-3.1.2-25]
        if name == topic and f.TOPIC_ALIAS in properties:  # it would have told the alias
            del session.aliases[topic]
        session.undeliverable("too_long")
        return None
    return frame


def _aliased(session: "MqttSession", topic: Topic, properties: f.Properties) -> bytes:
    """The topic's name, or nothing if the client knows its alias."""
    aliases = session.aliases
    alias = aliases.get(topic)
    if alias is not None:
        properties[f.TOPIC_ALIAS] = alias
        return b""
    if len(aliases) < min(session.alias_maximum, MAX_ALIASES):
        properties[f.TOPIC_ALIAS] = aliases[topic] = len(aliases) + 1
    return topic
