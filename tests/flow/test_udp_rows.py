"""Datagrams that one read brings: rows of publishes alike are taken together, and nobody can tell."""

import struct
from collections.abc import Iterator
from pathlib import Path

import pytest

from flow.house import Broker, wait_for
from flow.peers import DIALECTS, FRAMES, Peer, frozen
from flow.wires import TypedSubscriber, config, frame
from flow.wires import datagram as typed_datagram

MOST = 100  # bytes of a payload
PUBLISH = {"soh": b"\x01%b\x02%b", "pipe": b"P|%b|%b", "semicolon": b"p%b;%b"}
MALFORMED = {"soh": b"\x01a/b", "pipe": b"P|a/b", "semicolon": b"pa/b"}
HELLO = b"Hello Publisher!"


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    folder: Path = tmp_path_factory.mktemp("rows")
    with Broker("--no-log", *config(folder, f"max_payload = {MOST}\n"), kinds=("udp",)) as broker:
        yield broker


def some(dialect: str) -> list[tuple[bytes, bytes | None]]:
    """Datagrams, and what a subscriber to all gets for each."""
    separator = PUBLISH[dialect][-3:-2]
    messages: list[tuple[bytes, bytes]] = [(b"a/b", b"%02d" % number) for number in range(20)]
    messages += [(b"a/b", b"longer"), (b"a/b", b""), (b"a/c", b"another"), (b"a/b", separator * 2)]
    messages += [(b"a/b", b"%d" % number) for number in range(20)]
    found: list[tuple[bytes, bytes | None]] = [
        (PUBLISH[dialect] % message, FRAMES[dialect] % message) for message in messages
    ]
    odd = [PUBLISH[dialect] % (b"a/b", b"x" * (MOST + 1)), MALFORMED[dialect], PUBLISH[dialect] % (b"$a/b", b"1"), b""]
    for place, datagram in zip((5, 8, 15, 30), odd, strict=True):
        found.insert(place, (datagram, None))
    return [*found, (PUBLISH[dialect] % (b"a/b", b"end"), FRAMES[dialect] % (b"a/b", b"end"))]


@pytest.mark.parametrize("dialect", DIALECTS)
def test_rows_with_odd_ones_among_them(broker: Broker, dialect: str) -> None:
    subscriber, publisher = Peer(broker), Peer(broker)
    for topic in (b"a/b", b"a/c"):
        subscriber.subscribe(dialect, topic)
    sent = some(dialect)
    with frozen(broker):
        for datagram, _ in sent:
            publisher.send(datagram)
    expected = [frame for _, frame in sent if frame is not None]
    assert [subscriber.receive() for _ in expected] == expected
    if dialect == "pipe":
        answers = [publisher.receive() for datagram, _ in sent if datagram]
        assert answers.count(HELLO) == len(expected)
        assert sum(answer.startswith(b"ERROR: ") for answer in answers) == len(answers) - len(expected)
    if dialect == "semicolon":
        echoed = [datagram for datagram, _ in sent if datagram]
        wait_for(lambda: sum(line.startswith("127.0.0.1:") for line in broker.err.all) >= len(echoed), "the echoes")
        heard = [line.split(":", 2)[2] for line in broker.err.all if line.startswith("127.0.0.1:")]
        assert heard[-len(echoed) :] == [datagram.decode() for datagram in echoed]
    for peer in (subscriber, publisher):
        peer.close()


@pytest.mark.parametrize("dialect", DIALECTS)
def test_rows_of_two_publishers_in_turns(broker: Broker, dialect: str) -> None:
    subscriber, one, other = Peer(broker), Peer(broker), Peer(broker)
    subscriber.subscribe(dialect, b"r/s")
    payloads = [b"%d" % number for number in range(10, 60)]
    senders = [one if number % 7 < 4 else other for number in range(len(payloads))]
    with frozen(broker):
        for sender, payload in zip(senders, payloads, strict=True):
            sender.send(PUBLISH[dialect] % (b"r/s", payload))
    assert [subscriber.receive() for _ in payloads] == [FRAMES[dialect] % (b"r/s", payload) for payload in payloads]
    if dialect == "pipe":
        assert {sender.receive() for sender in senders} == {HELLO}, "each gets its own answers"
    for peer in (subscriber, one, other):
        peer.close()


def test_a_subscription_among_publishes_gets_what_comes_after_it(broker: Broker) -> None:
    peer = Peer(broker)
    with frozen(broker):
        for datagram in (b"pq/s;1", b"pq/s;2", b"sq/s", b"pq/s;3", b"pq/s;4", b"u", b"pq/s;5", b"sq/s", b"pq/s;6"):
            peer.send(datagram)
    assert [peer.receive() for _ in range(3)] == [b"q/s;3", b"q/s;4", b"q/s;6"]
    peer.close()


def test_typed_ones_are_decoded_each_by_itself(tmp_path: Path) -> None:
    """Numbers become text, strings end at NUL, and what is malformed is refused, whatever came before it."""
    topics = [b"t" * 49 + last for last in (b"1", b"2")]
    sent = [(topics[number // 3 % 2], struct.pack("!BI", number % 2, number * 99_999), 0) for number in range(20)]
    sent += [(topics[0], text, 3) for text in (b"twelve bytes", b"cut\0here", b"", b"twelve more", b"\0")]
    wrong = [(topics[0], b"\x02\0\0\0\1", 0), (topics[0], b"\0\0", 0), (topics[0], b"x", 9)]
    with Broker("--no-log", *config(tmp_path, ""), kinds=("typed",)) as broker:
        reader = TypedSubscriber(broker, b"ROWS", *topics)
        reader.settle()
        with frozen(broker):
            for topic, content, kind in [*sent[:10], *wrong, *sent[10:]]:
                reader.publisher.send(typed_datagram(topic, content, kind))
        expected = [
            frame(topic, content.partition(b"\0")[0] if kind == 3 else content, reader.publisher.address, kind)
            for topic, content, kind in sent
        ]
        assert [reader.take() for _ in expected] == expected
