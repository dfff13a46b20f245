"""Subscribers over UDP: how they are given up, how many there may be, and that bursts reach them whole.

A closed port on loopback answers every datagram with port-unreachable, before the send returns; the
broker's next answer to anybody therefore comes after it has seen that.
"""

import itertools
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from flow.house import LIMIT, Broker, wait_for
from flow.peers import DIALECTS, FRAMES, TOPIC, Peer, counts, ended, frozen, needs_ipv6, publish, relay, settled
from flow.wires import config


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker("-s", "1000", kinds=("udp",)) as broker:
        yield broker


def forgotten(broker: Broker, address: tuple[str, int]) -> bool:
    """Whether nothing comes to that address any more, where now somebody listens again."""
    peer = Peer(broker, *address)
    publish(broker, b"to nobody")
    try:
        return peer.ask(b"Sstill/here") == b"Astill/here"
    finally:
        peer.close()


# --- port-unreachable ---


@pytest.mark.parametrize("dialect", DIALECTS)
def test_a_peer_whose_datagrams_come_back_five_times_in_a_row_is_forgotten_and_not_before(
    broker: Broker, dialect: str
) -> None:
    peer = Peer(broker, "127.0.0.2")
    peer.subscribe(dialect, TOPIC)
    address = peer.address
    for failures in (1, 3):
        peer.close()
        publish(broker, times=failures)
        peer = Peer(broker, *address)
        publish(broker, b"%d" % failures)
        assert peer.receive() == FRAMES[dialect] % (TOPIC, b"%d" % failures), "still subscribed"
    peer.close()
    publish(broker, b"the fifth, for to be sent to is not a word from it")
    assert forgotten(broker, address)


WORDS = {"soh": b"Sa/b", "pipe": b"P|other|m", "semicolon": b"pother;m"}
BAD_WORDS = {"soh": b"S", "pipe": b"P|", "semicolon": b"p"}


@pytest.mark.parametrize("words", [WORDS, BAD_WORDS], ids=["good", "bad"])
@pytest.mark.parametrize("dialect", DIALECTS)
def test_a_word_from_the_peer_begins_the_count_anew(broker: Broker, dialect: str, words: dict[str, bytes]) -> None:
    peer = Peer(broker, "127.0.0.3")
    peer.subscribe(dialect, TOPIC)
    address = peer.address
    for _ in range(3):
        peer.close()
        publish(broker, times=4)
        peer = Peer(broker, *address)
        peer.send(words[dialect])
        if dialect == "pipe" or (dialect == "soh" and words is WORDS):
            peer.receive()
        settled(broker)
    publish(broker, b"last")
    assert peer.receive() == FRAMES[dialect] % (TOPIC, b"last")
    peer.close()
    publish(broker, times=5)
    assert forgotten(broker, address)


def test_five_of_one_burst_count_as_five(broker: Broker) -> None:
    peer = Peer(broker, "127.0.0.4")
    peer.subscribe("semicolon", TOPIC)
    address = peer.address
    peer.close()
    client = broker.udp()
    with frozen(broker):
        for length in range(5):  # different lengths leave as datagrams of their own
            client.send(b"pa/b;" + b"x" * length)
    settled(broker)
    assert forgotten(broker, address)


def test_how_many_is_a_setting(tmp_path: Path) -> None:
    with relay(*config(tmp_path, "[udp]\nunreachable_limit = 2")) as broker:
        peer = Peer(broker, "127.0.0.5")
        peer.subscribe("semicolon", TOPIC)
        address = peer.address
        peer.close()
        publish(broker)
        assert not ended(broker, address, "semicolon")
        publish(broker)
        wait_for(lambda: ended(broker, address, "semicolon"))
        broker.err.wait("Current Subscribers: 0/100")
        assert counts(broker) == {"gone_peer": 1}


def test_only_the_one_that_is_gone_is_forgotten(broker: Broker) -> None:
    gone = Peer(broker, "127.0.0.6")
    gone.subscribe("semicolon", TOPIC)
    others = [(dialect, Peer(broker, "127.0.0.6")) for dialect in DIALECTS]
    others += [(dialect, Peer(broker, "127.0.0.7", gone.address[1])) for dialect in ("semicolon",)]
    for dialect, peer in others:
        peer.subscribe(dialect, TOPIC)
    address = gone.address
    gone.close()
    for number in range(7):
        publish(broker, b"%d" % number)
        for dialect, peer in others:
            assert peer.receive() == FRAMES[dialect] % (TOPIC, b"%d" % number), "none is lost to another's failure"
    assert forgotten(broker, address)
    for dialect, peer in others:
        assert peer.receive() == FRAMES[dialect] % (TOPIC, b"to nobody")
        peer.close()


def test_many_that_are_gone_cost_the_others_nothing() -> None:
    with relay() as broker:
        peers = [Peer(broker, f"127.0.1.{number}") for number in range(1, 41)]
        for peer in peers:
            peer.send(b"scrowd/#")
        settled(broker)
        living, gone = peers[::4], [peer for number, peer in enumerate(peers) if number % 4]
        for peer in gone:
            peer.close()
        for number in range(8):
            publish(broker, b"%d" % number, topic=b"crowd/x")
        for peer in living:
            assert [peer.receive() for _ in range(8)] == [b"crowd/x;%d" % number for number in range(8)]
            peer.close()
        broker.err.wait("Current Subscribers: 10/100")


def test_one_that_was_forgotten_may_subscribe_again(broker: Broker) -> None:
    peer = Peer(broker, "127.0.0.8")
    peer.subscribe("semicolon", TOPIC)
    address = peer.address
    peer.close()
    publish(broker, times=5)
    assert forgotten(broker, address)
    peer = Peer(broker, *address)
    peer.subscribe("semicolon", TOPIC)
    publish(broker, b"again")
    assert peer.receive() == b"a/b;again"
    peer.close()
    publish(broker, times=4)
    peer = Peer(broker, *address)
    publish(broker, b"four")
    assert peer.receive() == b"a/b;four", "the count began anew"
    peer.close()


def test_publishers_that_do_not_wait_for_their_answer_do_no_harm(broker: Broker) -> None:
    peer = Peer(broker, "127.0.0.9")
    peer.subscribe("soh", b"hasty/#")
    for number in range(50):
        hasty = Peer(broker, "127.0.0.9")
        hasty.send(b"P|hasty/x|%d" % number)
        hasty.close()
    assert [peer.receive() for _ in range(50)] == [b"\x01hasty/x\x02%d" % number for number in range(50)]
    peer.close()


# --- leases ---


def test_a_lease_ends_unless_any_datagram_renews_it(tmp_path: Path) -> None:
    with relay(*config(tmp_path, "[udp]\nlease = 2.0")) as broker:
        speaking = [(dialect, Peer(broker), words[dialect]) for words in (WORDS, BAD_WORDS) for dialect in DIALECTS]
        silent = [(dialect, Peer(broker)) for dialect in DIALECTS]
        for dialect, peer, *_ in (*speaking, *silent):
            peer.subscribe(dialect, TOPIC)
        due = start = time.monotonic()

        def silent_are_gone() -> bool:
            nonlocal due
            if time.monotonic() > due:
                due += 0.25  # so that the warnings stay below the limit of their rate
                for _, peer, word in speaking:
                    peer.send(word)
            told = [line for line in broker.err.all if "was not heard for 2 seconds" in line]
            return len(told) == len(silent) and time.monotonic() > start + 2.5

        wait_for(silent_are_gone)
        for dialect, peer in silent:
            line = broker.err.wait("warning: {} {}:{} was not heard".format(dialect, *peer.address))
            assert line.endswith("its subscriptions are ended")
        publish(broker, b"after")
        for dialect, peer, _ in speaking:
            while (datagram := peer.receive()).startswith((b"ERROR: ", b"Hello ", b"Aa/b")):
                pass
            assert datagram == FRAMES[dialect] % (TOPIC, b"after"), "renewed all the time"
        for _, peer in silent:
            assert peer.ask(b"Sstill/here") == b"Astill/here", "but nothing for those who were silent"
        broker.err.wait("Current Subscribers: 2/100")


def test_a_lease_does_not_end_early(tmp_path: Path) -> None:
    with relay(*config(tmp_path, "[udp]\nlease = 1.0")) as broker:
        peer, publisher = Peer(broker), Peer(broker)
        start = time.monotonic()
        peer.subscribe("semicolon", TOPIC)
        received = 0.0
        while not broker.err.has("was not heard"):
            publisher.send(b"pa/b;m")
            peer.sock.settimeout(0.05)
            try:
                peer.sock.recv(100)
                received = time.monotonic() - start
            except TimeoutError:
                pass
            assert time.monotonic() < start + LIMIT
        assert received > 0.5, "to be sent to does not renew it, but until then everything comes"


def test_there_is_no_lease_on_loopback_by_default_and_none_with_0(tmp_path: Path) -> None:
    with relay(*config(tmp_path, "[udp]\nlease = 0")) as broker:
        peer, short = Peer(broker), Peer(broker)
        peer.subscribe("semicolon", TOPIC)
        with relay(*config(tmp_path, "[udp]\nlease = 0.25")) as other:
            short = Peer(other)
            short.subscribe("semicolon", TOPIC)
            other.err.wait("was not heard for 0.25 seconds")
        publish(broker)
        assert peer.receive() == b"a/b;m", "as old as the one whose lease has ended"


# --- caps ---


def test_subscriptions_are_capped_in_all(tmp_path: Path) -> None:
    with relay(*config(tmp_path, "[udp]\nmax_subscriptions = 4")) as broker:
        first, second, third = (Peer(broker, f"127.0.0.{number}") for number in (2, 3, 4))
        first.subscribe("pipe", b"1")
        first.subscribe("soh", b"1/2")
        second.subscribe("semicolon", b"3")
        second.subscribe("pipe", b"4")
        assert third.ask(b"S|5").startswith(b"ERROR: ")
        third.send(b"S5/5")
        third.send(b"s5")
        assert third.ask(b"P|5|m") == b"Hello Publisher!", "not subscribed, and publishing is not limited by that"
        second.subscribe("pipe", b"4")
        second.send(b"u")
        third.subscribe("pipe", b"5")
        assert third.ask(b"S|6").startswith(b"ERROR: ")
        assert counts(broker) == {"too_many_subscriptions": 4}


def test_subscriptions_are_capped_per_address(tmp_path: Path) -> None:
    with relay(*config(tmp_path, "[udp]\nmax_subscriptions_per_address = 2")) as broker:
        first, same, other = (Peer(broker, host) for host in ("127.0.0.2", "127.0.0.2", "127.0.0.3"))
        first.subscribe("pipe", b"1")
        same.subscribe("soh", b"2/2")
        for peer in (first, same):
            assert peer.ask(b"S|3").startswith(b"ERROR: "), "its port does not matter"
        other.subscribe("pipe", b"1")
        other.subscribe("pipe", b"2")
        assert other.ask(b"S|3").startswith(b"ERROR: ")
        address = first.address
        first.close()
        publish(broker, topic=b"1", times=5)
        broker.err.wait("pipe {}:{} does not listen".format(*address))
        same.subscribe("pipe", b"4")
        assert same.ask(b"S|5").startswith(b"ERROR: "), "just the one place that became free"


def test_the_caps_are_as_large_as_the_settings_say(tmp_path: Path) -> None:
    settings = "[udp]\nmax_subscriptions_per_address = 6\n[tcp]\nmax_subscriptions = 2"
    with relay(*config(tmp_path, settings)) as broker:
        peer = Peer(broker)
        for number in range(6):
            peer.subscribe("pipe", b"%d" % number)
        assert peer.ask(b"S|6").startswith(b"ERROR: ")


# --- bursts ---


LENGTHS = {
    "equal": [64] * 300,
    "mixed": [1 + (number * 37) % 400 for number in range(300)],
    "runs": list(itertools.chain.from_iterable([length] * 40 for length in (10, 400, 10, 11, 480))),
    "longest": [490] * 300,
}


@pytest.mark.parametrize("lengths", LENGTHS.values(), ids=LENGTHS.keys())
def test_a_burst_arrives_whole_and_in_order(broker: Broker, lengths: list[int]) -> None:
    peers = [(dialect, Peer(broker)) for dialect in DIALECTS]
    for dialect, peer in peers:
        peer.subscribe(dialect, b"burst/x")
    publisher = Peer(broker)
    messages = [(b"%d." % number).ljust(length, b"x") for number, length in enumerate(lengths)]
    for group in (messages[:100], messages[100:]):
        with frozen(broker):
            for message in group:
                publisher.send(b"pburst/x;" + message)
        for dialect, peer in peers:
            assert [peer.receive() for _ in group] == [FRAMES[dialect] % (b"burst/x", message) for message in group]
    for dialect, peer in peers:
        publisher.send(b"pburst/x;end")
        assert peer.receive() == FRAMES[dialect] % (b"burst/x", b"end"), "and nothing more"
        for _, other in peers:
            if other is not peer:
                other.receive()
    for _, peer in [*peers, ("", publisher)]:
        peer.close()


def test_a_burst_of_large_datagrams_arrives_whole_and_in_order(broker: Broker) -> None:
    peer, publisher = Peer(broker), Peer(broker)
    peer.subscribe("pipe", b"large")
    messages = [b"%d" % number * 20_000 for number in range(10)] + [b"%d" % number * 9_000 for number in range(10)]
    with frozen(broker):
        for message in messages:
            publisher.send(b"P|large|" + message)
    assert [peer.receive() for _ in messages] == [b"TOPIC: large - MESSAGE: " + message for message in messages]
    peer.close()
    publisher.close()


def test_a_burst_of_several_topics_keeps_the_order_of_each_subscriber(broker: Broker) -> None:
    peer, publisher = Peer(broker), Peer(broker)
    peer.subscribe("semicolon", b"several/#")
    datagrams = [b"several/%d;%d" % (number % 3, number) for number in range(100)]
    with frozen(broker):
        for datagram in datagrams:
            publisher.send(b"p" + datagram)
    assert [peer.receive() for _ in datagrams] == datagrams
    peer.close()
    publisher.close()


def test_empty_messages_in_a_burst_arrive(broker: Broker) -> None:
    peer, publisher = Peer(broker), Peer(broker)
    peer.subscribe("semicolon", b"e")
    with frozen(broker):
        for _ in range(10):
            publisher.send(b"pe;")
    assert [peer.receive() for _ in range(10)] == [b"e;"] * 10


# --- IPv6 ---


class Six:
    def __init__(self, port: int) -> None:
        self.sock = socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)
        self.sock.settimeout(LIMIT)
        self.sock.bind(("::1", 0))
        self.sock.connect(("::1", port))
        self.port = self.sock.getsockname()[1]

    def ask(self, datagram: bytes) -> bytes:
        self.sock.send(datagram)
        return self.sock.recv(65_536)


@needs_ipv6
def test_all_of_it_over_ipv6() -> None:
    with Broker("--no-log", "--listen", "udp://[::1]:0", kinds=("padded",)) as broker:
        assert broker.out.has(f"listening udp ::1 {broker.ports['udp']}")
        port = broker.ports["udp"]
        peers = {dialect: Six(port) for dialect in DIALECTS}
        assert peers["soh"].ask(b"Sa/b") == b"Aa/b"
        assert peers["pipe"].ask(b"S|a/b") == b"Hello Subscriber!"
        peers["semicolon"].sock.send(b"sa/b")
        broker.err.wait(f"[::1]:{peers['semicolon'].port}:sa/b")
        publisher = Six(port)
        messages = [b"%03d" % number for number in range(20)] + [b"x" * number for number in range(20)]
        with frozen(broker):
            for message in messages:
                publisher.sock.send(b"pa/b;" + message)
        for dialect, peer in peers.items():
            assert [peer.sock.recv(1_000) for _ in messages] == [
                FRAMES[dialect] % (TOPIC, message) for message in messages
            ]
        gone = peers["semicolon"]
        gone.sock.close()
        for number in range(4):
            assert publisher.ask(b"P|a/b|%d" % number) == b"Hello Publisher!"
        publisher.ask(b"P|$settled|")
        assert not broker.err.has("does not listen any more")
        publisher.ask(b"P|a/b|4")
        broker.err.wait(f"semicolon [::1]:{gone.port} does not listen any more")
        broker.err.wait("Current Subscribers: 0/100")
        for number in range(5):
            assert peers["soh"].sock.recv(100) == b"\x01a/b\x02%d" % number
        for peer in (*peers.values(), publisher):
            peer.sock.close()


# --- bad input ---


def test_a_flood_of_bad_datagrams_is_told_at_a_bounded_rate_and_counted_in_full() -> None:
    with relay() as broker:
        client = broker.udp()
        start = time.monotonic()
        for _ in range(50):
            for datagram in (b"p", b"S", b"?", b"\x01", b"s\xff"):
                for _ in range(8):
                    client.send(datagram)
            settled(broker)
        seconds = time.monotonic() - start
        assert counts(broker) == {"malformed": 800, "topic_empty": 400, "unknown_dialect": 400, "topic_not_utf8": 400}
        told = [line for line in broker.err.all if line.startswith("warning: ")]
        assert 20 <= len(told) <= (seconds + 2) * 26
        assert any("more like this: semicolon malformed" in line for line in told)
