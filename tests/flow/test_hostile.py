"""Anything at all on any socket: the broker lives, others are served, memory and console stay bounded."""

import random
import socket
import struct
import time
from collections.abc import Iterator
from contextlib import suppress
from itertools import count
from pathlib import Path

import pytest

from flow.hostile import DATAGRAMS, SEED, STREAMS, Rate, hostile
from flow.house import Broker, Tcp, Udp, wait_for
from flow.test_pairs import DIALECTS, EXPECTED, Subscriber, publish
from flow.wires import (
    PING,
    PONG,
    TypedSubscriber,
    alive,
    answers,
    datagram,
    descriptors,
    fresh,
    identity,
    padded,
    padded_publish,
    padded_subscriber,
    publication,
    subscription,
    wait_descriptors,
)

NUMBER = 10_000  # of datagrams or streams per dialect
MOST_GROWTH = 50_000_000  # bytes
MEGABYTE = 1_000_000
RESET = struct.pack("ii", 1, 0)  # SO_LINGER: a close is a reset

_names = count()


@pytest.fixture
def broker() -> Iterator[Broker]:
    """Checks what must hold whatever a test did: all dialects work, and the broker found no bug in itself."""
    with Broker("-s", "100000") as broker:
        check_all_dialects(broker)
        rate = Rate(broker.err.all)
        yield broker
        check_all_dialects(broker)
        assert broker.process.poll() is None
        assert not broker.err.has("Traceback")
        assert not broker.err.has("a bug in the broker")
        assert rate.kept(), f"{len(broker.err.all)} lines, the last: {broker.err.all[-20:]}"


def check_all_dialects(broker: Broker) -> None:
    """All 25 pairs."""
    topic = fresh()
    subscribers = {dialect: Subscriber(broker, dialect, topic, name=f"all{next(_names)}") for dialect in DIALECTS}
    answers(broker.udp())  # so the semicolon subscription, which has no answer, was heard
    for sending in DIALECTS:
        address = publish(broker, sending, topic, sending.encode())
        for receiving, subscriber in subscribers.items():
            expected = EXPECTED[receiving](topic, sending.encode(), address)
            assert subscriber.take(len(expected)) == expected, f"{sending} to {receiving}"
    for subscriber in subscribers.values():
        subscriber.client.sock.close()


class Growth:
    """Of the broker's memory since this was made."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._before = broker.memory()

    @property
    def bytes(self) -> int:
        return self._broker.memory() - self._before

    def __str__(self) -> str:
        return f"{self.bytes / MEGABYTE:.1f} MB"


def lost_datagrams(port: int) -> int:
    """What the kernel dropped because the broker did not read fast enough."""
    rows = [line.split() for line in Path("/proc/net/udp").read_text().splitlines()[1:]]
    return sum(int(row[-1]) for row in rows if row[1].endswith(f":{port:04X}"))


# --- random and mutated ---


@pytest.mark.parametrize("dialect", DATAGRAMS)
def test_random_and_mutated_datagrams_do_no_harm(broker: Broker, dialect: str) -> None:
    print(f"seed {SEED}")
    kind = "typed" if dialect == "typed UDP" else "udp"
    clients, control, growth = [broker.udp(kind) for _ in range(50)], broker.udp(), Growth(broker)
    mark = TypedSubscriber(broker, b"mark") if kind == "typed" else None
    for number, data in enumerate(hostile(dialect, NUMBER)):
        clients[number % len(clients)].send(data)
        if number % 100 == 99:  # so that none is lost before the broker sees it
            answers(control)
            if mark:
                mark.settle()
    assert lost_datagrams(broker.ports[kind]) == 0
    check_all_dialects(broker)
    print(f"{dialect}: grew by {growth}")
    assert growth.bytes < MOST_GROWTH, growth


@pytest.mark.parametrize("kind", ["own", "tcp"])
@pytest.mark.parametrize("dialect", STREAMS)
def test_random_and_mutated_streams_do_no_harm(broker: Broker, dialect: str, kind: str) -> None:
    print(f"seed {SEED}")
    chance = random.Random(SEED)
    port = broker.ports["tcp" if kind == "tcp" else dialect.split()[0]]
    growth, before = Growth(broker), descriptors(broker)
    held: list[socket.socket] = []
    for number, data in enumerate(hostile(dialect, NUMBER // 2)):
        sock = socket.create_connection(("127.0.0.1", port))
        with suppress(ConnectionError):
            place = chance.choice((len(data), len(data), chance.randrange(len(data) + 1)))
            sock.sendall(data[:place])
            sock.sendall(data[place:])
        if chance.random() < 0.3:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
        held.append(sock)
        if len(held) > 100:  # a hundred at a time, of all ages
            held.pop(chance.randrange(len(held))).close()
        if number % 500 == 499:
            assert alive(broker.tcp("padded"))
    for sock in held:
        sock.close()
    wait_descriptors(broker, before + 20)  # of the connections that asked whether it lives
    check_all_dialects(broker)
    print(f"{dialect}: grew by {growth}")
    assert growth.bytes < MOST_GROWTH, growth


# --- connections ---


@pytest.mark.parametrize("kind", ["padded", "typed", "tcp"])
def test_connections_that_are_reset_at_once_leave_no_trace(broker: Broker, kind: str) -> None:
    """Some are gone before the broker has accepted them."""
    before, lines = descriptors(broker), len(broker.err.all)
    for _ in range(1_000):
        sock = socket.create_connection(("127.0.0.1", broker.ports[kind]))
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
        sock.close()
    wait_descriptors(broker, before)
    assert broker.err.all[lines:] == []


@pytest.mark.parametrize(
    ("kind", "beginning"),
    [
        ("padded", b""),
        ("padded", b"Publish".ljust(64) + b"t"),
        ("padded", publication(b"t", b"", 16 << 20)),
        ("padded", publication(b"t", "ü".encode()[:1], 1)),
        ("typed", b"C"),
        ("typed", b""),
        ("tcp", b""),
        ("tcp", b"  Pub"),
    ],
)
def test_half_said_things_hold_up_nobody(broker: Broker, kind: str, beginning: bytes) -> None:
    before, growth = descriptors(broker), Growth(broker)
    clients = [broker.tcp(kind) for _ in range(500)]
    for number, client in enumerate(clients):
        client.send(beginning)
        if number % 2:
            client.sock.shutdown(socket.SHUT_WR)
    check_all_dialects(broker)
    assert growth.bytes < 500 * 20_000 + 5 * MEGABYTE, growth
    for client in clients:
        client.sock.close()
    wait_descriptors(broker, before)


def test_a_hundred_publishers_that_promise_16_mib_and_send_half_of_one_are_bounded(tmp_path: Path) -> None:
    (tmp_path / "smb.toml").write_text("[tcp]\ninput_bytes = 30000000\n")
    with Broker("--config", str(tmp_path / "smb.toml")) as broker:
        check_all_dialects(broker)
        growth, rate = Growth(broker), Rate(broker.err.all)
        clients = [broker.tcp("padded") for _ in range(100)]
        for client in clients:
            with suppress(ConnectionError):
                client.send(publication(b"t", b"x" * MEGABYTE, 16 << 20))
        check_all_dialects(broker)
        assert growth.bytes < MOST_GROWTH, growth
        assert rate.kept()
        for client in clients:
            client.sock.close()
        check_all_dialects(broker)


@pytest.mark.parametrize(
    ("kind", "first", "forever"),
    [("padded", b"", b" "), ("padded", b"Publish".ljust(64), b" "), ("typed", identity(b"nuls"), b"\0")],
)
def test_padding_forever_costs_nothing(broker: Broker, kind: str, first: bytes, forever: bytes) -> None:
    client, growth = broker.tcp(kind), Growth(broker)
    client.send(first)
    for _ in range(30):
        client.send(forever * MEGABYTE)
    if kind == "typed":
        client.send(subscription(b"nuls"))
        publisher = broker.udp("typed")

        def heard() -> bool:
            publisher.send(datagram(b"nuls", b"x"))
            return not client.silent(0.05)

        wait_for(heard, "the subscription after the NULs")
    else:
        client.send(padded(b"nuls", b"1") + b"x" + PING if first else PING)
        assert not first or client.receive(64).startswith(b"PubAck")
        assert client.receive(64) == PONG
    assert growth.bytes < 5 * MEGABYTE, growth


def test_words_forever_that_nobody_knows_cost_nothing(broker: Broker) -> None:
    client, growth = broker.tcp("padded"), Growth(broker)
    for _ in range(30):
        client.send(b"x" * MEGABYTE)
    client.send(b"x" * (64 - 30 * MEGABYTE % 64) + PING)
    assert client.receive(64) == PONG
    assert growth.bytes < 5 * MEGABYTE, growth


def test_a_client_that_asks_and_never_reads_the_answers_is_bounded(broker: Broker) -> None:
    client, growth = broker.tcp("padded"), Growth(broker)
    client.sock.settimeout(1)
    with suppress(ConnectionError, TimeoutError):
        for _ in range(100):
            client.send(PING * 16_000)
    assert growth.bytes < MOST_GROWTH, growth


# --- subscriptions and topics ---


def subscribe_all(client: Udp, subscriptions: Iterator[bytes]) -> None:
    """Each is answered, so none is lost; answered by a refusal, perhaps."""
    for each in subscriptions:
        assert client.ask(each).startswith((b"Hello Subscriber!", b"ERROR: "))


def test_a_thousand_subscriptions_of_64_kb_are_bounded(broker: Broker) -> None:
    growth = Growth(broker)
    subscribe_all(broker.udp(), (b"S|%06d" % number + b"x" * 65_000 for number in range(1_000)))
    assert growth.bytes < MOST_GROWTH, growth


@pytest.mark.parametrize("level", [b"a", b"ab", b""])
def test_a_thousand_deep_subscriptions_are_bounded(broker: Broker, level: bytes) -> None:
    growth = Growth(broker)
    deep = (level + b"/") * (65_000 // (len(level) + 1))
    subscribe_all(broker.udp(), (b"S|%06d/%b" % (number, deep) for number in range(1_000)))
    assert growth.bytes < MOST_GROWTH, growth


def test_deep_wildcards_are_bounded(broker: Broker) -> None:
    growth, clients = Growth(broker), [broker.udp() for _ in range(100)]
    for number, client in enumerate(clients):
        for first in range(10):
            client.send(b"s%d/%d/" % (number, first) + b"#/" * 50 + b"#")
            client.send(b"S#/%d/%d/" % (number, first) + b"a/" * 200 + b"a")
        answers(clients[0])
    for topic in (b"/" * 65_000, b"a/" * 32_000, b"0/0" + b"/a" * 60):
        answers(clients[0])
        clients[1].send(b"P|%b|x" % topic)
    assert growth.bytes < MOST_GROWTH, growth


def test_deep_topics_are_delivered(broker: Broker) -> None:
    client = broker.udp()
    topic = b"a/" * 30_000 + b"a"
    assert client.ask(b"S|" + topic) == b"Hello Subscriber!"
    client.send(b"P|%b|x" % topic)
    assert {client.receive(), client.receive()} == {b"Hello Publisher!", b"TOPIC: %b - MESSAGE: x" % topic}


def test_topics_that_are_never_used_again_are_not_remembered(broker: Broker) -> None:
    client, growth = broker.udp(), Growth(broker)
    for number in range(30_000):
        client.send(b"p%06d%b;x" % (number, b"x" * 120))
        if number % 200 == 199:
            answers(client)
    for number in range(10_000):
        client.send(b"\x01%06d%b/%b\x02x" % (number, b"x" * 500, b"y" * 500))
        if number % 200 == 199:
            answers(client)
    assert growth.bytes < MOST_GROWTH, growth


def test_ids_that_come_once_are_bounded(broker: Broker) -> None:
    growth, before = Growth(broker), descriptors(broker)
    for number in range(5_000):
        with socket.create_connection(("127.0.0.1", broker.ports["typed"])) as sock:
            sock.sendall(identity(b"once%d" % number))
    wait_descriptors(broker, before)
    broker.out.wait("Client once4999 disconnected.")
    assert growth.bytes < MOST_GROWTH, growth


@pytest.mark.parametrize("kind", ["padded", "typed"])
def test_one_client_may_not_subscribe_without_end(broker: Broker, kind: str) -> None:
    growth, name = Growth(broker), f"max{next(_names)}".encode()
    client = broker.tcp(kind)
    if kind == "padded":
        for number in range(30):
            client.send(b"".join(padded(b"Subscribe", b"%d/%d" % (number, title)) for title in range(1_000)))
            assert client.receive(64 * (1_000 if number < 20 else 0)) == b"SubAck".ljust(64) * (
                1_000 if number < 20 else 0
            )
        assert alive(client)
    else:
        client.send(identity(name) + b"".join(subscription(b"%d" % number) for number in range(30_000)))
        broker.err.wait("at most 20000 subscriptions")
    assert growth.bytes < MOST_GROWTH, growth


# --- the console ---


def test_the_console_says_what_happened_at_a_bounded_rate_and_the_counters_count_it() -> None:
    with Broker() as broker:
        client, typed = broker.udp(), broker.udp("typed")
        rate, start = Rate(broker.err.all), time.monotonic()
        sent = 0
        while time.monotonic() - start < 2.5:
            for _ in range(100):
                client.send(b"Sa" + b"x" * 600)  # soh: too long a topic
                client.send(b"?")  # no dialect begins so
                typed.send(b"short")
            sent += 100
            answers(client)
            assert rate.kept()
        assert any(line.startswith("warning: ") for line in broker.err.all)
        assert sum("more like this" in line for line in broker.err.all) >= 2
        wait_for(lambda: queued(broker.ports["typed"]) == 0)
        assert broker.stop() == 0
        for reason in ("topic_too_long", "unknown_dialect", "too_short"):
            assert f"{reason} {sent}" in broker.err.all[-1].replace(",", ""), broker.err.all[-1]


def queued(port: int) -> int:
    """Bytes that wait to be read by the broker."""
    rows = [line.split() for line in Path("/proc/net/udp").read_text().splitlines()[1:]]
    return sum(int(row[4].split(":")[1], 16) for row in rows if row[1].endswith(f":{port:04X}"))


def test_bytes_of_strangers_do_not_reach_the_terminal_raw(broker: Broker) -> None:
    lines = len(broker.err.all)
    client = broker.udp()
    for data in (b"p\x1b[31mred;x", b"pa\nb;x", b"?\x1b]0;title\x07\r", b"S\x1b"):
        client.send(data)
    answers(client)
    connection = broker.tcp("typed")
    connection.send(identity(b"\x1b[2J\nx"))
    broker.out.wait(r"\x1b[2J\nx")
    new = broker.err.all[lines:] + broker.out.all
    assert not any(character < " " for line in new for character in line)
    Tcp(broker.ports["typed"]).sock.close()
    padded_publish(padded_subscriber(broker, fresh()), fresh(), b"\x1b")
