"""What a client says to a message that is on its way: PUBACK, PUBREC, PUBREL, PUBCOMP.

    QoS 1 to the client     PUBLISH ─►  ◄─ PUBACK
    QoS 2 to the client     PUBLISH ─►  ◄─ PUBREC   PUBREL ─►  ◄─ PUBCOMP
    QoS 2 from the client   ◄─ PUBLISH  PUBREC ─►   ◄─ PUBREL  PUBCOMP ─►

The session knows what is in flight; the steps of QoS 2 that must survive a crash are notes in the log (`keeping`).
"""

from collections.abc import Callable
from typing import TYPE_CHECKING

from smbroker.dialects.mqtt import Acks, Malformed
from smbroker.dialects.mqtt import fields as f
from smbroker.dialects.mqtt.packets import Ack
from smbroker.dialects.mqtt.reasons import PACKET_ID_NOT_FOUND, PROTOCOL_ERROR
from smbroker.server.mqtt.keeping import note_of
from smbroker.server.mqtt.session import MqttSession

if TYPE_CHECKING:
    from smbroker.server.mqtt.connection import MqttConnection


def acks(connection: "MqttConnection", some: Acks) -> None:
    """PUBACKs that came together."""
    session = connection.session
    assert session
    session.acknowledged(some.numbers)


def ack(connection: "MqttConnection", packet: Ack) -> None:
    session = connection.session
    assert session
    ACKS[packet.kind](connection, session, packet)


def _puback(_connection: "MqttConnection", session: MqttSession, packet: Ack) -> None:
    session.acknowledged((packet.packet_id,))


def _pubrec(connection: "MqttConnection", session: MqttSession, packet: Ack) -> None:
    number = packet.packet_id
    if packet.reason >= 0x80:
        session.acknowledged((number,), 2)
        return
    flight = session.received(number)
    reason = PACKET_ID_NOT_FOUND if flight is None and connection.version == 5 else 0
    release = Ack(f.PUBREL, number, reason).encode(connection.version)
    note = note_of(session, b">", flight.item.offset) if flight and flight.item.offset >= 0 else None
    if note:
        connection.turn.acknowledge(connection, release, note)
    else:
        connection.turn.delivery.put(connection, release)


def _pubrel(connection: "MqttConnection", session: MqttSession, packet: Ack) -> None:
    number = packet.packet_id
    if number not in session.inbound:
        reason = PACKET_ID_NOT_FOUND if connection.version == 5 else 0
        connection.turn.acknowledge(connection, Ack(f.PUBCOMP, number, reason).encode(connection.version))
        return
    session.inbound.discard(number)
    session.changed = True
    note = note_of(session, b"-", number)
    connection.turn.acknowledge(connection, Ack(f.PUBCOMP, number).encode(connection.version), note)


def _pubcomp(_connection: "MqttConnection", session: MqttSession, packet: Ack) -> None:
    flight = session.inflight.get(packet.packet_id)
    if flight and not flight.received:  # "unacknowledged until it has received … PUBREC" [MQTT-4.3.3-4]
        raise Malformed("mqtt_protocol", "PUBCOMP before PUBREC", PROTOCOL_ERROR)
    session.acknowledged((packet.packet_id,), 2)


ACKS: dict[int, Callable[["MqttConnection", MqttSession, Ack], None]] = {
    f.PUBACK: _puback,
    f.PUBREC: _pubrec,
    f.PUBREL: _pubrel,
    f.PUBCOMP: _pubcomp,
}
