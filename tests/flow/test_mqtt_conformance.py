"""What the standard asks of an MQTT server, clause by clause; test_mqtt_states.py has every packet in every state."""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from flow.house import Broker
from flow.mqtt import KINDS, VERSIONS, Mqtt, topic
from smbroker.dialects.mqtt import fields as f
from smbroker.dialects.mqtt.packets import Ack, Connack, Connect, Publish, Results, Subscribe, Topics, Will


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker(kinds=("mqtt",)) as broker:
        yield broker


# --- CONNECT ---


def test_the_protocols_name_and_level(broker: Broker) -> None:
    for data, code in (
        (b"\x10\x0c\x00\x04MQTT\x03\x02\x00\x3c\x00\x00", 1),  # 3.1's level with another name
        (b"\x10\x0c\x00\x04MQTT\x06\x02\x00\x3c\x00\x00", 1),
        (b"\x10\x0e\x00\x06MQIsdp\x05\x02\x00\x3c\x00\x00", 1),
        (b"\x10\x0a\x00\x02hj\x04\x02\x00\x3c\x00\x00", None),
    ):
        client = Mqtt(broker, connect=False)
        client.tcp.send(data)
        if code is not None:
            assert client.expect(Connack) == Connack(False, code)
        assert client.closed()


def test_connect_and_what_follows_in_one_write(broker: Broker) -> None:
    client = Mqtt(broker, connect=False, version=5)
    packets = [Connect(5, "at once"), Subscribe(1, [Topics(b"once", 1)]), Publish(b"once", b"x", 1, packet_id=2)]
    client.tcp.send(b"".join(packet.encode(5) for packet in packets))
    assert client.expect(Connack).code == 0
    assert client.expect(Results).codes == [1]
    assert {type(client.next()), type(client.next())} == {Ack, Publish}


def test_the_session_of_3_1_1_is_there_for_5_and_the_other_way_round(broker: Broker) -> None:
    Mqtt(broker, "both", version=4, clean=False).disconnect()
    client = Mqtt(broker, "both", version=5, clean=False, properties={f.SESSION_EXPIRY: 100})
    assert client.connack.present
    client.disconnect()
    assert Mqtt(broker, "both", version=4, clean=False).connack.present


@pytest.mark.parametrize("version", VERSIONS)
def test_a_clean_session_forgets_the_one_before(broker: Broker, version: int) -> None:
    name, client_id = topic(), f"clean{version}"
    about: f.Properties = {f.SESSION_EXPIRY: 100} if version == 5 else {}
    client = Mqtt(broker, client_id, version=version, clean=False, properties=about)
    client.subscribe(name, qos=1)
    client.disconnect()
    Mqtt(broker).publish(name, b"x", 1)
    client = Mqtt(broker, client_id, version=version, properties=about)
    assert not client.connack.present
    Mqtt(broker).publish(name, b"y", 1)
    assert client.quiet()


@pytest.mark.parametrize(("first", "last", "stays"), [(100, None, True), (0, None, False), (100, 0, False)])
def test_session_expiry(broker: Broker, first: int, last: int | None, stays: bool) -> None:
    name = topic()
    client = Mqtt(broker, name, version=5, properties={f.SESSION_EXPIRY: first})
    client.disconnect(properties={} if last is None else {f.SESSION_EXPIRY: last})
    assert Mqtt(broker, name, version=5, clean=False).connack.present is stays


def test_a_disconnect_prolongs_a_session(broker: Broker) -> None:
    name = topic()
    client = Mqtt(broker, name, version=5, properties={f.SESSION_EXPIRY: 1})
    client.disconnect(properties={f.SESSION_EXPIRY: 1_000})
    time.sleep(1.2)
    assert Mqtt(broker, name, version=5, clean=False).connack.present


# --- wills ---


def test_a_keep_alive_that_passes_sends_the_will(broker: Broker) -> None:
    name = topic()
    watcher = Mqtt(broker)
    watcher.subscribe(name, qos=2)
    will = Will(name.encode(), b"silent", 2)
    clients = [Mqtt(broker, version=version, keep_alive=1, will=will) for version in VERSIONS]
    for client in clients:
        message = watcher.get()
        assert (message.payload, message.qos, message.retain) == (b"silent", 2, False)
        assert client.ended(0x8D)


@pytest.mark.parametrize(("version", "code"), [(4, 3), (5, 0x95)])
def test_a_will_that_could_not_be_published_is_refused_at_once(tmp_path: Path, version: int, code: int) -> None:
    config = tmp_path / "smb.toml"
    config.write_text("max_payload = 1_000\n")
    with Broker("--config", str(config), kinds=KINDS) as broker:
        client = Mqtt(broker, version=version, will=Will(b"t", b"x" * 1_001))
        assert client.connack.code == code
        assert client.closed()
        Mqtt(broker, version=version, will=Will(b"t", b"x" * 1_000)).drop()


def test_a_will_has_its_properties(broker: Broker) -> None:
    name = topic()
    watcher = Mqtt(broker, version=5)
    watcher.subscribe(name, qos=1)
    about: f.Properties = {
        f.PAYLOAD_FORMAT: 1,
        f.CONTENT_TYPE: "text",
        f.RESPONSE_TOPIC: "r",
        f.CORRELATION_DATA: b"c",
        f.USER: [("a", "2"), ("c", "3")],
    }
    will = Will(name.encode(), b"dead", 1, properties={**about, f.WILL_DELAY: 0})
    Mqtt(broker, version=5, will=will).drop()
    assert watcher.get().properties == about


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("cause", ["protocol error", "takeover"])
def test_a_will_is_sent_if_the_broker_ends_the_connection(broker: Broker, version: int, cause: str) -> None:
    name = topic()
    watcher = Mqtt(broker)
    watcher.subscribe(name, qos=1)
    client = Mqtt(broker, name, version=version, will=Will(name.encode(), b"dead", 1))
    if cause == "takeover":
        Mqtt(broker, name, version=version)
    else:
        client.tcp.send(b"\x00\x00")
    assert watcher.get().payload == b"dead"


@pytest.mark.parametrize("version", VERSIONS)
def test_a_retained_will(broker: Broker, version: int) -> None:
    name = topic()
    watcher = Mqtt(broker)
    watcher.subscribe(name)
    Mqtt(broker, version=version, will=Will(name.encode(), b"dead", 1, retain=True)).drop()
    assert not watcher.get().retain
    late = Mqtt(broker)
    late.subscribe(name, qos=1)
    message = late.get()
    assert (message.payload, message.retain, message.qos) == (b"dead", True, 1)


@pytest.mark.parametrize(("delay", "expiry", "least"), [(1, 100, 0.9), (100, 1, 0.9), (100, 0, 0.0)])
def test_a_delayed_will_comes_with_the_end_of_its_session_at_the_latest(
    broker: Broker, delay: int, expiry: int, least: float
) -> None:
    name = topic()
    watcher = Mqtt(broker)
    watcher.subscribe(name, qos=1)
    will = Will(name.encode(), b"dead", 1, properties={f.WILL_DELAY: delay})
    client = Mqtt(broker, name, version=5, will=will, properties={f.SESSION_EXPIRY: expiry})
    begun = time.monotonic()
    client.drop()
    assert watcher.get().payload == b"dead"
    assert time.monotonic() - begun >= least


def test_a_will_that_waits_is_sent_if_the_session_is_begun_anew(broker: Broker) -> None:
    name = topic()
    watcher = Mqtt(broker)
    watcher.subscribe(name, qos=1)
    will = Will(name.encode(), b"dead", 1, properties={f.WILL_DELAY: 1_000})
    Mqtt(broker, name, version=5, will=will, properties={f.SESSION_EXPIRY: 1_000}).disconnect(0x04)
    assert watcher.quiet()
    Mqtt(broker, name, version=5, clean=True)
    assert watcher.get().payload == b"dead"


# --- publishing ---


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("qos", [1, 2])
def test_the_acknowledgement_comes_before_the_publishers_own_copy(broker: Broker, version: int, qos: int) -> None:
    name = topic()
    client = Mqtt(broker, version=version)
    client.subscribe(name, qos=qos)
    client.send(Publish(name.encode(), b"x", qos, packet_id=9))
    assert client.expect(Ack).packet_id == 9
    assert client.expect(Publish).payload == b"x"


@pytest.mark.parametrize("version", VERSIONS)
def test_an_identifier_may_be_used_again_once_it_is_free(broker: Broker, version: int) -> None:
    name = topic()
    client, watcher = Mqtt(broker, version=version), Mqtt(broker)
    watcher.subscribe(name, qos=2)
    for payload in (b"one", b"two"):
        client.send(Publish(name.encode(), payload, 2, packet_id=3))
        assert client.expect(Ack) == Ack(f.PUBREC, 3)
        client.send(Ack(f.PUBREL, 3))
        assert client.expect(Ack) == Ack(f.PUBCOMP, 3)
    assert [watcher.get().payload for _ in range(2)] == [b"one", b"two"]


def test_a_pubrec_with_an_error_ends_the_delivery(broker: Broker) -> None:
    name = topic()
    client = Mqtt(broker, version=5, properties={f.RECEIVE_MAXIMUM: 1})
    client.subscribe(name, qos=2)
    other = Mqtt(broker)
    for payload in (b"one", b"two"):
        other.publish(name, payload, 2)
    client.send(Ack(f.PUBREC, client.expect(Publish).packet_id, 0x80))
    assert client.get().payload == b"two"
    assert client.quiet()


def test_qos_2_counts_for_the_receive_maximum_until_pubcomp(broker: Broker) -> None:
    name = topic()
    client = Mqtt(broker, version=5, properties={f.RECEIVE_MAXIMUM: 1})
    client.subscribe(name, qos=2)
    other = Mqtt(broker)
    for payload in (b"one", b"two"):
        other.publish(name, payload, 2)
    number = client.expect(Publish).packet_id
    client.send(Ack(f.PUBREC, number))
    assert client.expect(Ack) == Ack(f.PUBREL, number)
    assert client.quiet()
    client.send(Ack(f.PUBCOMP, number))
    assert client.get().payload == b"two"


def test_aliases_end_with_their_connection(broker: Broker) -> None:
    name, client_id = topic(), topic()
    keep: f.Properties = {f.SESSION_EXPIRY: 100}
    client = Mqtt(broker, client_id, version=5, properties=keep)
    client.publish(name, b"1", 1, properties={f.TOPIC_ALIAS: 1})
    client.disconnect()
    client = Mqtt(broker, client_id, version=5, clean=False, properties=keep)
    assert client.connack.present
    client.send(Publish(b"", b"2", properties={f.TOPIC_ALIAS: 1}))
    assert client.ended(0x82)


def test_an_alias_may_be_given_another_topic(broker: Broker) -> None:
    first, second = topic(), topic()
    client, watcher = Mqtt(broker, version=5), Mqtt(broker)
    watcher.subscribe(first, second)
    for name, payload in ((first, b"1"), ("", b"2"), (second, b"3"), ("", b"4")):
        client.publish(name, payload, properties={f.TOPIC_ALIAS: 9})
    assert [watcher.get().topic for _ in range(4)] == [name.encode() for name in (first, first, second, second)]


def test_a_payload_that_is_not_utf_8_as_it_says(broker: Broker) -> None:
    client = Mqtt(broker, version=5)
    client.publish("t", b"\xff", properties={f.PAYLOAD_FORMAT: 1})
    assert client.ended(0x99)


def test_a_request_and_its_response(broker: Broker) -> None:
    name = topic()
    asks, answers = Mqtt(broker, version=5), Mqtt(broker, version=5)
    for client in (asks, answers):
        client.subscribe(name, qos=2, no_local=True)
    about: f.Properties = {f.RESPONSE_TOPIC: name, f.CORRELATION_DATA: b"334"}
    asks.publish(name, b"request", 1, properties=about)
    request = answers.get()
    assert request.properties == about
    answers.publish(request.properties[f.RESPONSE_TOPIC], b"response", 1, properties=request.properties)
    response = asks.get()
    assert (response.payload, response.properties) == (b"response", about)
    assert asks.quiet()


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_retained_messages_keep_their_properties(broker: Broker, qos: int) -> None:
    name = topic()
    about: f.Properties = {f.USER: [("a", "2"), ("c", "3")], f.CONTENT_TYPE: "x"}
    publisher, client = Mqtt(broker, version=5), Mqtt(broker, version=5)
    publisher.publish(name, b"kept", qos, retain=True, properties=about)
    assert publisher.quiet()
    client.subscribe(name, qos=2)
    message = client.get()
    assert (message.retain, message.qos, message.properties) == (True, qos, about)


def test_a_retained_message_reaches_those_who_are_subscribed_without_the_flag(broker: Broker) -> None:
    name = topic()
    client = Mqtt(broker)
    client.subscribe(name, qos=1)
    client.send(Publish(name.encode(), b"x", 0, retain=True))
    assert not client.get().retain
    client.send(Publish(name.encode(), b"", 0, retain=True))
    message = client.get()
    assert (message.payload, message.retain) == (b"", False)


# --- subscribing ---


@pytest.mark.parametrize("version", VERSIONS)
def test_a_subscription_replaces_the_one_before(broker: Broker, version: int) -> None:
    name = topic()
    client = Mqtt(broker, version=version)
    assert client.subscribe(name, qos=2) == [2]
    assert client.subscribe(name, qos=0) == [0]
    Mqtt(broker).publish(name, b"x", 2)
    assert client.get().qos == 0
    assert client.quiet()


def test_a_subscription_of_ones_own_and_a_shared_one_both_count(broker: Broker) -> None:
    name = topic()
    one, other = Mqtt(broker, version=5), Mqtt(broker, version=5)
    for client in (one, other):
        assert client.subscribe(f"$share/group/{name}", name, qos=1) == [1, 1]
    Mqtt(broker).publish(name, b"x", 1)
    for client in (one, other):
        assert client.get().payload == b"x"
    copies = [client.quiet() for client in (one, other)]
    assert sorted(copies) == [False, True], "the shared one is one more for one of them"


def test_shared_subscriptions_get_no_retained_messages(broker: Broker) -> None:
    name = topic()
    client = Mqtt(broker, version=5)
    client.publish(name, b"x", 1, retain=True)
    assert client.subscribe(f"$share/group/{name}", qos=1) == [1]
    assert client.quiet()


FILTERS = [
    ("+", "x", True),
    ("+", "/x", False),
    ("/+", "/x", True),
    ("+/+", "/x", True),
    ("#", "a/b/c", True),
    ("a/#", "a", True),
    ("a/#", "ab", False),
    ("a/+/c", "a/b/c", True),
    ("a/+/c", "a//c", True),
    ("a/+", "a", False),
    ("a/+", "a/", True),
    ("+/b/#", "a/b", True),
    ("A", "a", False),
    ("a/b", "a/b/", False),
    ("//", "//", True),
    ("ä/+", "ä/ö", True),
]


@pytest.mark.parametrize(("pattern", "name", "matches"), FILTERS)
def test_filters(broker: Broker, pattern: str, name: str, matches: bool) -> None:
    """Below a first level of their own, so that `#` is not everything that others publish."""
    root = topic().replace("/", "-")
    client, publisher = Mqtt(broker), Mqtt(broker)
    client.subscribe(f"{root}/{pattern}", qos=1)
    publisher.publish(f"{root}/{name}", b"x", 1)
    if matches:
        assert client.get().topic == f"{root}/{name}".encode()
    assert client.quiet()


def test_a_client_that_is_not_listened_to_is_not_taken_for_silent(tmp_path: Path) -> None:
    config = tmp_path / "smb.toml"
    config.write_text("[tcp]\nmax_rate = 10_000\n")
    with Broker("--config", str(config), kinds=KINDS) as broker:
        client = Mqtt(broker, version=5, keep_alive=1)
        client.publish("t", bytes(40_000))
        assert client.quiet(), "the ping is read three seconds later, which is twice what a client may be silent for"
