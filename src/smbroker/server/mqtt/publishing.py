"""What a client publishes: from its packets to the turn, and the acknowledgements that it gets.

    Run, Mixed    QoS 0 that came together, of one topic or of several; One: a read that is like the one before it
    Numbered      QoS 1 of one topic that came together
    Publish       any other, one at a time

A message is acknowledged when the log has it (`acknowledged`), or its client is told that it was not kept (`unkept`).
"""

import time
from itertools import compress
from operator import not_
from typing import TYPE_CHECKING

from smbroker.dialects import mqtt
from smbroker.dialects.mqtt import Malformed, Mixed, Numbered, One, Run
from smbroker.dialects.mqtt import fields as f
from smbroker.dialects.mqtt.packets import Ack, Publish
from smbroker.dialects.mqtt.reasons import (
    IMPLEMENTATION,
    NOT_AUTHORIZED,
    PACKET_TOO_LARGE,
    PROTOCOL_ERROR,
    RECEIVE_MAXIMUM_EXCEEDED,
    TOPIC_ALIAS_INVALID,
)
from smbroker.model.errors import Refused
from smbroker.model.message import Extra, Kind
from smbroker.model.topic import Topic
from smbroker.server.console import printable
from smbroker.server.lane import Lane
from smbroker.server.mqtt.keeping import note_of
from smbroker.server.mqtt.session import ACKNOWLEDGED, FRAMINGS, MqttSession

if TYPE_CHECKING:
    from smbroker.server.mqtt.connection import MqttConnection

PLAIN_EXTRAS = {(qos, retain): Extra(qos, retain) for qos in range(3) for retain in (False, True)}
PLAIN_EXTRAS[1, False] = ACKNOWLEDGED
PUBACK = f.PUBACK << 4
PUBREC = f.PUBREC << 4
DOLLAR = ord("$")

# --- who may ---


def may_publish(connection: "MqttConnection", topic: Topic) -> bool:
    grant = connection.grant
    return topic[:1] != b"$" and (not grant.limited or grant.publishes[topic])


def _refused(connection: "MqttConnection", topic: Topic, messages: int) -> None:
    code = "topic_reserved" if topic.startswith(b"$") else "not_allowed"
    connection.turn.stats.dropped[code] += messages
    text = f"mqtt {connection.origin.source}: not allowed to publish to {printable(topic, 100)}"
    connection.turn.console.warn(code, text)


# --- many at once ---


def run(connection: "MqttConnection", some: Run) -> None:
    if not may_publish(connection, some.topic):
        _refused(connection, some.topic, some.count)
        return
    if some.size > connection.shared.config.max_payload:
        raise Malformed("payload_too_long", "a payload longer than max_payload", PACKET_TOO_LARGE)
    version = 5 if some.version == 5 else 4
    connection.published = some.topic
    connection.turn.publish_run(connection, some.topic, version, some.wire, some.count, some.size)


def lane(connection: "MqttConnection", one: One) -> Lane | None:
    """For reads that are one plain publish like the last one, most that small devices send."""
    if not may_publish(connection, one.topic):
        return None
    return connection.turn.lanes.new(connection, one.topic, FRAMINGS[one.version], one.beginning, one.size)


def publish_again(connection: "MqttConnection", one: One, data: bytes) -> None:
    """Such a read, if there is no lane for it."""
    if may_publish(connection, one.topic):
        connection.published = one.topic
        connection.turn.publish_run(connection, one.topic, one.version, data, 1, one.size - len(one.beginning))
    else:
        _refused(connection, one.topic, 1)


def mixed(connection: "MqttConnection", some: Mixed) -> None:
    topics, payloads, grant = some.topics, some.payloads, connection.grant
    reserved = any(topic[0] == DOLLAR for topic in topics)
    if reserved or (grant.limited and not all(map(grant.publishes.__getitem__, topics))):
        allowed = [may_publish(connection, topic) for topic in topics]
        for topic in compress(topics, map(not_, allowed)):
            _refused(connection, topic, 1)
        topics, payloads = list(compress(topics, allowed)), list(compress(payloads, allowed))
    if max(map(len, payloads), default=0) > connection.shared.config.max_payload:
        raise Malformed("payload_too_long", "a payload longer than max_payload", PACKET_TOO_LARGE)
    if topics:
        connection.published = topics[-1]
    connection.turn.publish_mixed(connection, topics, payloads)


def numbered(connection: "MqttConnection", some: Numbered) -> None:
    if not may_publish(connection, some.topic):
        for number, payload in zip(some.numbers, some.payloads, strict=True):
            publish(connection, Publish(some.topic, payload, 1, packet_id=number))
        return
    session = connection.session
    assert session
    connection.under_way += len(some.numbers)
    if connection.version == 5 and connection.under_way + len(session.inbound) > connection.mqtt.config.receive_maximum:
        _exceeds(connection, session, 0)
    connection.published = some.topic
    try:
        connection.turn.publish_run(
            connection,
            some.topic,
            5 if some.version == 5 else 4,
            some.wire,
            len(some.numbers),
            some.size,
            ACKNOWLEDGED,
            some.acks,
        )
    except Refused as error:
        _not_taken(connection, some.acks, error)


# --- one ---


def publish(connection: "MqttConnection", packet: Publish) -> None:
    topic = _resolved(connection, packet)
    qos, number, version = packet.qos, packet.packet_id, connection.version
    session = connection.session
    assert session
    if qos and connection.under_way + len(session.inbound) >= connection.mqtt.config.receive_maximum:
        _exceeds(connection, session, number)
    ack = b"" if not qos else Ack(f.PUBACK if qos == 1 else f.PUBREC, number).encode(version)
    if qos == 2 and number in session.inbound:  # "MUST NOT cause duplicate messages" [MQTT-4.3.3-10]
        connection.turn.acknowledge(connection, ack)
        return
    if not may_publish(connection, topic):
        _refused(connection, topic, 1)
        if qos:
            reason = NOT_AUTHORIZED if version == 5 else 0
            connection.say(Ack(f.PUBACK if qos == 1 else f.PUBREC, number, reason))
        return
    key = (qos, packet.retain)
    properties = packet.properties
    extra = Extra(*key, mqtt.to_pairs(properties, time.time())) if properties else PLAIN_EXTRAS[key]
    note = None
    if qos == 2:
        session.inbound.add(number)
        session.unsure.add(number)
        connection.unsure[number] = session
        session.changed = True
        note = note_of(session, b"+", number)
    connection.under_way += qos == 1
    connection.published = topic
    try:
        connection.turn.publish_with(connection, (topic, packet.payload, Kind.BYTES, ack), extra, note)
    except Refused as error:
        _not_taken(connection, ack, error)


def _resolved(connection: "MqttConnection", packet: Publish) -> Topic:
    """The topic, from its alias if there is one."""
    alias = packet.properties.pop(f.TOPIC_ALIAS, None)
    if f.SUBSCRIPTION_ID in packet.properties:  # "sent from a Client … MUST NOT contain" [MQTT-3.3.4-6]
        raise Malformed("mqtt_protocol", "a subscription identifier from a client", PROTOCOL_ERROR)
    if alias is None:
        return packet.topic
    if alias > connection.mqtt.config.topic_alias_maximum:
        raise Malformed("mqtt_alias", f"topic alias {alias} is above the maximum", TOPIC_ALIAS_INVALID)
    aliases = connection.aliases
    if packet.topic:
        aliases[alias] = packet.topic
    elif alias not in aliases:
        raise Malformed("mqtt_alias", f"topic alias {alias} is not known", PROTOCOL_ERROR)
    return aliases[alias]


def _exceeds(connection: "MqttConnection", session: MqttSession, number: int) -> None:
    """Reason 0x93 [MQTT-3.3.4-9]; older versions know no such limit, so there QoS 1 is not counted."""
    if connection.version != 5 and len(session.inbound) < connection.mqtt.config.receive_maximum:
        return
    if number in session.inbound:
        return
    raise Malformed("mqtt_receive_maximum", "more messages under way than allowed", RECEIVE_MAXIMUM_EXCEEDED)


# --- acknowledgements ---


def acknowledged(connection: "MqttConnection", ack: bytes) -> None:
    """What `ack` is for is on disk."""
    if ack[0] == PUBACK:
        connection.under_way -= len(ack) // 4
    elif ack[0] == PUBREC:
        _is_sure(connection, int.from_bytes(ack[2:4], "big"))


def _is_sure(connection: "MqttConnection", number: int) -> None:
    """A message with QoS 2 is on disk, or never will be."""
    session = connection.unsure.pop(number, None)
    if session:
        session.unsure.discard(number)
        session.changed = True
        if session.connection is None:
            connection.mqtt.changed(session)


def _not_taken(connection: "MqttConnection", ack: bytes, error: Refused) -> None:
    reply = unkept(connection, ack, error.text)
    if not ack or not reply:
        raise Malformed(error.code, error.text, IMPLEMENTATION) from error
    connection.turn.reject(connection, error)
    connection.turn.delivery.put(connection, reply)


def unkept(connection: "MqttConnection", ack: bytes, text: str) -> bytes:
    """MQTT 5 is told that the message was not kept; older versions are closed, so that it comes again."""
    kind = ack[0] >> 4 if ack else 0
    if kind not in (f.PUBACK, f.PUBREC):
        return b""
    numbers = [int.from_bytes(ack[at + 2 : at + 4], "big") for at in range(0, len(ack), 4)]
    if kind == f.PUBREC:  # if it comes again, it is as if for the first time
        (number,) = numbers
        if session := connection.unsure.get(number):
            session.inbound.discard(number)
        elif (session := connection.session) and number in session.inbound and number not in session.unsure:
            return ack  # the message is on disk, and was only sent again
    acknowledged(connection, ack)
    if connection.version != 5:
        return b""
    about = {f.REASON_STRING: text} if connection.explains else {}  # [MQTT-3.1.2-29]
    return b"".join(connection.fitting(Ack(kind, number, IMPLEMENTATION, about)) for number in numbers)
