"""CONNECT → CONNACK: who the client is, whether it may come, and which session is its.

    CONNECT ─► password (elsewhere, it takes long) ─► rights ─► session ─► on disk ─► CONNACK, what waits for it

What the client sends meanwhile waits (`hold`).
"""

from functools import partial
from typing import TYPE_CHECKING

from smbroker.dialects.mqtt import Malformed
from smbroker.dialects.mqtt import fields as f
from smbroker.dialects.mqtt.packets import Connack, Connect
from smbroker.dialects.mqtt.reasons import (
    BAD_AUTHENTICATION_METHOD,
    BAD_USER_OR_PASSWORD,
    CLIENT_ID_NOT_VALID,
    NOT_AUTHORIZED,
    PACKET_TOO_LARGE,
    RETURN_CODES,
    SERVER_BUSY,
    UNSUPPORTED_VERSION,
)
from smbroker.model.errors import Refused, SmbError
from smbroker.model.message import Dialect, Origin
from smbroker.model.rights import Identity
from smbroker.server.mqtt.publishing import may_publish
from smbroker.server.mqtt.session import MqttSession

if TYPE_CHECKING:
    from smbroker.server.mqtt.connection import MqttConnection

HEAD_ROOM = 65_535 + 4_096  # what a packet may have besides its payload: topic, properties


def connect(connection: "MqttConnection", packet: Connect) -> None:
    version = packet.version
    if packet.properties.get(f.AUTHENTICATION_METHOD) is not None:
        error = Refused("mqtt_refused", "no extended authentication here")
        _deny(connection, version, BAD_AUTHENTICATION_METHOD, error)
        return
    assigned = ""
    if not packet.client:
        if version == 3 or (version == 4 and not packet.clean):  # [MQTT-3.1.3-8]
            _deny(connection, version, CLIENT_ID_NOT_VALID, Refused("mqtt_refused", "an empty client id"))
            return
        packet.client = assigned = connection.mqtt.new_id()
    host, port = connection.origin.host, connection.origin.port
    connection.origin = Origin(Dialect.MQTT, host, port, packet.client)
    access, certified = connection.turn.access, connection.certified
    if access.on and packet.user is not None and (packet.password is not None or not certified):
        connection.hold()
        connection.stop_reading()
        connection.stop_timer()  # from here on it is the broker who takes long
        who = Identity(Dialect.MQTT, host, packet.user, packet.client)
        access.check(who, packet.password or b"", partial(_known, connection, packet, assigned))
        return
    connection.grant = access.grant(Dialect.MQTT, host, packet.client, certified)
    _admit(connection, packet, assigned)


def _known(connection: "MqttConnection", packet: Connect, assigned: str, outcome: Identity | Refused) -> None:
    """The password was checked: what came meanwhile is taken now."""
    later = connection.held_back()
    packet.password = None
    if connection.closing:
        return
    connection.resume_reading()
    if isinstance(outcome, Refused):
        reason = BAD_USER_OR_PASSWORD if outcome.code == "bad_password" else SERVER_BUSY
        _deny(connection, packet.version, reason, outcome)
    else:
        connection.grant = connection.turn.access.rights.grant(outcome)
        _admit(connection, packet, assigned)
        connection.handle(later)
    connection.turn.begin()


def _admit(connection: "MqttConnection", packet: Connect, assigned: str) -> None:
    version, will = packet.version, packet.will
    if connection.grant.nothing:
        _deny(connection, version, NOT_AUTHORIZED, Refused("not_allowed", "nothing is allowed"))
        return
    if will and not may_publish(connection, will.topic):
        error = Refused("not_allowed", "a will to a topic that is not allowed")
        _deny(connection, version, NOT_AUTHORIZED, error)
        return
    if will and len(will.payload) > connection.shared.config.max_payload:
        error = Refused("payload_too_long", "a will longer than max_payload")
        _deny(connection, version, PACKET_TOO_LARGE, error)
        return
    try:
        session, present, ended = connection.mqtt.open(connection, packet)
    except Malformed as error:
        _deny(connection, version, error.reason, error)
        return
    connection.version = version
    connection.session = session
    connection.will = packet.will
    connection.explains = packet.properties.get(f.REQUEST_PROBLEM, 1) == 1
    most = connection.mqtt.config.max_keep_alive
    keep_alive = min(packet.keep_alive, most) if version == 5 and most else packet.keep_alive
    connection.keep_alive(keep_alive)
    offered = _offered(connection, packet, assigned, keep_alive) if version == 5 else {}
    connack = Connack(present and version > 3, 0, offered)
    if present:
        _opened(connection, session, connack)
    else:
        connection.hold()
        connection.mqtt.when_kept(session, partial(_opened, connection, session, connack), ended=ended)


def _offered(connection: "MqttConnection", packet: Connect, assigned: str, keep_alive: int) -> f.Properties:
    config, session = connection.mqtt.config, connection.session
    assert session
    properties: f.Properties = {
        f.RECEIVE_MAXIMUM: config.receive_maximum,
        f.MAXIMUM_PACKET_SIZE: connection.shared.config.max_payload + HEAD_ROOM,
        f.TOPIC_ALIAS_MAXIMUM: config.topic_alias_maximum,
    }
    if assigned:
        properties[f.ASSIGNED_CLIENT_ID] = assigned
    if keep_alive != packet.keep_alive:
        properties[f.SERVER_KEEP_ALIVE] = keep_alive
    if session.expiry != packet.properties.get(f.SESSION_EXPIRY, 0):
        properties[f.SESSION_EXPIRY] = session.expiry
    return properties


def _opened(connection: "MqttConnection", session: MqttSession, connack: Connack) -> None:
    """A session that lasts is on disk before its client hears that it is there; or that it is not any more."""
    if connection.closing or connection.session is not session:
        return
    answer = connection.fitting(connack)
    if not answer:
        connection.will = None
        text = "a CONNACK is larger than the client allows packets to be"
        connection.fail(Malformed("mqtt_packet_too_large", text, PACKET_TOO_LARGE))
        return
    connection.turn.delivery.put(connection, answer)
    connection.mqtt.attach(session)
    later = connection.held_back()
    connection.turn.begin()
    if later:
        connection.handle(later)


def _deny(connection: "MqttConnection", version: int, reason: int, error: SmbError) -> None:
    connection.turn.reject(connection, error)
    code = reason if version == 5 else RETURN_CODES.get(reason, 3)
    connection.turn.delivery.put(connection, Connack(False, code).encode(version))
    connection.dismiss()


def refusal(error: Malformed) -> bytes:
    """ "The Server MAY send a CONNACK packet with a Reason Code of 0x80 or greater before closing" (3.1.4)"""
    if error.reason == UNSUPPORTED_VERSION:
        return Connack(False, 1).encode(4)
    return Connack(False, error.reason).encode(5) if error.version == 5 else b""
