"""typed from end to end: every rule of its section in DIALECTS.md, with a real broker and plain sockets.

Ids, the end and limits are in test_typed_clients.py.
"""

import ctypes
import errno
import os
import socket
import stat
import struct
from collections.abc import Iterator

import pytest

from flow.house import Broker
from flow.wires import (
    FRAME,
    TypedSubscriber,
    datagram,
    frame,
    identity,
    padded_publish,
    padded_subscriber,
    segments,
    subscription,
    unsubscription,
)

SYS_PIDFD_GETFD = 438


@pytest.fixture(scope="module", params=["log", "no log"])
def broker(request: pytest.FixtureRequest) -> Iterator[Broker]:
    with Broker(*(["--no-log"] if request.param == "no log" else [])) as broker:
        yield broker


def integer(sign: int, n: int) -> bytes:
    return struct.pack("!BI", sign, n)


def floating(sign: int, n: int, decimals: int) -> bytes:
    return struct.pack("!BIB", sign, n, decimals)


# --- publishers ---


VALUES = [
    (0, integer(0, 0), "0"),
    (0, integer(1, 10), "-10"),
    (0, integer(1, 2**32 - 1), "-4294967295"),
    (1, struct.pack("!H", 230), "2.30"),
    (1, struct.pack("!H", 0), "0.00"),
    (1, struct.pack("!H", 7), "0.07"),
    (1, struct.pack("!H", 65_535), "655.35"),
    (2, floating(0, 12_344_321, 4), "1234.4321"),
    (2, floating(0, 2_300, 2), "23.00"),
    (2, floating(1, 17, 0), "-17"),
    (2, floating(1, 1, 10), "-0.0000000001"),
    (2, floating(0, 5, 255), "0." + "0" * 254 + "5"),
    (3, b"text", "text"),
    (3, b"", ""),
    (3, "grün".encode(), "grün"),
    (3, b"x" * 1_500, "x" * 1_500),
]


@pytest.mark.parametrize(("kind", "content", "text"), VALUES, ids=lambda value: ascii(value)[:20])
def test_a_value_arrives_as_it_is_and_elsewhere_as_its_text(
    broker: Broker, kind: int, content: bytes, text: str
) -> None:
    topic = b"v/%d" % VALUES.index((kind, content, text))
    subscriber = TypedSubscriber(broker, topic, topic)
    other = broker.udp()
    assert other.ask(b"S|" + topic) == b"Hello Subscriber!"
    assert subscriber.takes(topic, content, kind)
    assert other.receive() == b"TOPIC: %b - MESSAGE: %b" % (topic, text.encode())


@pytest.mark.parametrize(
    ("kind", "content", "arrives", "text"),
    [
        (0, integer(1, 0), integer(0, 0), b"0"),
        (2, floating(1, 0, 2), floating(0, 0, 2), b"0.00"),
        (3, b"cut\0here", b"cut", b"cut"),
        (0, integer(1, 3) + b"\0" * 1_495, integer(1, 3), b"-3"),
    ],
    ids=["INT zero", "FLOAT zero", "STRING with NUL", "INT in 1,500 bytes"],
)
def test_what_a_value_does_not_need_is_left_out(
    broker: Broker, kind: int, content: bytes, arrives: bytes, text: bytes
) -> None:
    topic = b"w/" + text
    subscriber = TypedSubscriber(broker, topic, topic)
    other = broker.udp()
    assert other.ask(b"S|" + topic) == b"Hello Subscriber!"
    subscriber.publisher.send(datagram(topic, content, kind))
    assert subscriber.take() == frame(topic, arrives, subscriber.publisher.address, kind)
    assert other.receive() == b"TOPIC: %b - MESSAGE: %b" % (topic, text)


MALFORMED = [
    (b"", "too_short"),
    (b"t".ljust(50, b"\0"), "too_short"),
    (datagram(b"t", b"\0\0\0\0", 0), "too_short"),
    (datagram(b"t", b"\0", 1), "too_short"),
    (datagram(b"t", b"\0\0\0\0\0", 2), "too_short"),
    (datagram(b"t", b"x" * 5, 4), "unknown_type"),
    (datagram(b"t", b"x" * 5, 255), "unknown_type"),
    (datagram(b"t", b"x" * 1_501), "too_long"),
    (datagram(b"t", integer(0, 1) + b"\0" * 1_496, 0), "too_long"),
    (datagram(b"t", integer(2, 1), 0), "bad_sign"),
    (datagram(b"t", floating(255, 1, 0), 2), "bad_sign"),
    (datagram(b"", b"x"), "topic_empty"),
    (datagram(b"t\xff", b"x"), "topic_not_utf8"),
]


def test_malformed_datagrams_are_dropped_and_counted_without_a_reply() -> None:
    with Broker() as broker:
        subscriber = TypedSubscriber(broker, b"C1", b"t", b"last")
        everything = broker.udp()
        assert everything.ask(b"S|#") == b"Hello Subscriber!"
        for data, _ in MALFORMED:
            subscriber.publisher.send(data)
        assert subscriber.takes(b"last"), "and nothing before it"
        assert everything.receive() == b"TOPIC: last - MESSAGE: x"
        assert subscriber.publisher.silent()
        broker.stop()
        reasons = [reason for _, reason in MALFORMED]
        for reason in set(reasons):
            assert broker.err.has(f"{reason} {reasons.count(reason)}"), broker.err.all
        assert broker.err.has(f"warning: typed 127.0.0.1:{subscriber.publisher.address[1]}: ")


def test_a_topic_may_fill_its_field_and_bytes_after_a_nul_do_not_count(broker: Broker) -> None:
    full = b"f/" + b"t" * 48
    subscriber = TypedSubscriber(broker, b"full", full, b"f/nul")
    assert subscriber.takes(full)
    subscriber.publisher.send((b"f/nul\0rubbish" + b"\xff" * 50)[:50] + b"\3x")
    assert subscriber.take() == frame(b"f/nul", b"x", subscriber.publisher.address)


def test_publishers_and_subscribers_use_one_port_number_with_one_line(broker: Broker) -> None:
    lines = [line for line in broker.out.all if line.startswith("listening typed ")]
    assert lines == [f"listening typed 127.0.0.1 {broker.ports['typed']}"]


# --- what subscribers send ---


@pytest.mark.parametrize("sf", [0, 1, ord("0"), ord("1")])
def test_a_subscribe_has_53_bytes_or_55(broker: Broker, sf: int) -> None:
    topics = [b"s/%d/%d" % (sf, number) for number in range(4)]
    fields = [topic.ljust(50, b"\0") for topic in topics]
    flag = bytes([sf])
    subscriber = TypedSubscriber(broker, b"s%d" % sf)
    subscriber.send(
        b"s" + fields[0] + flag + b"\0"
        b"s" + fields[1] + b"\0" + flag + b"\0\0"
        b"s" + fields[2] + flag + b"\0"
        b"s" + fields[3] + b"\0" + flag + b"\0\0"
    )  # fmt: skip
    for topic in topics:
        assert subscriber.takes(topic)


def test_an_unsubscribe_has_52_bytes_or_51_with_a_newline_in_the_topic(broker: Broker) -> None:
    topics = [b"u/%d" % number for number in range(4)] + [b"u/" + b"x" * 48]
    subscriber = TypedSubscriber(broker, b"u", *topics, b"u/last")
    for topic in topics:
        assert subscriber.takes(topic)
    subscriber.send(
        unsubscription(topics[0])
        + b"u" + (topics[1] + b"\n").ljust(50, b"\0")
        + b"u" + (topics[2] + b" \n").ljust(50, b"\0")
        + unsubscription(topics[3])
        + b"u" + topics[4]
    )  # fmt: skip
    for topic in topics:
        subscriber.publisher.send(datagram(topic, b"x"))
    assert subscriber.takes(b"u/last"), "and nothing before it"


def test_an_unsubscribe_ends_that_topic_alone_and_for_that_client_alone(broker: Broker) -> None:
    leaving = TypedSubscriber(broker, b"leaving", b"e/1", b"e/2")
    staying = TypedSubscriber(broker, b"staying", b"e/1")
    leaving.send(unsubscription(b"e/1") + unsubscription(b"e/1") + unsubscription(b"e/unknown"))
    assert staying.takes(b"e/1")
    assert leaving.takes(b"e/2")


def test_nuls_before_a_command_are_skipped(broker: Broker) -> None:
    subscriber = TypedSubscriber(broker, b"nuls")
    subscriber.send(b"\0" * 1_000 + subscription(b"n/1") + b"\0" * 7 + unsubscription(b"n/1") + subscription(b"n/2"))
    subscriber.publisher.send(datagram(b"n/1", b"x"))
    assert subscriber.takes(b"n/2")


def test_commands_may_come_split_anywhere(broker: Broker) -> None:
    client = broker.tcp("typed")
    data = identity(b"split") + subscription(b"split/1") + unsubscription(b"split/1") + subscription(b"split/2", 1)
    for position in range(len(data)):
        client.send(data[position : position + 1])
    broker.out.wait("New client split connected")
    other = padded_subscriber(broker, b"split/2")
    publisher = broker.tcp("padded")
    while True:  # until the last subscription is heard of
        for topic in (b"split/1", b"split/2"):
            padded_publish(publisher, topic, b"x")
        assert other.receive(193)
        if not client.silent(0.05):
            break
    assert client.receive(FRAME - 1) == frame(b"split/2", b"x", publisher.address)[1:]


def test_an_id_has_up_to_ten_characters(broker: Broker) -> None:
    assert TypedSubscriber(broker, b"0123456789", b"ten").takes(b"ten")
    assert TypedSubscriber(broker, "größe".encode(), b"ten2").takes(b"ten2")


@pytest.mark.parametrize("first", [bytes(11), identity(b"") + subscription(b"t"), b"\0C1".ljust(11, b"\0"), b"x" * 11])
def test_an_empty_id_or_one_without_end_closes_the_connection(broker: Broker, first: bytes) -> None:
    lines = len(broker.out.all)
    client = broker.tcp("typed")
    client.send(first)
    assert client.closed()
    assert TypedSubscriber(broker, b"x%d" % client.address[1], b"empty").takes(b"empty")
    assert sum(f":{client.address[1]}." in line for line in broker.out.all[lines:]) == 0


@pytest.mark.parametrize("byte", [b"x", b"S", b"U", b"\n", b" ", b"\xff", b"1"])
def test_an_unknown_command_closes_the_connection(broker: Broker, byte: bytes) -> None:
    name = b"bad%d" % byte[0]
    subscriber = TypedSubscriber(broker, name, b"unknown")
    subscriber.client.send(subscription(b"unknown") + byte + subscription(b"never"))
    assert subscriber.client.closed()
    broker.out.wait(f"Client {name.decode()} disconnected.")
    returned = TypedSubscriber(broker, name)
    returned.publisher.send(datagram(b"never", b"x"))
    assert returned.takes(b"unknown"), "what came before it counts, what came after it does not"


def test_a_topic_that_is_no_topic_is_refused_and_the_connection_lives() -> None:
    with Broker() as broker:
        subscriber = TypedSubscriber(broker, b"C1")
        subscriber.send(subscription(b"\xff") + subscription(b"") + unsubscription(b"\xff") + subscription(b"t"))
        assert subscriber.takes(b"t")
        broker.err.wait("the topic is not UTF-8")
        broker.stop()
        assert broker.err.has("topic_not_utf8 2")
        assert broker.err.has("topic_empty 1")


def test_nothing_is_acknowledged(broker: Broker) -> None:
    subscriber = TypedSubscriber(broker, b"quiet")
    subscriber.client.send(subscription(b"q/1") + subscription(b"q/2") + unsubscription(b"q/2"))
    assert subscriber.client.silent()
    subscriber.publisher.send(datagram(b"q/1", b"x"))
    assert subscriber.publisher.silent()


# --- what subscribers get ---


def test_a_message_always_has_1570_bytes(broker: Broker) -> None:
    subscriber = TypedSubscriber(broker, b"frame", b"1570")
    subscriber.publisher.send(datagram(b"1570", integer(1, 10), 0))
    host, port = subscriber.publisher.address
    taken = subscriber.take()
    assert taken[:50] == b"1570" + b"\0" * 46
    assert taken[50:51] == b"\0"
    assert taken[51:1551] == b"\1\0\0\0\x0a" + b"\0" * 1_495
    assert taken[1551:1567] == host.encode() + b"\0" * 7
    assert taken[1567:1569] == bytes([port >> 8, port & 255])
    assert taken[1569:] == b"\r"
    assert subscriber.takes(b"1570", b"x" * 1_500)


def test_a_message_comes_in_one_write(broker: Broker) -> None:
    subscriber = TypedSubscriber(broker, b"write", b"write")
    for _ in range(5):
        before = segments(subscriber.client.sock)
        assert subscriber.takes(b"write")
        assert segments(subscriber.client.sock) == before + 1


def test_a_message_leaves_without_delay(broker: Broker) -> None:
    """TCP_NODELAY, read off the broker's own end of the connection."""
    client = TypedSubscriber(broker, b"nodelay").client
    flags = [
        end.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
        for end in brokers_sockets(broker)
        if peer_of(end) == client.address
    ]
    assert flags == [1]


def brokers_sockets(broker: Broker) -> Iterator[socket.socket]:
    handle = os.pidfd_open(broker.process.pid)
    try:
        for name in os.listdir(f"/proc/{broker.process.pid}/fd"):  # noqa: PTH208
            copy = ctypes.CDLL(None, use_errno=True).syscall(SYS_PIDFD_GETFD, handle, int(name), 0)
            if copy >= 0 and stat.S_ISSOCK(os.fstat(copy).st_mode):
                with socket.socket(fileno=copy) as sock:
                    yield sock
            elif copy >= 0:
                os.close(copy)
            elif ctypes.get_errno() != errno.EBADF:  # closed meanwhile
                pytest.skip(f"cannot look at the broker's sockets: {os.strerror(ctypes.get_errno())}")
    finally:
        os.close(handle)


def peer_of(sock: socket.socket) -> object:
    try:
        return sock.getpeername()
    except OSError:
        return None


def test_a_source_is_the_publishers_address_whatever_it_speaks(broker: Broker) -> None:
    subscriber = TypedSubscriber(broker, b"source", b"source/x")
    publisher = broker.tcp("padded")
    padded_publish(publisher, b"source/x", b"1")
    assert subscriber.take() == frame(b"source/x", b"1", publisher.address)
    for data in (b"psource/x;2", b"\x01source/x\x022", b"P|source/x|2"):
        client = broker.udp()
        client.send(data)
        assert subscriber.take() == frame(b"source/x", b"2", client.address)


def test_topics_are_exact(broker: Broker) -> None:
    subscriber = TypedSubscriber(broker, b"exact", b"x/#", b"x/+", b"#", b"x", b" s ")
    for topic in (b"x/y", b"x/", b"y", b"s", b" s"):
        subscriber.publisher.send(datagram(topic, b"x"))
    for topic in (b"x/#", b"x/+", b"#", b"x", b" s "):
        assert subscriber.takes(topic)


def test_what_does_not_fit_reaches_others_and_is_never_cut_short(broker: Broker) -> None:
    topic = b"fit/" + b"t" * 46
    subscriber = TypedSubscriber(broker, b"fit", topic)
    other = broker.udp()
    assert other.ask(b"S|#") == b"Hello Subscriber!"
    for sent, payload in ((topic + b"t", b"x"), (topic, b"x" * 1_501), (topic, b"a\0b"), (topic, b"x\0")):
        other.send(b"P|%b|%b" % (sent, payload))
        assert {other.receive(), other.receive()} == {b"Hello Publisher!", b"TOPIC: %b - MESSAGE: %b" % (sent, payload)}
    assert subscriber.takes(topic, b"x" * 1_500)


def test_subscribing_again_delivers_once(broker: Broker) -> None:
    subscriber = TypedSubscriber(broker, b"again", b"again", b"again")
    subscriber.send(subscription(b"again", 1) + subscription(b"again", 0) + subscription(b"again", 1))
    for content in (b"1", b"2"):
        assert subscriber.takes(b"again", content)
    subscriber.send(unsubscription(b"again") + subscription(b"again/last"))
    subscriber.publisher.send(datagram(b"again", b"3"))
    assert subscriber.takes(b"again/last"), "one unsubscribe ends it, however often it was subscribed"


def test_messages_come_in_order_and_glued(broker: Broker) -> None:
    subscriber = TypedSubscriber(broker, b"order", b"order")
    for number in range(500):
        subscriber.publisher.send(datagram(b"order", b"%d" % number))
    for number in range(500):
        assert subscriber.take() == frame(b"order", b"%d" % number, subscriber.publisher.address)
