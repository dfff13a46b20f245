"""How the devices reach the broker: an MQTT device has one connection, and another after trouble."""

from contextlib import closing

import pytest

from client.brokers import scripted_broker
from flow.house import Broker
from flow.mqtt import Mqtt
from smbroker.cli.devices import wires as module
from smbroker.cli.devices.sensors import Message
from smbroker.cli.devices.wires import DIALECTS, Wires
from smbroker.client import mqtt
from smbroker.client.address import Address
from smbroker.client.errors import ClientError
from smbroker.dialects.mqtt.packets import Connack, Connect, Disconnect
from smbroker.model.message import Dialect

CONNACK = Connack().encode(5)
PUBACK = b"\x40\x02\x00\x01"
FAREWELL = Disconnect().encode(5)


def said(device: str, text: str) -> Message:
    return Message(device, Dialect.MQTT, f"house/{device}", text)


def request(device: str, text: str) -> bytes:
    return mqtt.encode_publish(f"house/{device}".encode(), text.encode())


def wires_to(address: Address) -> "closing[Wires]":
    return closing(Wires({Dialect.MQTT: address}))


def test_each_device_keeps_a_connection_with_its_name() -> None:
    scripts = [CONNACK, PUBACK, PUBACK], [CONNACK, PUBACK]
    with scripted_broker(*scripts) as (address, heard), wires_to(address) as wires:
        for message in (said("charger", "1"), said("heat pump", "2"), said("charger", "3")):
            wires.publish(message)
    assert heard == [
        [Connect(5, "charger").encode(), request("charger", "1"), request("charger", "3"), FAREWELL],
        [Connect(5, "heat pump").encode(), request("heat pump", "2"), FAREWELL],
    ]


def test_a_connection_that_was_lost_is_opened_again() -> None:
    with scripted_broker([CONNACK, PUBACK, None], [CONNACK, PUBACK]) as (address, heard), wires_to(address) as wires:
        wires.publish(said("charger", "1"))
        with pytest.raises(ClientError) as caught:
            wires.publish(said("charger", "2"))
        wires.publish(said("charger", "3"))
    assert caught.value.code == "closed"
    assert heard[1][:2] == [Connect(5, "charger").encode(), request("charger", "3")]


def test_a_message_that_is_not_acknowledged_in_time_is_trouble(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "ANSWER_TIMEOUT", 0.5)
    with scripted_broker([CONNACK], [CONNACK, PUBACK]) as (address, heard), wires_to(address) as wires:
        with pytest.raises(ClientError) as caught:
            wires.publish(said("charger", "1"))
        monkeypatch.undo()
        wires.publish(said("charger", "2"))
    assert (caught.value.code, caught.value.text) == ("no_answer", "no PUBACK within 0.5 s")
    assert heard[1] == [Connect(5, "charger").encode(), request("charger", "2"), FAREWELL]


@pytest.mark.parametrize("kind", ["mqtt", "tcp"])
def test_these_listeners_take_mqtt(kind: str) -> None:
    assert Dialect.MQTT in DIALECTS[kind]
    with Broker("--no-log", kinds=(kind,)) as broker:
        watching = Mqtt(broker, kind=kind)
        watching.subscribe("house/#")
        with wires_to(Address("127.0.0.1", broker.ports[kind])) as wires:
            wires.publish(said("charger", "1"))
            message = watching.get()
    assert (message.topic, message.payload) == (b"house/charger", b"1")
