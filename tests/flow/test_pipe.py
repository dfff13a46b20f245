"""pipe over a real socket: every rule of its section in DIALECTS.md."""

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from flow.house import Broker, Udp
from flow.peers import Peer, counts, frozen, relay
from flow.wires import config

PUBLISHED, SUBSCRIBED, ERROR = b"Hello Publisher!", b"Hello Subscriber!", b"ERROR: "
MAX_DATAGRAM = 65_507  # what UDP over IPv4 carries


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker(kinds=("udp",)) as broker:
        yield broker


def subscriber(broker: Broker, *topics: bytes) -> Udp:
    client = broker.udp()
    for topic in topics:
        assert client.ask(b"S|" + topic) == SUBSCRIBED
    return client


def delivered(topic: bytes, message: bytes) -> bytes:
    return b"TOPIC: " + topic + b" - MESSAGE: " + message


def test_a_subscribe_is_answered_with_17_bytes_and_a_publish_with_16(broker: Broker) -> None:
    assert broker.udp().ask(b"S|a") == SUBSCRIBED
    assert broker.udp().ask(b"P|nobody/listens|m") == PUBLISHED
    assert (len(SUBSCRIBED), len(PUBLISHED)) == (17, 16)


MESSAGES = [b"", b"text", b"|", b"a|b||c|", b"\0", bytes(range(256)), b" - MESSAGE: ", b"line\nline", b"m" * 600]


def test_the_message_keeps_all_its_bytes_and_the_order_holds(broker: Broker) -> None:
    client, publisher = subscriber(broker, b"t/u"), broker.udp()
    for message in MESSAGES:
        assert publisher.ask(b"P|t/u|" + message) == PUBLISHED
    assert [client.receive() for _ in MESSAGES] == [delivered(b"t/u", message) for message in MESSAGES]


MATCHES = [
    (b"a", [b"a"], [b"a/b", b"b", b"A", b"aa"]),
    (b"a/b", [b"a/b"], [b"a", b"a/b/c", b"a/"]),
    (b"a/", [b"a/"], [b"a", b"a/b"]),
    (b"#", [b"a", b"a/b", b"a/b/c", b"/", b"+"], []),
    (b"a/#", [b"a/#"], [b"a", b"a/b", b"a/b/c"]),
    (b"#/b", [b"#/b"], [b"a/b"]),
    (b"+", [b"+"], [b"a"]),
    (b"##", [b"##"], [b"a"]),
    ("größe".encode(), ["größe".encode()], [b"gr"]),
    (b"with space", [b"with space"], [b"with"]),
]


@pytest.mark.parametrize(("subscription", "wanted", "unwanted"), MATCHES)
def test_a_subscription_is_exact_or_the_wildcard_alone(
    broker: Broker, subscription: bytes, wanted: list[bytes], unwanted: list[bytes]
) -> None:
    client, publisher = subscriber(broker, subscription, b"last"), broker.udp()
    for topic in [*unwanted, *wanted, b"last"]:
        assert publisher.ask(b"P|" + topic + b"|m") == PUBLISHED
    for topic in [*wanted, b"last"]:
        assert client.receive() == delivered(topic, b"m")


BAD = {
    b"P|": "malformed",
    b"P|t": "malformed",
    b"P||m": "topic_empty",
    b"P||": "topic_empty",
    b"S|": "topic_empty",
    b"P|#|m": "topic_wildcard",
    b"P|\xff|m": "topic_not_utf8",
    b"P|a\0b|m": "topic_nul",
    b"P|$a|m": "topic_reserved",
    b"S|\xff": "topic_not_utf8",
    b"S|a\0b": "topic_nul",
}


def test_what_is_bad_is_answered_with_a_reason_counted_and_reaches_nobody() -> None:
    with relay() as broker:
        subscribers = [Peer(broker) for _ in range(3)]
        for dialect, peer in zip(("soh", "pipe", "semicolon"), subscribers, strict=True):
            peer.subscribe(dialect, b"#")
        client = broker.udp()
        for datagram in BAD:
            answer = client.ask(datagram)
            assert answer.startswith(ERROR), datagram
            assert len(answer) > len(ERROR), datagram
            assert answer.isascii(), datagram
        assert client.ask(b"P|the/last|m") == PUBLISHED
        expected = [b"\x01the/last\x02m", delivered(b"the/last", b"m"), b"the/last;m"]
        assert [peer.receive() for peer in subscribers] == expected
        reasons = counts(broker)
        assert reasons == {reason: list(BAD.values()).count(reason) for reason in BAD.values()}
        told = [line for line in broker.err.all if line.startswith("warning: pipe {}:{}: ".format(*client.address))]
        assert len(told) == len(BAD)


def test_a_bad_subscribe_subscribes_to_nothing(broker: Broker) -> None:
    client = broker.udp()
    assert client.ask(b"S|").startswith(ERROR)
    assert client.ask(b"P|x|m") == PUBLISHED


def test_every_datagram_with_its_first_bytes_gets_exactly_one_answer(broker: Broker) -> None:
    chance = random.Random(8)
    client = broker.udp()
    for _ in range(300):
        datagram = chance.choice([b"P|", b"S|"]) + bytes(
            chance.choice(b"ab/#|+;$\x01\x02\0\xff\xc3\xa4 ") for _ in range(chance.randrange(8))
        )
        client.send(datagram)
        answers = [client.receive()]
        while not answers[-1].startswith((b"Hello ", ERROR)):  # it may have subscribed to what it then publishes
            answers.append(client.receive())
        assert all(answer.startswith(b"TOPIC: ") for answer in answers[:-1]), datagram
        assert answers[-1] in (PUBLISHED, SUBSCRIBED) or answers[-1].startswith(ERROR), datagram
        assert client.ask(b"Smark/x") == b"Amark/x", (datagram, "one answer, no more")


def test_each_of_several_in_one_read_gets_its_answer(broker: Broker) -> None:
    client = broker.udp()
    with frozen(broker):
        for datagram in (b"P|several|1", b"P|", b"P|several|2", b"S|", b"P|#|3"):
            client.send(datagram)
    answers = [client.receive() for _ in range(5)]
    assert answers.count(PUBLISHED) == 2
    assert sum(answer.startswith(ERROR) for answer in answers) == 3
    assert client.ask(b"Smark/x") == b"Amark/x"


@pytest.mark.parametrize("datagram", [b"P", b"Px", b"P;a|b", b"A|b", b"p|a|b", b"H|a"])
def test_what_only_looks_like_it_gets_no_answer(broker: Broker, datagram: bytes) -> None:
    client = broker.udp()
    client.send(datagram)
    assert client.ask(b"P|a|b") == PUBLISHED


def test_the_size_limit_is_the_datagrams_own() -> None:
    with relay() as broker:
        client, publisher = subscriber(broker, b"t"), broker.udp()
        room = MAX_DATAGRAM - len(delivered(b"t", b""))
        fits, too_long = b"m" * room, b"m" * (MAX_DATAGRAM - len(b"P|t|"))
        assert publisher.ask(b"P|t|" + too_long) == PUBLISHED, "others might hold it"
        assert publisher.ask(b"P|t|" + b"m" * (room + 1)) == PUBLISHED
        assert publisher.ask(b"P|t|" + fits) == PUBLISHED
        assert client.receive() == delivered(b"t", fits), "not the longer ones, and not cut short"
        assert counts(broker) == {"pipe too_long": 2}


def test_the_longest_topic_is_answered(broker: Broker) -> None:
    assert broker.udp().ask(b"S|" + b"t" * (MAX_DATAGRAM - 2)) == SUBSCRIBED
    assert broker.udp().ask(b"P|" + b"t" * (MAX_DATAGRAM - 3) + b"|") == PUBLISHED
    assert broker.udp().ask(b"P|" + b"t" * (MAX_DATAGRAM - 2)).startswith(ERROR)


def test_a_late_subscriber_gets_nothing_old(broker: Broker) -> None:
    assert broker.udp().ask(b"P|old|1") == PUBLISHED
    client = subscriber(broker, b"old")
    assert broker.udp().ask(b"P|old|2") == PUBLISHED
    assert client.receive() == delivered(b"old", b"2")


def test_the_answer_to_subscribe_comes_before_any_message(broker: Broker) -> None:
    client, publisher = broker.udp(), broker.udp()
    with frozen(broker):
        publisher.send(b"P|first/answer|before")
        client.send(b"S|first/answer")
        publisher.send(b"P|first/answer|after")
    assert [client.receive(), client.receive()] == [SUBSCRIBED, delivered(b"first/answer", b"after")]
    assert [publisher.receive(), publisher.receive()] == [PUBLISHED] * 2


def test_one_that_publishes_to_itself_gets_answer_and_message(broker: Broker) -> None:
    client = subscriber(broker, b"self")
    client.send(b"P|self|m")
    assert {client.receive(), client.receive()} == {PUBLISHED, delivered(b"self", b"m")}


def test_the_same_subscription_again_is_answered_again_and_delivers_once(broker: Broker) -> None:
    client = subscriber(broker, b"again", b"again", b"#")
    for number in (b"1", b"2"):
        assert broker.udp().ask(b"P|again|" + number) == PUBLISHED
        assert client.receive() == delivered(b"again", number)


def test_a_topic_with_a_bar_reaches_other_dialects_but_not_pipe() -> None:
    with relay() as broker:
        client, other = subscriber(broker, b"#"), Peer(broker)
        other.subscribe("semicolon", b"#")
        other.send(b"pa|b;m")
        assert other.receive() == b"a|b;m"
        other.send(b"pa;m")
        assert client.receive() == delivered(b"a", b"m")
        assert counts(broker) == {"pipe topic_separator": 1}


def test_a_limit_is_answered_too(tmp_path: Path) -> None:
    settings = config(tmp_path, "max_payload = 3\n[udp]\nmax_subscriptions = 1")
    with relay(*settings) as broker:
        client = subscriber(broker, b"t")
        assert client.ask(b"S|u").startswith(ERROR)
        assert client.ask(b"P|t|long").startswith(ERROR)
        client.send(b"P|t|mmm")
        assert {client.receive(), client.receive()} == {PUBLISHED, delivered(b"t", b"mmm")}
        assert counts(broker) == {"too_many_subscriptions": 1, "payload_too_long": 1}


def test_a_listener_of_pipe_alone_answers_only_its_own() -> None:
    with relay(kinds=("pipe",)) as broker:
        client = broker.udp("pipe")
        for other in (b"Sa/b", b"sa", b"pa;m", b"u", b"\x01a/b\x02m", b""):
            client.send(other)
        assert client.ask(b"S|a") == SUBSCRIBED
        client.send(b"P|a|m")
        assert {client.receive(), client.receive()} == {PUBLISHED, delivered(b"a", b"m")}
        assert counts(broker) == {"unknown_dialect": 6}
