"""MQTT subscriptions: filters, options, shared ones, and the retained messages that they begin with."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from flow.house import Broker
from flow.mqtt import KINDS, VERSIONS, Mqtt, topic
from flow.wires import config
from smbroker.dialects.mqtt import fields as f
from smbroker.dialects.mqtt.packets import Publish


@pytest.fixture(scope="module", params=["log", "no-log"])
def broker(request: pytest.FixtureRequest) -> Iterator[Broker]:
    with Broker(*(["--no-log"] if request.param == "no-log" else []), kinds=KINDS) as broker:
        yield broker


# --- subscriptions ---


@pytest.mark.parametrize("version", VERSIONS)
def test_filters(broker: Broker, version: int) -> None:
    name = topic()
    client, publisher = Mqtt(broker, version=version), Mqtt(broker)
    assert client.subscribe(f"{name}/+/x", f"{name}/deep/#", qos=1) == [1, 1]
    for end in ("a/x", "a/y", "deep", "deep/a/b", "$a"):
        publisher.publish(f"{name}/{end}", end.encode(), 1)
    assert [client.get().payload for _ in range(3)] == [b"a/x", b"deep", b"deep/a/b"]
    assert client.quiet()


@pytest.mark.parametrize(("version", "code"), [(4, 0x80), (5, 0x8F)])
def test_a_bad_filter_is_refused_alone(broker: Broker, version: int, code: int) -> None:
    client = Mqtt(broker, version=version)
    assert client.subscribe("a/#/b", "good", "b+", qos=1) == [code, 1, code]


def test_a_filter_may_be_closed_to_all(tmp_path: Path) -> None:
    settings = config(tmp_path, '[mqtt]\nno_subscribe = ["closed/#"]\n')
    with Broker("--no-log", *settings, kinds=("mqtt",)) as broker:
        for version in VERSIONS:
            assert Mqtt(broker, version=version).subscribe("closed/#", "open", qos=2) == [0x80, 2]


@pytest.mark.parametrize("version", VERSIONS)
def test_unsubscribe(broker: Broker, version: int) -> None:
    name = topic()
    client = Mqtt(broker, version=version)
    client.subscribe(name, f"{name}/2", qos=2)
    assert client.unsubscribe(name, "nothing") == ([0, 0x11] if version == 5 else [])
    client.publish(name, b"x")
    client.publish(f"{name}/2", b"y")
    assert client.get().payload == b"y"
    assert client.quiet()


def test_overlapping_subscriptions_give_one_copy_with_all_identifiers(broker: Broker) -> None:
    name = topic()
    client = Mqtt(broker, version=5)
    client.subscribe(f"{name}/#", qos=2, properties={f.SUBSCRIPTION_ID: 1})
    client.subscribe(f"{name}/+", qos=1, properties={f.SUBSCRIPTION_ID: 300})
    Mqtt(broker).publish(f"{name}/x", b"x", 2)
    message = client.get()
    assert (message.qos, sorted(message.properties[f.SUBSCRIPTION_ID])) == (2, [1, 300])
    assert client.quiet()


def test_no_local(broker: Broker) -> None:
    name = topic()
    client = Mqtt(broker, version=5)
    client.subscribe(name, no_local=True)
    client.publish(name, b"mine")
    Mqtt(broker).publish(name, b"theirs")
    assert client.get().payload == b"theirs"


def test_no_local_holds_for_retained_messages_too(broker: Broker) -> None:
    name = topic()
    client, other = Mqtt(broker, version=5), Mqtt(broker)
    client.publish(f"{name}/a", b"mine", 1, retain=True)
    other.publish(f"{name}/b", b"theirs", 1, retain=True)
    client.subscribe(f"{name}/+", no_local=True)
    assert client.get().payload == b"theirs"
    assert client.quiet()
    client.subscribe(f"{name}/a")
    assert client.get().payload == b"mine"


def test_no_local_with_a_shared_subscription_is_an_error(broker: Broker) -> None:
    client = Mqtt(broker, version=5)
    with pytest.raises(AssertionError):
        client.subscribe("$share/g/x", no_local=True)
    assert client.closed()


def test_leading_wildcards_do_not_match_dollar_topics(broker: Broker) -> None:
    client = Mqtt(broker)
    client.subscribe("$SYS/broker/version")
    assert client.get().payload.startswith(b"smbroker version ")
    client.unsubscribe("$SYS/broker/version")
    client.subscribe("+/broker/version")
    client.publish("$mine/broker/version", b"x", 1)
    assert client.quiet()


def test_only_the_broker_publishes_to_dollar_topics(broker: Broker) -> None:
    client = Mqtt(broker, version=5)
    client.subscribe("$mine/#")
    client.publish("$mine/a", b"x")
    ack = client.publish("$mine/a", b"x", 1)
    assert ack
    assert ack.reason == 0x87
    assert client.quiet()


def test_shared_subscriptions_take_turns(broker: Broker) -> None:
    name = topic()
    members = [Mqtt(broker, version=5) for _ in range(2)]
    for member in members:
        member.subscribe(f"$share/g/{name}/+", qos=1)
    alone = Mqtt(broker)
    alone.subscribe(f"{name}/x", qos=1)
    for number in range(10):
        alone.send(Publish(f"{name}/x".encode(), b"%d" % number))
    assert [int(alone.get().payload) for _ in range(10)] == list(range(10))
    got = [[int(member.get().payload) for _ in range(5)] for member in members]
    assert got == [[0, 2, 4, 6, 8], [1, 3, 5, 7, 9]]  # the first who came is the first who gets one


# --- retained ---


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_retained_messages(broker: Broker, version: int, qos: int) -> None:
    name = topic()
    publisher = Mqtt(broker, version=version)
    publisher.publish(f"{name}/a", b"old", 1, retain=True)
    publisher.publish(f"{name}/a", b"new", qos, retain=True)
    publisher.publish(f"{name}/b", b"gone", 1, retain=True)
    publisher.publish(f"{name}/b", b"", 1, retain=True)
    client = Mqtt(broker, version=version)
    client.subscribe(f"{name}/+", qos=2)
    message = client.get()
    assert (message.payload, message.qos, message.retain) == (b"new", qos, True)
    client.subscribe(f"{name}/+", qos=2)
    assert client.get().payload == b"new"
    assert client.quiet()


def test_retain_handling(broker: Broker) -> None:
    name = topic()
    client = Mqtt(broker, version=5)
    client.publish(name, b"x", 1, retain=True)
    client.subscribe(name, handling=2)
    assert client.quiet()
    client.unsubscribe(name)
    client.subscribe(name, handling=1)
    assert client.get().payload == b"x"
    client.subscribe(name, handling=1)
    assert client.quiet()


def test_retain_as_published(broker: Broker) -> None:
    name = topic()
    as_published, plain = Mqtt(broker, version=5), Mqtt(broker, version=5)
    as_published.subscribe(name, as_published=True)
    plain.subscribe(name)
    Mqtt(broker).publish(name, b"x", 0, retain=True)
    assert as_published.get().retain
    assert not plain.get().retain
