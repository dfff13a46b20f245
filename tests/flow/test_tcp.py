"""The `tcp` listener: padded and typed on one port, told apart by their first bytes."""

import socket
from collections.abc import Iterator

import pytest

from flow.house import Broker
from flow.wires import (
    DISCONNECT,
    PING,
    PONG,
    PUBACK,
    SUBACK,
    TypedSubscriber,
    alive,
    datagram,
    delivery,
    frame,
    fresh,
    gets_all,
    identity,
    padded,
    padded_publish,
    padded_subscriber,
    publication,
    subscription,
)

WORDS = (b"Publish", b"Subscribe", b"PubAck", b"SubAck", b"Message", b"Ping", b"Pong", b"Disconnect")


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker() as broker:
        yield broker


def test_padded_and_typed_share_one_port(broker: Broker) -> None:
    padded_client = padded_subscriber(broker, b"both", kind="tcp")
    typed_client = TypedSubscriber(broker, b"both", b"both", kind="tcp")
    padded_publish(broker.tcp("tcp"), b"both", b"x")
    assert padded_client.receive(193) == delivery(b"both", b"x")
    assert typed_client.take()[50:53] == b"\3x\0"
    assert typed_client.takes(b"both", b"y")
    assert padded_client.receive(193) == delivery(b"both", b"y")


@pytest.mark.parametrize("word", [b"Ping", b"ping", b"PING", b"pInG"])
@pytest.mark.parametrize("spaces", [0, 2, 100])
def test_a_known_word_padded_with_spaces_is_padded(broker: Broker, word: bytes, spaces: int) -> None:
    client = broker.tcp("tcp")
    client.send(b" " * spaces + padded(word))
    assert client.receive(64) == PONG


@pytest.mark.parametrize("word", WORDS)
def test_every_word_of_padded_is_known(broker: Broker, word: bytes) -> None:
    """Typed would take the first 11 bytes for an id and close the connection."""
    client, title = broker.tcp("tcp"), fresh()
    client.send(padded(word))
    client.send({b"Publish": padded(title, b"1") + b"x", b"Subscribe": padded(title)}.get(word, b""))
    if word == b"Disconnect":
        assert client.closed()
        return
    expected = {b"Publish": PUBACK, b"Subscribe": SUBACK, b"Ping": PONG}.get(word)
    assert expected is None or client.receive(64) == expected
    assert alive(client)


def test_a_subscribe_of_66_bytes_is_understood(broker: Broker) -> None:
    client = broker.tcp("tcp")
    client.send(b"Subscribe".ljust(66) + padded(b"66"))
    assert client.receive(64) == SUBACK


def test_the_first_bytes_may_come_one_by_one(broker: Broker) -> None:
    client = broker.tcp("tcp")
    data = b"  " + padded(b"Subscribe", b"slowly") + publication(b"slowly", b"x")
    for position in range(len(data)):
        client.send(data[position : position + 1])
    assert client.receive(64) == SUBACK
    assert gets_all(client, PUBACK, delivery(b"slowly", b"x"))
    slow = broker.tcp("tcp")
    for byte in identity(b"pub") + subscription(b"slowly"):
        slow.send(bytes([byte]))
    broker.out.wait("New client pub connected")


@pytest.mark.parametrize("size", [4_000, 5_000, 100_000, 1_000_000])
def test_much_may_come_with_the_first_bytes(broker: Broker, size: int) -> None:
    client = broker.tcp("tcp")
    client.send(publication(b"much", b"x" * size))
    assert client.receive(64) == PUBACK


def test_many_commands_may_come_with_the_first_bytes(broker: Broker) -> None:
    client = broker.tcp("tcp")
    client.send(identity(b"many") + b"".join(subscription(b"many/%d" % number) for number in range(1_000)))
    broker.out.wait("New client many connected")
    publisher = broker.udp("typed")
    publisher.send(datagram(b"many/0", b"x"))
    assert client.receive(1570) == frame(b"many/0", b"x", publisher.address)
    client = broker.tcp("tcp")
    client.send(PING * 1_000)
    assert client.receive(64 * 1_000) == PONG * 1_000


@pytest.mark.parametrize("name", [b"C1", b"Ping", b"ping", b"Disconnect", b"P", b"Ping 1", b"Pong  Ping", b" C2", b"s"])
def test_anything_else_is_typed(broker: Broker, name: bytes) -> None:
    topic = b"else/" + name
    assert TypedSubscriber(broker, name, topic, kind="tcp").takes(topic)


def test_an_id_is_one_client_on_whatever_listener(broker: Broker) -> None:
    here = TypedSubscriber(broker, b"here", b"here")
    there = broker.tcp("tcp")
    there.send(identity(b"here"))
    assert there.closed()
    broker.out.wait("Client here already connected.")
    here.client.sock.close()
    broker.out.wait("Client here disconnected.")
    assert TypedSubscriber(broker, b"here", kind="tcp").takes(b"here")


@pytest.mark.parametrize("first", [b"Hello".ljust(64), b"x" * 5_000, b"\0" * 11])
def test_what_is_no_dialect_is_closed_and_the_listener_goes_on(broker: Broker, first: bytes) -> None:
    client = broker.tcp("tcp")
    client.send(first)
    assert client.closed()
    assert alive(broker.tcp("tcp"))


def test_spaces_forever_are_closed(broker: Broker) -> None:
    client = broker.tcp("tcp")
    try:
        for _ in range(100):
            client.send(b" " * 100_000)
    except ConnectionError:
        pass
    assert client.closed()
    assert alive(broker.tcp("tcp"))


def test_padded_here_obeys_its_rules(broker: Broker) -> None:
    client = padded_subscriber(broker, b"rules", kind="tcp")
    client.send(padded(b"Hello"))
    assert alive(client), "an unknown command after the first is ignored"
    client.send(DISCONNECT)
    assert client.closed()
    bad = broker.tcp("tcp")
    bad.send(padded(b"Publish", b"rules", b"x"))
    assert bad.closed()


def test_typed_here_obeys_its_rules(broker: Broker) -> None:
    subscriber = TypedSubscriber(broker, b"rules", b"rules", kind="tcp")
    subscriber.client.send(b"x")
    assert subscriber.client.closed()
    broker.out.wait("Client rules disconnected.")
    probe = broker.tcp("tcp")
    probe.sock.shutdown(socket.SHUT_WR)
    assert probe.closed()
