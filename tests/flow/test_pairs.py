"""Every ordered pair of dialects: published in one, delivered in the other's own bytes."""

import socket
import struct
from collections.abc import Callable, Iterator

import pytest

from flow.house import Broker, Tcp, Udp

TOPIC = b"room/temperature"
DIALECTS = ("soh", "pipe", "semicolon", "padded", "typed")


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker() as broker:
        yield broker


def padded(*fields: bytes) -> bytes:
    return b"".join(field.ljust(64) for field in fields)


def typed_frame(topic: bytes, kind: int, content: bytes, address: tuple[str, int]) -> bytes:
    source = address[0].encode().ljust(16, b"\0") + struct.pack("!H", address[1])
    return topic.ljust(50, b"\0") + bytes([kind]) + content.ljust(1500, b"\0") + source + b"\r"


class Subscriber:
    """Subscribes in its dialect and makes sure of it; `take` gives the next message's bytes."""

    def __init__(self, broker: Broker, dialect: str, topic: bytes, name: str = "S1") -> None:
        self.dialect = dialect
        self.client: Udp | Tcp
        if dialect in ("soh", "pipe", "semicolon"):
            self.client = broker.udp()
            self.client.send({"soh": b"S", "pipe": b"S|", "semicolon": b"s"}[dialect] + topic)
            if dialect == "soh":
                assert self.client.receive() == b"A" + topic
            if dialect == "pipe":
                assert self.client.receive() == b"Hello Subscriber!"
            if dialect == "semicolon":  # no acknowledgement, but the console shows it once it is done
                broker.err.wait(f"127.0.0.1:{self.client.address[1]}:s")
        elif dialect == "padded":
            self.client = broker.tcp("padded")
            self.client.send(padded(b"Subscribe", topic))
            assert self.client.receive(64) == padded(b"SubAck")
        else:
            self.client = broker.tcp("typed")
            self.client.send(name.encode().ljust(11, b"\0") + b"s" + topic.ljust(50, b"\0") + b"\0\0")
            broker.out.wait(f"New client {name} connected")

    def take(self, size: int) -> bytes:
        if isinstance(self.client, Udp):
            return self.client.receive()
        return self.client.receive(size)


def publish(broker: Broker, dialect: str, topic: bytes, payload: bytes) -> tuple[str, int]:
    """Publishes and returns the address it came from."""
    client: Udp | Tcp
    if dialect == "padded":
        client = broker.tcp("padded")
        client.send(padded(b"Publish", topic, b"%d" % len(payload)) + payload)
        assert client.receive(64) == padded(b"PubAck")
        return client.address
    client = broker.udp("typed" if dialect == "typed" else "udp")
    datagrams: dict[str, bytes] = {
        "soh": b"\x01" + topic + b"\x02" + payload,
        "pipe": b"P|" + topic + b"|" + payload,
        "semicolon": b"p" + topic + b";" + payload,
        "typed": topic.ljust(50, b"\0") + b"\3" + payload,
    }
    client.send(datagrams[dialect])
    if dialect == "pipe":
        assert client.receive() == b"Hello Publisher!"
    return client.address


EXPECTED: dict[str, Callable[[bytes, bytes, tuple[str, int]], bytes]] = {
    "soh": lambda topic, payload, _: b"\x01" + topic + b"\x02" + payload,
    "pipe": lambda topic, payload, _: b"TOPIC: " + topic + b" - MESSAGE: " + payload,
    "semicolon": lambda topic, payload, _: topic + b";" + payload,
    "padded": lambda topic, payload, _: padded(b"Message", topic, b"%d" % len(payload)) + payload,
    "typed": lambda topic, payload, address: typed_frame(topic, 3, payload, address),
}


@pytest.mark.parametrize("receiving", DIALECTS)
@pytest.mark.parametrize("sending", DIALECTS)
def test_a_message_reaches_every_dialect(broker: Broker, sending: str, receiving: str) -> None:
    topic = b"%s/%s" % (sending.encode(), receiving.encode())
    subscriber = Subscriber(broker, receiving, topic, name=f"{sending[:3]}{receiving[:3]}")
    for payload in (b"21.5 degrees", b"", "grün; | \x02 /".encode()):
        address = publish(broker, sending, topic, payload)
        expected = EXPECTED[receiving](topic, payload, address)
        assert subscriber.take(len(expected)) == expected


NUMBERS = [
    (0, b"\1\0\0\0\x0a", b"-10"),
    (0, b"\0\xff\xff\xff\xff", b"4294967295"),
    (0, b"\1\0\0\0\0", b"0"),
    (1, b"\0\xe6", b"2.30"),
    (2, b"\0" + struct.pack("!IB", 12344321, 4), b"1234.4321"),
    (2, b"\1" + struct.pack("!IB", 2300, 2), b"-23.00"),
    (2, b"\0" + struct.pack("!IB", 5, 3), b"0.005"),
]


@pytest.mark.parametrize("receiving", DIALECTS)
@pytest.mark.parametrize(("kind", "content", "text"), NUMBERS)
def test_a_typed_number_is_its_decimal_text_elsewhere(
    broker: Broker, receiving: str, kind: int, content: bytes, text: bytes
) -> None:
    topic = b"n/" + receiving.encode() + b"/" + text
    subscriber = Subscriber(broker, receiving, topic, name=f"{receiving[:3]}{text.decode()[:6]}"[:10])
    client = broker.udp("typed")
    client.send(topic.ljust(50, b"\0") + bytes([kind]) + content)
    if receiving == "typed":
        zero = content.startswith(b"\1") and text == b"0"
        expected = typed_frame(topic, kind, b"\0" + content[1:] if zero else content, client.address)
    else:
        expected = EXPECTED[receiving](topic, text, ("", 0))
    assert subscriber.take(len(expected)) == expected


def test_a_subscriber_that_is_also_the_publisher_gets_its_own_message(broker: Broker) -> None:
    client = broker.udp()
    client.send(b"sown/topic")
    assert client.ask(b"pown/topic;x") == b"own/topic;x"


def test_one_peer_gets_one_copy_per_dialect(broker: Broker) -> None:
    client = broker.udp()
    for subscription in (b"sdup/x", b"sdup/#", b"s#", b"sdup/x"):
        client.send(subscription)
    assert client.ask(b"Sdup/x") == b"Adup/x"
    client.send(b"pdup/x;1")
    assert {client.receive(), client.receive()} == {b"dup/x;1", b"\x01dup/x\x021"}
    client.send(b"u")
    assert client.ask(b"pdup/x;2") == b"\x01dup/x\x022", "u leaves the other dialects' subscriptions alone"


UNFIT = [  # padded and typed subscribers cannot even name a topic that does not fit them
    ("soh", b"noslash", b"x", "topic_no_subtopic"),
    ("soh", b"a/\x02b", b"x", "topic_separator"),
    ("soh", b"u/long", b"x" * 4_095, "too_long"),
    ("semicolon", b"u/a;b", b"x", "topic_separator"),
    ("semicolon", b"u/long", b"x" * 508, "too_long"),
    ("pipe", b"u/a|b", b"x", "topic_separator"),
    ("typed", b"u/nul", b"a\0b", "payload_nul"),
    ("typed", b"u/long", b"x" * 1_501, "too_long"),
]


def test_what_does_not_fit_is_left_out_counted_and_reaches_others() -> None:
    with Broker() as broker:
        subscribers = {dialect: Subscriber(broker, dialect, b"#") for dialect in ("soh", "pipe", "semicolon")}
        nul, long = (Subscriber(broker, "typed", topic, name=topic.decode()) for topic in (b"u/nul", b"u/long"))
        publisher = broker.udp()

        def heard(dialect: str) -> list[bytes]:
            """Before the last message."""
            last = EXPECTED[dialect](b"last/one", b"x", ("", 0))
            return list(iter(subscribers[dialect].client.receive, last))

        for dialect, topic, payload, _ in UNFIT:
            other = "pipe" if dialect != "pipe" else "semicolon"
            publisher.send(b"P|%b|%b" % (topic, payload) if b"|" not in topic else b"p%b;%b" % (topic, payload))
            publisher.send(b"P|last/one|x")
            got = {each: heard(each) for each in subscribers}
            assert got[other] == [EXPECTED[other](topic, payload, ("", 0))]
            assert not got.get(dialect), "it is never cut short"
        assert long.take(1570) == typed_frame(b"u/long", 3, b"x" * 508, publisher.address), "the one that fits"
        assert long.client.silent()
        assert nul.client.silent()
        broker.stop()
        for counted in (
            *("soh topic_no_subtopic 1", "soh topic_separator 1", "soh too_long 1"),
            *("semicolon topic_separator 1", "semicolon too_long 3", "pipe topic_separator 1"),
            *("typed payload_nul 1", "typed too_long 2"),
        ):
            assert broker.err.has(counted), broker.err.all


def test_port_and_address_of_a_source_without_ipv4_are_zero() -> None:
    listen = ("--listen", "udp://[::1]:0")
    with Broker(*listen, kinds=("typed",)) as broker:
        port = broker.ports["udp"]
        subscriber = Subscriber(broker, "typed", b"six")
        with socket.socket(socket.AF_INET6, socket.SOCK_DGRAM) as publisher:
            publisher.sendto(b"psix;x", ("::1", port))
        expected = typed_frame(b"six", 3, b"x", ("0.0.0.0", 0))
        assert subscriber.take(1570) == expected
