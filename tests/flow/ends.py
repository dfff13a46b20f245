"""What tests of MQTT across kills of the broker share: clients whose session lasts, ends, messages in numbers."""

import os

import pytest

from flow.house import Broker
from flow.mqtt import Mqtt
from smbroker.dialects.mqtt import fields as f
from smbroker.dialects.mqtt.packets import Ack, Publish

LONG = bool(os.environ.get("SMB_LONG"))
KINDS = ("mqtt",)
KEEP: f.Properties = {f.SESSION_EXPIRY: 1_000}


def lasting(broker: Broker, client: str, version: int = 5, **more: object) -> Mqtt:
    properties = KEEP if version == 5 else {}
    return Mqtt(broker, client, version=version, clean=False, properties=properties, **more)  # type: ignore[arg-type]


def kill(broker: Broker) -> None:
    broker.kill()
    broker.process.returncode = 0


def end(broker: Broker, how: str) -> None:
    kill(broker) if how == "kill" else broker.stop()


def publish_all(broker: Broker, topic: bytes, numbers: range) -> None:
    """All of them, acknowledged."""
    client = Mqtt(broker)
    frames = [Publish(topic, b"%d" % number, 1, packet_id=at + 1) for at, number in enumerate(numbers)]
    client.tcp.send(b"".join(frame.encode(4) for frame in frames))
    for frame in frames:
        assert client.expect(Ack).packet_id == frame.packet_id


def numbers(client: Mqtt, count: int) -> list[int]:
    return [int(client.get().payload) for _ in range(count)]


def new_numbers(client: Mqtt, first: int, count: int) -> list[int]:
    """As many from `first` on. What the client acknowledged just before a kill may come before them once more."""
    found: list[int] = []
    while len(found) < count:
        number = int(client.get().payload)
        if number >= first or found:
            found.append(number)
    return found


ENDS = pytest.mark.parametrize("how", ["kill", "stop"] if LONG else ["kill"])
