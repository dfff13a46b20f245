"""What MQTT clients are told when they break a rule, that they hear it, and what they asked not to be told."""

import socket
import struct
from collections.abc import Iterator

import pytest

from flow.house import Broker
from flow.mqtt import Mqtt, topic
from flow.wires import config, half_closed
from smbroker.dialects.mqtt import fields as f
from smbroker.dialects.mqtt.packets import Ack, Connack, Connect, Disconnect, Publish, Results, Subscribe, Topics

LEVEL_5 = b"\0\4MQTT\5"


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    settings = config(tmp_path_factory.mktemp("faults"), "[mqtt]\nreceive_maximum = 10\n")
    with Broker(*settings, kinds=("mqtt",)) as broker:
        yield broker


BAD_CONNECTS = {
    "the reserved flag": (b"\3\0\0\0\0\1c", 0x81),
    "a property that is not for CONNECT": (b"\2\0\0\2\1\0\0\1c", 0x81),
    "a property twice": (b"\2\0\0\6\x21\0\1\x21\0\1\0\1c", 0x82),
    "a receive maximum of 0": (b"\2\0\0\3\x21\0\0\0\1c", 0x82),
    "a client id with NUL": (b"\2\0\0\0\0\1\0", 0x85),
    "more than its fields": (b"\2\0\0\0\0\1cc", 0x81),
    "a will without a response topic": (b"\6\0\0\0\0\1c\3\x08\0\0\0\1t\0\0", 0x82),
}


@pytest.mark.parametrize("name", BAD_CONNECTS)
def test_a_bad_connect_of_mqtt_5_is_told_why(broker: Broker, name: str) -> None:
    rest, reason = BAD_CONNECTS[name]
    client = Mqtt(broker, version=5, connect=False)
    client.tcp.send(bytes((0x10, len(LEVEL_5 + rest))) + LEVEL_5 + rest)
    assert client.expect(Connack) == Connack(False, reason)
    assert client.closed()


def test_3_1_does_not_reserve_the_lowest_flag(broker: Broker) -> None:
    client = Mqtt(broker, version=3, connect=False)
    client.tcp.send(b"\x10\x0f\0\6MQIsdp\3\3\0\0\0\1c")
    assert client.expect(Connack) == Connack()


@pytest.mark.parametrize("version", [3, 4, 5])
def test_only_3_1_sends_a_release_again_with_dup(broker: Broker, version: int) -> None:
    client = Mqtt(broker, "again", version=version)
    client.tcp.send(b"\x6a\2\0\1")
    if version == 3:
        assert client.expect(Ack) == Ack(f.PUBCOMP, 1)
    else:
        assert client.ended(0x81)


@pytest.mark.parametrize("first", [0x20, 0x90, 0xB0, 0xD0], ids=hex)
def test_packets_of_a_server_are_wrong_whatever_they_hold(broker: Broker, first: int) -> None:
    client = Mqtt(broker, version=5)
    client.tcp.send(bytes((first, 1, 0xFF)))
    assert client.ended(0x82)


def test_a_client_has_no_subscription_identifiers_to_publish(broker: Broker) -> None:
    client = Mqtt(broker, version=5)
    client.send(Publish(b"t", b"x", 1, packet_id=1, properties={f.SUBSCRIPTION_ID: [1]}))
    assert client.ended(0x82)


@pytest.mark.parametrize(("version", "reason"), [(4, 0), (5, 0x81)])
def test_an_empty_filter_ends_the_connection(broker: Broker, version: int, reason: int) -> None:
    for packet in (
        (b"\x82\6\0\1\0\0\0\0", b"\xa2\5\0\1\0\0\0") if version == 5 else (b"\x82\5\0\1\0\0\0", b"\xa2\4\0\1\0\0")
    ):
        client = Mqtt(broker, version=version)
        client.tcp.send(packet)
        assert client.ended(reason)


@pytest.mark.parametrize("text", ["$share/g", "$share//a", "$share/g/", "$share/+/a"])
def test_a_share_without_a_name_or_a_filter_ends_the_connection(broker: Broker, text: str) -> None:
    client = Mqtt(broker, version=5)
    client.send(Subscribe(1, [Topics(text.encode())]))
    assert client.ended(0x82)


def test_a_client_that_goes_on_sending_still_hears_why_it_was_ended(broker: Broker) -> None:
    client = Mqtt(broker, version=5)
    for number in range(1, 12):  # one more than the receive maximum
        client.send(Publish(b"t", b"x", 2, packet_id=number))
    assert half_closed(client.tcp.sock)
    for number in range(1, 11):
        client.send(Ack(f.PUBREL, number))
    assert [client.expect(Ack).kind for _ in range(10)] == [f.PUBREC] * 10
    assert client.expect(Disconnect).reason == 0x93
    assert client.closed()


def test_a_client_that_is_gone_before_it_hears_it(broker: Broker) -> None:
    """Its last acknowledgements come after its reset, and with them the end of the connection: nobody is told."""
    packets = b"".join(Publish(b"t", b"x", 2, packet_id=number).encode(5) for number in range(1, 12))
    for _ in range(20):
        client = Mqtt(broker, version=5)
        client.tcp.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        client.tcp.send(packets)
        client.tcp.sock.close()
    assert Mqtt(broker).publish(topic(), b"x", 1)
    assert not broker.err.has("a bug in the broker")


REFUSED = Subscribe(1, [Topics(b"a#")])


def test_reasons_are_not_explained_to_those_who_do_not_want_it(broker: Broker) -> None:
    for properties, explained in (({}, True), ({f.REQUEST_PROBLEM: 1}, True), ({f.REQUEST_PROBLEM: 0}, False)):
        client = Mqtt(broker, version=5, properties=properties)
        client.send(REFUSED)
        answer: Results = client.expect(Results)
        assert (answer.codes, f.REASON_STRING in answer.properties) == ([0x8F], explained)


def test_no_packet_is_larger_than_the_client_allows(broker: Broker) -> None:
    client = Mqtt(broker, "small", version=5, properties={f.MAXIMUM_PACKET_SIZE: 20})
    client.send(REFUSED)
    assert client.expect(Results) == Results(f.SUBACK, 1, [0x8F])
    client = Mqtt(broker, connect=False)
    client.tcp.send(Connect(5, "tiny", properties={f.MAXIMUM_PACKET_SIZE: 2}).encode())
    assert client.closed()


@pytest.mark.parametrize("qos", [1, 2])
def test_a_clean_session_counts_its_messages_from_1(broker: Broker, qos: int) -> None:
    publisher = Mqtt(broker)
    publisher.publish(topic(), b"before", qos)
    client, name = Mqtt(broker), topic()
    client.subscribe(name, qos=2)
    publisher.publish(name, b"x", qos)
    assert client.get().packet_id == 1
