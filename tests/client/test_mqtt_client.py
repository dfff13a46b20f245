from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any

import pytest

from client.brokers import scripted_broker, tcp_broker
from smbroker.client import mqtt
from smbroker.client.errors import ClientError
from smbroker.client.mqtt import Publisher
from smbroker.dialects.mqtt.packets import Connack, Connect, Disconnect
from smbroker.dialects.mqtt.reasons import NOT_AUTHORIZED
from smbroker.model.errors import Refused

CONNACK = Connack().encode(5)
PUBACK = b"\x40\x02\x00\x01"
REQUEST = mqtt.encode_publish(b"t", b"m")
FAREWELL = Disconnect().encode(5)
LONG_ENOUGH = 0.5  # seconds: for a CONNACK on a busy machine, and for a test that waits for them to run out


@contextmanager
def connected(*script: bytes | None, **more: Any) -> Iterator[tuple[Publisher, list[list[bytes]]]]:
    with scripted_broker([CONNACK, *script]) as (address, heard), closing(Publisher(address, **more)) as publisher:
        yield publisher, heard


def test_a_publish_has_a_connection_of_its_own() -> None:
    with scripted_broker([CONNACK, PUBACK]) as (address, heard):
        mqtt.publish(address, b"t", b"m")
    assert heard == [[Connect(5).encode(), REQUEST, FAREWELL]]


def test_a_publisher_keeps_its_connection() -> None:
    with connected(PUBACK, PUBACK, client="charger") as (publisher, heard):
        publisher.send(REQUEST)
        publisher.send(REQUEST)
    assert heard == [[Connect(5, "charger").encode(), REQUEST, REQUEST, FAREWELL]]


def test_every_message_has_its_own_time_to_be_acknowledged() -> None:
    with connected(PUBACK) as (publisher, _):
        publisher._talk.deadline = 0.0  # long ago
        publisher.send(REQUEST)


def test_a_message_without_an_ack_has_failed() -> None:
    with connected(ack_timeout=LONG_ENOUGH) as (publisher, _), pytest.raises(ClientError) as caught:
        publisher.send(REQUEST)
    assert (caught.value.code, caught.value.text) == ("no_answer", "no PUBACK within 0.5 s")


def test_a_port_of_another_dialect_that_just_waits_is_asked_about() -> None:
    with scripted_broker([]) as (address, _), pytest.raises(ClientError) as caught:
        mqtt.Publisher(address, LONG_ENOUGH)
    assert caught.value.text == f"no CONNACK within 0.5 s; is {address} an MQTT port?"


def test_a_message_that_is_refused_has_failed() -> None:
    refusal = b"\x40\x03\x00\x01" + bytes((NOT_AUTHORIZED,))
    with scripted_broker([CONNACK, refusal]) as (address, _), pytest.raises(ClientError) as caught:
        mqtt.publish(address, b"t", b"m")
    assert caught.value.code == "refused"
    assert caught.value.text.endswith("refused the message: not allowed to publish to this topic")


def test_who_is_not_let_in_hangs_up() -> None:
    refusal = Connack(code=NOT_AUTHORIZED).encode(5)
    with scripted_broker([refusal]) as (address, heard), pytest.raises(ClientError) as caught:
        Publisher(address)
    assert caught.value.code == "refused"
    assert heard == [[Connect(5).encode()]]


def test_a_broker_that_closes_is_told_from_one_that_is_slow() -> None:
    with connected(None) as (publisher, _), pytest.raises(ClientError) as caught:
        publisher.send(REQUEST)
    assert caught.value.code == "closed"


def test_a_topic_that_mqtt_cannot_say_is_refused_before_anything_is_sent() -> None:
    with tcp_broker() as (broker, address):
        with pytest.raises(Refused):
            mqtt.publish(address, b"a/#", b"m")
        broker.setblocking(False)
        with pytest.raises(BlockingIOError):
            broker.accept()
