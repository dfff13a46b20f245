"""Which packets a client may send in an open connection, and what takes each of them: the table HANDLERS."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from smbroker.dialects import mqtt
from smbroker.dialects.mqtt import Acks, Malformed, Mixed, Numbered, Run
from smbroker.dialects.mqtt import fields as f
from smbroker.dialects.mqtt.packets import (
    Ack,
    Connack,
    Connect,
    Disconnect,
    Ping,
    Publish,
    Results,
    Subscribe,
    Unsubscribe,
)
from smbroker.dialects.mqtt.reasons import DISCONNECT_WITH_WILL, PROTOCOL_ERROR
from smbroker.server.mqtt import acknowledging, connecting, publishing, subscribing

if TYPE_CHECKING:
    from smbroker.server.mqtt.connection import MqttConnection

PINGRESP = Ping(f.PINGRESP).encode()


def _ping(connection: "MqttConnection", packet: Ping) -> None:
    if packet.kind != f.PINGREQ:
        _not_for_us(connection, packet)
    connection.turn.delivery.put(connection, PINGRESP)


def _disconnect(connection: "MqttConnection", packet: Disconnect) -> None:
    session = connection.session
    assert session
    expiry = packet.properties.get(f.SESSION_EXPIRY)
    if expiry is not None:
        if expiry and not session.expiry:
            raise Malformed("mqtt_protocol", "a session that ends cannot be prolonged", PROTOCOL_ERROR)
        session.expiry = connection.mqtt.capped(expiry)
    connection.leave(connection.will if packet.reason == DISCONNECT_WITH_WILL else None)


def _not_for_us(_connection: "MqttConnection", packet: object) -> None:
    raise Malformed("mqtt_protocol", f"{type(packet).__name__} is not for a client to send", PROTOCOL_ERROR)


HANDLERS: dict[type, Callable[["MqttConnection", Any], None]] = {
    Connect: connecting.connect,
    Run: publishing.run,
    Mixed: publishing.mixed,
    Numbered: publishing.numbered,
    Publish: publishing.publish,
    Acks: acknowledging.acks,
    Ack: acknowledging.ack,
    Subscribe: subscribing.subscribe,
    Unsubscribe: subscribing.unsubscribe,
    Ping: _ping,
    Disconnect: _disconnect,
    Connack: _not_for_us,
    Results: _not_for_us,
    mqtt.Auth: _not_for_us,
}
