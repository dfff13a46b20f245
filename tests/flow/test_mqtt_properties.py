"""What MQTT messages carry, expiry and topic aliases; and wills."""

import time
from collections.abc import Iterator

import pytest

from flow.house import Broker
from flow.mqtt import KINDS, VERSIONS, Mqtt, topic
from smbroker.dialects.mqtt import fields as f
from smbroker.dialects.mqtt.packets import Will


@pytest.fixture(scope="module", params=["log", "no-log"])
def broker(request: pytest.FixtureRequest) -> Iterator[Broker]:
    with Broker(*(["--no-log"] if request.param == "no-log" else []), kinds=KINDS) as broker:
        yield broker


# --- properties ---


CARRIED: f.Properties = {
    f.PAYLOAD_FORMAT: 1,
    f.CONTENT_TYPE: "text/plain",
    f.RESPONSE_TOPIC: "answers",
    f.CORRELATION_DATA: b"\x00\xff",
    f.USER: [("a", "1"), ("a", "2"), ("$b", "3")],
}


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_properties_are_passed_on(broker: Broker, qos: int) -> None:
    name = topic()
    client, old = Mqtt(broker, version=5), Mqtt(broker)
    client.subscribe(name, qos=qos)
    old.subscribe(name, qos=qos)
    Mqtt(broker, version=5).publish(name, b"x", qos, properties=CARRIED)
    assert client.get().properties == CARRIED
    assert old.get().payload == b"x"


def test_a_message_expires_while_it_waits(broker: Broker) -> None:
    name = topic()
    client = Mqtt(broker, version=5)
    client.publish(name, b"short", 1, retain=True, properties={f.MESSAGE_EXPIRY: 1})
    client.publish(f"{name}/long", b"long", 1, retain=True, properties={f.MESSAGE_EXPIRY: 100})
    time.sleep(1.1)
    client.subscribe(f"{name}/#")
    message = client.get()
    assert message.payload == b"long"
    assert 90 < message.properties[f.MESSAGE_EXPIRY] < 100
    assert client.quiet()


def test_topic_aliases_of_a_client(broker: Broker) -> None:
    name = topic()
    client, publisher = Mqtt(broker, version=5), Mqtt(broker, version=5)
    client.subscribe(name)
    publisher.publish(name, b"1", properties={f.TOPIC_ALIAS: 5})
    publisher.publish("", b"2", properties={f.TOPIC_ALIAS: 5})
    assert [(message.topic, message.payload) for message in (client.get(), client.get())] == [
        (name.encode(), b"1"),
        (name.encode(), b"2"),
    ]


@pytest.mark.parametrize(("alias", "reason"), [(0, 0x94), (101, 0x94), (7, 0x82)])
def test_aliases_that_do_not_exist(broker: Broker, alias: int, reason: int) -> None:
    client = Mqtt(broker, version=5)
    client.publish("", b"", properties={f.TOPIC_ALIAS: alias})
    assert client.ended(reason)


def test_topic_aliases_of_the_broker(broker: Broker) -> None:
    name = topic()
    client, publisher = Mqtt(broker, version=5, properties={f.TOPIC_ALIAS_MAXIMUM: 1}), Mqtt(broker)
    client.subscribe(f"{name}/#", qos=2)
    for end, qos in (("a", 0), ("a", 1), ("a", 2), ("b", 0)):
        publisher.publish(f"{name}/{end}", b"", qos)
    got = [client.get() for _ in range(4)]
    assert [message.topic for message in got] == [f"{name}/a".encode(), b"", b"", f"{name}/b".encode()]
    assert [message.properties.get(f.TOPIC_ALIAS) for message in got] == [1, 1, 1, None]


def test_an_alias_stays_with_its_topic_when_a_message_is_too_long(broker: Broker) -> None:
    name = topic()
    limits: f.Properties = {f.TOPIC_ALIAS_MAXIMUM: 10, f.MAXIMUM_PACKET_SIZE: 200}
    client, publisher = Mqtt(broker, version=5, properties=limits), Mqtt(broker)
    client.subscribe(f"{name}/#", qos=1)
    for end, size in (("a", 1), ("b", 1), ("a", 300), ("d", 300), ("c", 1), ("b", 1), ("d", 1), ("a", 1)):
        publisher.publish(f"{name}/{end}", end.encode() * size, 1)
    aliases: dict[int, bytes] = {}
    for end in "abcbda":
        message = client.get()
        alias = message.properties[f.TOPIC_ALIAS]
        if message.topic:
            aliases[alias] = message.topic
        assert (aliases[alias], message.payload) == (f"{name}/{end}".encode(), end.encode())


# --- wills ---


@pytest.mark.parametrize("version", VERSIONS)
def test_a_will_is_sent_when_the_connection_breaks(broker: Broker, version: int) -> None:
    name = topic()
    watcher = Mqtt(broker)
    watcher.subscribe(name, qos=1)
    Mqtt(broker, version=version, will=Will(name.encode(), b"dead", 1)).drop()
    assert watcher.get().payload == b"dead"


@pytest.mark.parametrize("version", VERSIONS)
def test_a_will_is_not_sent_after_disconnect(broker: Broker, version: int) -> None:
    name = topic()
    watcher = Mqtt(broker)
    watcher.subscribe(name, qos=1)
    Mqtt(broker, version=version, will=Will(name.encode(), b"dead", 1)).disconnect()
    assert watcher.quiet()


def test_a_disconnect_may_ask_for_the_will(broker: Broker) -> None:
    name = topic()
    watcher = Mqtt(broker)
    watcher.subscribe(name)
    Mqtt(broker, version=5, will=Will(name.encode(), b"dead", 1)).disconnect(0x04)
    assert watcher.get().payload == b"dead"


def test_a_will_may_wait_and_is_forgotten_if_the_client_returns(broker: Broker) -> None:
    name = topic()
    watcher = Mqtt(broker)
    watcher.subscribe(f"{name}/#")
    keep: f.Properties = {f.SESSION_EXPIRY: 100}
    for client, back in (("returns", True), ("stays", False)):
        will = Will(f"{name}/{client}".encode(), b"dead", properties={f.WILL_DELAY: 2})
        begun = time.monotonic()
        Mqtt(broker, f"{name}{client}", version=5, will=will, properties=keep).drop()
        if back:
            Mqtt(broker, f"{name}{client}", version=5, clean=False, properties=keep)
    assert watcher.get().topic == f"{name}/stays".encode()
    assert time.monotonic() - begun > 1.9
    assert watcher.quiet()
