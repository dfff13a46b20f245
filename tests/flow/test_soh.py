"""soh over a real socket: every rule of its section in DIALECTS.md."""

import socket
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from flow.house import LIMIT, Broker, Udp
from flow.peers import Peer, counts, frozen, relay, settled
from flow.wires import config


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker(kinds=("udp",)) as broker:
        yield broker


def subscriber(broker: Broker, *topics: bytes) -> Udp:
    client = broker.udp()
    for topic in topics:
        assert client.ask(b"S" + topic) == b"A" + topic
    return client


def received_until(client: Udp, last: bytes) -> list[bytes]:
    """What came before this datagram."""
    found = []
    while (datagram := client.receive()) != last:
        found.append(datagram)
    return found


ACKNOWLEDGED = [
    b"topic/subtopic",
    b"a/b/c",
    b"a/#",
    b"#/x",
    b"#/b/c",
    b"#/#",
    b"only",
    b"#",
    b"a|b/c",
    b"t" * 512 + b"/" + b"s" * 512,
    "größe/é".encode(),
]


@pytest.mark.parametrize("topic", ACKNOWLEDGED)
def test_a_subscription_is_acknowledged_with_what_was_received(broker: Broker, topic: bytes) -> None:
    assert broker.udp().ask(b"S" + topic) == b"A" + topic


def test_the_acknowledgement_comes_from_the_port_that_was_asked(broker: Broker) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as client:
        client.settimeout(LIMIT)
        client.sendto(b"Sa/from", ("127.0.0.1", broker.ports["udp"]))
        assert client.recvfrom(100) == (b"Aa/from", ("127.0.0.1", broker.ports["udp"]))


NOT_SUBSCRIPTIONS = [
    b"S",
    b"S/",
    b"S/b",
    b"Sa/",
    b"S" + b"t" * 513 + b"/s",
    b"S" + b"t" * 513,
    b"St/" + b"s" * 513,
    b"Sa/\0",
    b"Sa/\xff",
    b"Sa/" + b"s" * 5_000,
]


@pytest.mark.parametrize("datagram", NOT_SUBSCRIPTIONS)
def test_a_bad_subscription_gets_no_answer(broker: Broker, datagram: bytes) -> None:
    client = broker.udp()
    client.send(datagram)
    assert client.ask(b"Sstill/there") == b"Astill/there"


MATCHES = [
    (b"a/b", [b"a/b"], [b"a/c", b"b/b", b"a/b/c", b"a/bb", b"A/b"]),
    (b"a/b/c", [b"a/b/c"], [b"a/b", b"a/b/d", b"a/b/c/d"]),
    (b"a/#", [b"a/b", b"a/b/c", b"a//"], [b"b/a", b"aa/b"]),
    (b"#/x", [b"a/x", b"b/x"], [b"a/y", b"a/x/y", b"a/y/x", b"$a/x"]),
    (b"#/b/c", [b"a/b/c"], [b"a/b", b"a/b/c/d"]),
    (b"#/#", [b"a/b", b"a/b/c"], [b"$a/b"]),
    (b"#", [b"a/b", b"a/b/c"], [b"$a/b"]),
    (b"only", [b"only/a", b"only/a/b"], [b"other/a", b"only2/a"]),
    (b"a/b/#", [b"a/b/#"], [b"a/b/c", b"a/b"]),
    (b"a/#/c", [b"a/#/c"], [b"a/b/c"]),
    (b"a#/b", [b"a#/b"], [b"ab/b"]),
    (b"+/b", [b"+/b"], [b"a/b"]),
]


@pytest.mark.parametrize(("subscription", "wanted", "unwanted"), MATCHES)
def test_what_a_subscription_matches(
    broker: Broker, subscription: bytes, wanted: list[bytes], unwanted: list[bytes]
) -> None:
    client = subscriber(broker, subscription, b"the/last")
    for topic in [*unwanted, *wanted, b"the/last"]:
        client.send(b"\x01" + topic + b"\x02m")
    expected = [b"\x01" + topic + b"\x02m" for topic in wanted]
    assert received_until(client, b"\x01the/last\x02m") == expected


MESSAGES = [b"", b"text", b"\x02", b"a\x02b/c\x02", b"/", b"#", b"\0", bytes(range(256)), b"\n\n", b"S|x", b"x" * 4_000]


def test_a_message_is_handed_on_unchanged_and_in_order(broker: Broker) -> None:
    client, publisher = subscriber(broker, b"as/is"), broker.udp()
    for message in MESSAGES:
        publisher.send(b"\x01as/is\x02" + message)
    assert [client.receive() for _ in MESSAGES] == [b"\x01as/is\x02" + message for message in MESSAGES]


def test_the_longest_topic_and_subtopic_are_handed_on(broker: Broker) -> None:
    topic = b"t" * 512 + b"/" + b"s" * 512
    client = subscriber(broker, topic)
    assert client.ask(b"\x01" + topic + b"\x02m") == b"\x01" + topic + b"\x02m"


NOT_PUBLISHES = {
    b"\x01": "malformed",
    b"\x01a/b": "malformed",
    b"\x01a\x02b/c": "topic_no_subtopic",
    b"\x01\x02m": "topic_no_subtopic",
    b"\x01/b\x02m": "topic_empty",
    b"\x01a/\x02m": "subtopic_empty",
    b"\x01#/b\x02m": "topic_wildcard",
    b"\x01a/#\x02m": "topic_wildcard",
    b"\x01#/#\x02m": "topic_wildcard",
    b"\x01" + b"t" * 513 + b"/b\x02m": "topic_too_long",
    b"\x01a/" + b"s" * 513 + b"\x02m": "subtopic_too_long",
    b"\x01a/\0\x02m": "topic_nul",
    b"\x01a/\xff\x02m": "topic_not_utf8",
    b"\x01a/b\x02" + b"m" * 4_092: "too_long",
}


def test_a_bad_publish_reaches_nobody_gets_no_answer_and_is_told_and_counted() -> None:
    with relay() as broker:
        subscribers = [Peer(broker) for _ in range(3)]
        for dialect, peer in zip(("soh", "pipe", "semicolon"), subscribers, strict=True):
            peer.subscribe(dialect, b"#")
        publisher = Peer(broker)
        publisher.subscribe("soh", b"the/last")
        for datagram in NOT_PUBLISHES:
            publisher.send(datagram)
            publisher.send(b"\x01the/last\x02m")
            assert publisher.receive() == b"\x01the/last\x02m", datagram
            expected = [b"\x01the/last\x02m", b"TOPIC: the/last - MESSAGE: m", b"the/last;m"]
            assert [peer.receive() for peer in subscribers] == expected, datagram
        assert counts(broker) == Counter(NOT_PUBLISHES.values())
        told = [line for line in broker.err.all if line.startswith("warning: soh {}:{}: ".format(*publisher.address))]
        assert len(told) == len(NOT_PUBLISHES)


def test_4096_bytes_come_in_and_reach_every_dialect_but_soh_which_holds_4095() -> None:
    with relay() as broker:
        client, other, publisher = Peer(broker), Peer(broker), Peer(broker)
        client.subscribe("soh", b"a/b")
        other.subscribe("pipe", b"a/b")
        longest, fits = b"\x01a/b\x02" + b"m" * 4_091, b"\x01a/b\x02" + b"m" * 4_090
        assert (len(longest), len(fits)) == (4_096, 4_095)
        publisher.send(longest)
        assert other.receive() == b"TOPIC: a/b - MESSAGE: " + b"m" * 4_091
        publisher.send(fits)
        assert other.receive() == b"TOPIC: a/b - MESSAGE: " + b"m" * 4_090
        assert client.receive() == fits, "not the longer one, and not cut short"
        assert counts(broker) == {"soh too_long": 1}


def test_the_acknowledgement_comes_before_any_message(broker: Broker) -> None:
    client, publisher = broker.udp(), broker.udp()
    with frozen(broker):
        publisher.send(b"\x01first/ack\x02before")
        client.send(b"Sfirst/ack")
        publisher.send(b"\x01first/ack\x02after")
    assert client.receive() == b"Afirst/ack"
    assert client.receive() == b"\x01first/ack\x02after"


def test_the_acknowledgement_comes_first_while_others_publish(broker: Broker) -> None:
    enough = threading.Event()

    def publish(publisher: Udp) -> None:
        while not enough.is_set():  # the answer keeps it from sending more than the broker's socket holds
            publisher.ask(b"P|busy/topic|m")

    threads = [threading.Thread(target=publish, args=(broker.udp(),)) for _ in range(3)]
    for thread in threads:
        thread.start()
    try:
        subscriptions = [b"busy/topic", b"busy/#", b"#/topic", b"#/#"] * 10
        firsts = [broker.udp().ask(b"S" + topic) for topic in subscriptions]
    finally:
        enough.set()
        for thread in threads:
            thread.join()
    assert firsts == [b"A" + topic for topic in subscriptions]


def test_the_same_subscription_again_is_acknowledged_again_and_not_stored_twice(tmp_path: Path) -> None:
    with relay(*config(tmp_path, "[udp]\nmax_subscriptions = 1")) as broker:
        client = broker.udp()
        assert [client.ask(b"Sa/b") for _ in range(3)] == [b"Aa/b"] * 3
        assert client.ask(b"\x01a/b\x021") == b"\x01a/b\x021"
        assert client.ask(b"\x01a/b\x022") == b"\x01a/b\x022", "one copy"
        client.send(b"Sa/c")
        assert client.ask(b"Sa/b") == b"Aa/b", "a further one is refused, without a word; the old one is still known"
        assert broker.udp().ask(b"S|a/b").startswith(b"ERROR: "), "another address is another subscription"


def test_another_topic_is_a_further_subscription(broker: Broker) -> None:
    client = subscriber(broker, b"further/1", b"further/2", b"further/#")
    for topic in (b"further/1", b"further/2", b"further/3"):
        assert client.ask(b"\x01" + topic + b"\x02m") == b"\x01" + topic + b"\x02m", "one copy each"


def test_a_topic_alone_is_the_same_subscription_as_with_the_wildcard(broker: Broker) -> None:
    client = subscriber(broker, b"alone", b"alone/#")
    assert client.ask(b"\x01alone/x\x021") == b"\x01alone/x\x021"
    assert client.ask(b"\x01alone/x\x022") == b"\x01alone/x\x022"


def test_two_ports_of_one_address_are_two_subscribers(broker: Broker) -> None:
    clients = [subscriber(broker, b"two/ports") for _ in range(2)]
    broker.udp().send(b"\x01two/ports\x02m")
    assert [client.receive() for client in clients] == [b"\x01two/ports\x02m"] * 2


def test_there_is_no_unsubscribe(broker: Broker) -> None:
    client = subscriber(broker, b"no/way")
    for datagram in (b"u", b"uno/way", b"U", b"Uno/way", b"A", b""):
        client.send(datagram)
    settled(broker)
    assert client.ask(b"\x01no/way\x02m") == b"\x01no/way\x02m"


def test_a_late_subscriber_gets_nothing_old(broker: Broker) -> None:
    broker.udp().send(b"\x01old/news\x021")
    settled(broker)
    client = subscriber(broker, b"old/news")
    assert client.ask(b"\x01old/news\x022") == b"\x01old/news\x022"


UNKNOWN = [b"", b"A", b"Aa/b", b"P", b"Pa|b", b"\x02", b"U", b"{}", b"\0S", b" Sa/b", b"\xff"]


def test_what_no_dialect_begins_with_is_dropped_without_an_answer() -> None:
    with relay() as broker:
        client = broker.udp()
        for datagram in UNKNOWN:
            client.send(datagram)
        assert client.ask(b"Sa/b") == b"Aa/b"
        broker.err.wait(f"warning: 127.0.0.1:{client.address[1]}: no known dialect begins like 'Aa/b'")
        assert counts(broker) == {"unknown_dialect": len(UNKNOWN)}


def test_the_first_bytes_tell_the_three_dialects_apart(broker: Broker) -> None:
    client = broker.udp()
    assert client.ask(b"S|one/x") == b"Hello Subscriber!"
    assert client.ask(b"Sone/x") == b"Aone/x"
    client.send(b"sone/x")
    expected = {b"TOPIC: one/x - MESSAGE: m", b"\x01one/x\x02m", b"one/x;m"}
    for publish in (b"pone/x;m", b"\x01one/x\x02m"):
        client.send(publish)
        assert {client.receive() for _ in expected} == expected
    client.send(b"P|one/x|m")
    assert {client.receive() for _ in range(4)} == expected | {b"Hello Publisher!"}


def test_a_listener_of_soh_alone_takes_every_datagram_as_soh() -> None:
    with relay(kinds=("soh",)) as broker:
        client = broker.udp("soh")
        assert client.ask(b"S|a/b") == b"A|a/b"
        assert client.ask(b"\x01|a/b\x02m") == b"\x01|a/b\x02m"
        for other in (b"s|a/b", b"P|t|m", b"p|a/b;m", b"u", b""):
            client.send(other)
        assert client.ask(b"\x01|a/b\x02m") == b"\x01|a/b\x02m"
        assert sum(counts(broker).values()) == 5


def test_a_payload_over_the_maximum_is_refused(tmp_path: Path) -> None:
    with relay(*config(tmp_path, "max_payload = 10")) as broker:
        client = subscriber(broker, b"a/b")
        client.send(b"\x01a/b\x02" + b"m" * 11)
        assert client.ask(b"\x01a/b\x02" + b"m" * 10) == b"\x01a/b\x02" + b"m" * 10
        assert counts(broker) == {"payload_too_long": 1}
