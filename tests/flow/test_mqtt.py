"""MQTT conversations with a real broker: packets, states, QoS, retained messages, wills, the other dialects."""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from flow.house import Broker, wait_for
from flow.mqtt import KINDS, Mqtt
from flow.wires import config, delivery, fresh, padded_publish, padded_subscriber
from smbroker.dialects.mqtt import fields as f
from smbroker.dialects.mqtt.packets import Ack, Auth, Connack, Connect, Disconnect, Ping, Publish, Results, Will

VERSIONS = [4, 5]


@pytest.fixture(scope="module", params=["log", "no-log"])
def broker(request: pytest.FixtureRequest) -> Iterator[Broker]:
    with Broker(*(["--no-log"] if request.param == "no-log" else []), kinds=KINDS) as broker:
        yield broker


def topic() -> str:
    return fresh().decode()


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


@pytest.mark.parametrize("version", VERSIONS)
def test_a_silent_client_is_ended_after_its_keep_alive(broker: Broker, version: int) -> None:
    begun = time.monotonic()
    client = Mqtt(broker, version=version, keep_alive=1)
    assert client.ended(0x8D)
    assert time.monotonic() - begun >= 1.5


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


def test_no_local_with_a_shared_subscription_is_an_error(broker: Broker) -> None:
    client = Mqtt(broker, version=5)
    with pytest.raises(AssertionError):
        client.subscribe("$share/g/x", no_local=True)
    assert client.closed()


def test_leading_wildcards_do_not_match_dollar_topics(broker: Broker) -> None:
    client = Mqtt(broker)
    client.subscribe("$SYS/broker/version")
    assert client.get().payload.startswith(b"smbroker version ")
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
    got = [[member.get().payload for _ in range(5)] for member in members]
    assert sorted(int(payload) for each in got for payload in each) == list(range(10))


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
    for client, back in (("stays", False), ("returns", True)):
        will = Will(f"{name}/{client}".encode(), b"dead", properties={f.WILL_DELAY: 1})
        Mqtt(broker, f"{name}{client}", version=5, will=will, properties=keep).drop()
        if back:
            Mqtt(broker, f"{name}{client}", version=5, clean=False, properties=keep)
    begun = time.monotonic()
    assert watcher.get().topic == f"{name}/stays".encode()
    assert time.monotonic() - begun > 0.5
    assert watcher.quiet()


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


def test_no_connect_within_the_time_ends_the_connection(tmp_path_factory: pytest.TempPathFactory) -> None:
    config = tmp_path_factory.mktemp("config") / "smb.toml"
    config.write_text("[mqtt]\nconnect_timeout = 0.2\n")
    with Broker("--no-log", "--config", str(config), kinds=("mqtt",)) as broker:
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


def test_sessions_are_limited(tmp_path_factory: pytest.TempPathFactory) -> None:
    config = tmp_path_factory.mktemp("config") / "smb.toml"
    config.write_text("[mqtt]\nmax_sessions = 3\n")
    with Broker("--no-log", "--config", str(config), kinds=("mqtt",)) as broker:
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
