"""Rows of MQTT packets, written out."""

from typing import Any

from smbroker.dialects.mqtt import Acks, Mixed, Numbered, Run
from smbroker.dialects.mqtt import fields as f
from smbroker.dialects.mqtt.packets import Ack, Packet, Publish


def plain(items: list[Any]) -> list[Packet]:
    """Runs written out as the packets that they are."""
    found: list[Packet] = []
    for item in items:
        if isinstance(item, Run):
            found += [Publish(item.topic, payload) for payload in item.payloads]
        elif isinstance(item, Mixed):
            found += [Publish(topic, payload) for topic, payload in zip(item.topics, item.payloads, strict=True)]
        elif isinstance(item, Numbered):
            found += [
                Publish(item.topic, payload, 1, packet_id=number)
                for number, payload in zip(item.numbers, item.payloads, strict=True)
            ]
        elif isinstance(item, Acks):
            found += [Ack(f.PUBACK, number) for number in item.numbers]
        else:
            found.append(item)
    return found
