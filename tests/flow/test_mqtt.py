"""MQTT conversations with a real broker: connections, QoS, the other dialects, limits."""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from flow.house import Broker, wait_for
from flow.mqtt import KINDS, VERSIONS, Mqtt, topic
from flow.wires import config, delivery, padded_publish, padded_subscriber
from smbroker.dialects.mqtt import fields as f
from smbroker.dialects.mqtt.packets import Ack, Auth, Connack, Connect, Disconnect, Ping, Publish, Results


@pytest.fixture(scope="module", params=["log", "no-log"])
def broker(request: pytest.FixtureRequest) -> Iterator[Broker]:
    with Broker(*(["--no-log"] if request.param == "no-log" else []), kinds=KINDS) as broker:
        yield broker


# --- CONNECT ---


@pytest.mark.parametrize("version", [3, 4, 5])
@pytest.mark.parametrize("kind", ["mqtt", "tcp"])
def test_a_client_connects(broker: Broker, version: int, kind: str) -> None:
    client = Mqtt(broker, "c", version=version, kind=kind)
    assert (client.connack.present, client.connack.code) == (False, 0)
    assert client.quiet()
    client.disconnect()


def test_the_first_packet_must_be_connect(broker: Broker) -> None:
    client = Mqtt(broker, connect=False)
    client.send(Ping(f.PINGREQ))
    assert client.closed()


@pytest.mark.parametrize("version", VERSIONS)
def test_a_second_connect_ends_the_connection(broker: Broker, version: int) -> None:
    client = Mqtt(broker, "twice", version=version)
    client.send(Connect(version, "twice"))
    assert client.ended(0x82)


def test_an_unknown_version_is_told_so(broker: Broker) -> None:
    client = Mqtt(broker, connect=False)
    client.tcp.send(b"\x10\x0c\x00\x04MQTT\x07\x02\x00\x3c\x00\x00")
    assert client.expect(Connack).code == 1
    assert client.closed()


def test_an_empty_id_needs_a_clean_session(broker: Broker) -> None:
    assert Mqtt(broker, "", version=4, clean=False).connack.code == 2
    assert Mqtt(broker, "", version=4).connack.code == 0
    assert Mqtt(broker, "", version=5, clean=False).connack.properties[f.ASSIGNED_CLIENT_ID]


def test_extended_authentication_is_refused(broker: Broker) -> None:
    client = Mqtt(broker, "auth", version=5, properties={f.AUTHENTICATION_METHOD: "x"})
    assert client.connack.code == 0x8C
    assert client.closed()


@pytest.mark.parametrize("version", VERSIONS)
def test_the_same_id_takes_over(broker: Broker, version: int) -> None:
    old = Mqtt(broker, "same", version=version)
    new = Mqtt(broker, "same", version=version)
    assert old.ended(0x8E)
    assert new.quiet()


def test_a_long_keep_alive_is_shortened(broker: Broker) -> None:
    assert Mqtt(broker, version=5, keep_alive=120).connack.properties[f.SERVER_KEEP_ALIVE] == 60
    assert f.SERVER_KEEP_ALIVE not in Mqtt(broker, version=5, keep_alive=30).connack.properties


def test_a_silent_client_is_ended_after_its_keep_alive(broker: Broker) -> None:
    begun = time.monotonic()
    for client in [Mqtt(broker, version=version, keep_alive=1) for version in VERSIONS]:
        assert client.ended(0x8D)
        assert time.monotonic() - begun > 1.4


SERVERS = [Connack(), Results(f.SUBACK, 1, [0]), Ping(f.PINGRESP)]


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("packet", SERVERS, ids=lambda packet: type(packet).__name__)
def test_packets_of_servers_end_the_connection(broker: Broker, version: int, packet: Connack | Results | Ping) -> None:
    client = Mqtt(broker, version=version)
    client.send(packet)
    assert client.ended(0x82)


def test_auth_ends_the_connection(broker: Broker) -> None:
    client = Mqtt(broker, version=5)
    client.send(Auth(0x18))
    assert client.ended(0x82)


# --- QoS ---


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("subscribed", [0, 1, 2])
@pytest.mark.parametrize("published", [0, 1, 2])
def test_a_message_comes_with_the_lower_qos(broker: Broker, version: int, subscribed: int, published: int) -> None:
    name = topic()
    subscriber, publisher = Mqtt(broker, version=version), Mqtt(broker, version=version)
    assert subscriber.subscribe(name, qos=subscribed) == [subscribed]
    publisher.publish(name, b"x", published)
    message = subscriber.get()
    assert (message.topic, message.payload, message.qos) == (name.encode(), b"x", min(published, subscribed))
    assert (message.dup, message.retain) == (False, False)
    assert subscriber.quiet()


@pytest.mark.parametrize("publisher", VERSIONS)
@pytest.mark.parametrize("subscriber", VERSIONS)
def test_versions_hear_each_other(broker: Broker, publisher: int, subscriber: int) -> None:
    name = topic()
    hears, says = Mqtt(broker, version=subscriber), Mqtt(broker, version=publisher)
    hears.subscribe(name)
    frames = [Publish(name.encode(), b"%d" % number) for number in range(100)]
    says.tcp.send(b"".join(frame.encode(publisher) for frame in frames))
    assert [hears.get() for _ in frames] == frames


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("qos", [1, 2])
def test_messages_come_in_order(broker: Broker, version: int, qos: int) -> None:
    name = topic()
    client = Mqtt(broker, version=version)
    client.subscribe(name, qos=qos)
    other = Mqtt(broker, version=version)
    for number in range(20):
        other.publish(name, b"%d" % number, qos)
    assert [int(client.get().payload) for _ in range(20)] == list(range(20))


def test_qos_2_that_comes_again_is_published_once(broker: Broker) -> None:
    name = topic()
    subscriber, publisher = Mqtt(broker), Mqtt(broker)
    subscriber.subscribe(name, qos=2)
    for dup in (False, True, True):
        publisher.send(Publish(name.encode(), b"x", 2, dup=dup, packet_id=7))
        assert publisher.expect(Ack) == Ack(f.PUBREC, 7)
    publisher.send(Ack(f.PUBREL, 7))
    assert publisher.expect(Ack) == Ack(f.PUBCOMP, 7)
    assert subscriber.get().payload == b"x"
    assert subscriber.quiet()


def test_unknown_identifiers_are_told_in_5(broker: Broker) -> None:
    client = Mqtt(broker, version=5)
    client.send(Ack(f.PUBREL, 9))
    assert client.expect(Ack) == Ack(f.PUBCOMP, 9, 0x92)
    client.send(Ack(f.PUBREC, 9))
    assert client.expect(Ack) == Ack(f.PUBREL, 9, 0x92)


def test_the_receive_maximum_of_a_client_is_honoured(broker: Broker) -> None:
    name = topic()
    client = Mqtt(broker, version=5, properties={f.RECEIVE_MAXIMUM: 2})
    client.subscribe(name, qos=1)
    publisher = Mqtt(broker)
    for number in range(5):
        publisher.publish(name, b"%d" % number, 1)
    first, second = client.expect(Publish), client.expect(Publish)
    assert client.quiet()
    client.accept(first)
    third = client.expect(Publish)
    assert client.quiet()
    client.accept(second)
    client.accept(third)
    assert [int(client.get().payload) for _ in range(2)] == [3, 4]


def test_more_under_way_than_the_broker_takes_ends_the_connection(broker: Broker) -> None:
    client = Mqtt(broker, version=5)
    most = client.connack.properties[f.RECEIVE_MAXIMUM]
    frames = [Publish(b"t", b"", 2, packet_id=number) for number in range(1, most + 2)]
    client.tcp.send(b"".join(frame.encode(5) for frame in frames))
    while isinstance(packet := client.next(), Ack):
        pass
    assert isinstance(packet, Disconnect)
    assert packet.reason == 0x93


def test_a_packet_larger_than_the_client_takes_is_left_out(broker: Broker) -> None:
    name = topic()
    client = Mqtt(broker, version=5, properties={f.MAXIMUM_PACKET_SIZE: 60})
    client.subscribe(name, qos=1)
    publisher = Mqtt(broker)
    publisher.publish(name, b"x" * 60, 1)
    publisher.publish(name, b"short", 1)
    assert client.get().payload == b"short"


# --- the other dialects ---


def test_mqtt_and_padded_hear_each_other(broker: Broker) -> None:
    name = topic()
    client = Mqtt(broker)
    client.subscribe(name, qos=1)
    old = padded_subscriber(broker, name.encode())
    padded_publish(broker.tcp("padded"), name.encode(), b"padded")
    message = client.get()
    assert (message.payload, message.qos) == (b"padded", 1)
    assert old.receive(198) == delivery(name.encode(), b"padded")
    Mqtt(broker).publish(name, b"mqtt", 1)
    assert old.receive(196) == delivery(name.encode(), b"mqtt")


def test_mqtt_and_udp_hear_each_other(broker: Broker) -> None:
    name = topic().replace("/", "-")
    client, peer = Mqtt(broker, version=5), broker.udp()
    client.subscribe(f"{name}/#")
    assert peer.ask(b"S" + name.encode() + b"/#") == b"A" + name.encode() + b"/#"
    peer.send(b"\x01" + name.encode() + b"/a\x02soh")
    assert client.get() == Publish(f"{name}/a".encode(), b"soh")
    peer.receive()
    client.publish(f"{name}/b", b"mqtt")
    assert peer.receive() == b"\x01" + name.encode() + b"/b\x02mqtt"


def test_a_topic_with_wildcard_characters_reaches_no_mqtt_client(broker: Broker) -> None:
    name = topic()
    client, peer = Mqtt(broker), broker.udp()
    client.subscribe(f"{name}/#", qos=1)
    peer.send(f"p{name}/a+b;no".encode())
    peer.send(f"p{name}/ab;yes".encode())
    assert client.get().payload == b"yes"


# --- hostile ---


def test_no_connect_within_the_time_ends_the_connection(tmp_path: Path) -> None:
    with Broker("--no-log", *config(tmp_path, "[mqtt]\nconnect_timeout = 0.2\n"), kinds=("mqtt",)) as broker:
        assert Mqtt(broker, connect=False).closed()


def test_a_length_beyond_all_limits_is_refused_at_once(broker: Broker) -> None:
    client = Mqtt(broker, version=5)
    client.tcp.send(b"\x30\xff\xff\xff\x7f")
    assert client.ended(0x95)


def test_a_subscriber_that_does_not_read_does_not_stop_others(broker: Broker) -> None:
    name = topic()
    deaf, client, publisher = Mqtt(broker), Mqtt(broker), Mqtt(broker)
    deaf.subscribe(name)
    client.subscribe(name)
    payload = b"x" * 1_000_000
    for _ in range(40):
        publisher.publish(name, payload)
        assert client.get().payload == payload


def test_sessions_are_limited(tmp_path: Path) -> None:
    with Broker("--no-log", *config(tmp_path, "[mqtt]\nmax_sessions = 3\n"), kinds=("mqtt",)) as broker:
        for number in range(3):
            Mqtt(broker, f"c{number}", clean=False).disconnect()
        assert Mqtt(broker, "one more").connack.code == 3
        assert Mqtt(broker, "one more", version=5).connack.code == 0x97
        assert Mqtt(broker, "c1", clean=False).connack.present


def test_the_broker_says_goodbye() -> None:
    with Broker("--no-log", kinds=("mqtt",)) as broker:
        client = Mqtt(broker, version=5)
        broker.stop()
        assert client.ended(0x8B)
    assert wait_for(lambda: broker.process.poll() is not None)
