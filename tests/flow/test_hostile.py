"""Clients that mean harm: the broker lives, others are served, memory and console stay bounded."""

import socket
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from flow.hostile import Rate, prescribed
from flow.house import Broker, Udp, wait_for
from flow.unharmed import MEGABYTE, RESET, Growth, check_all_dialects, roomy, unharmed
from flow.wires import (
    PING,
    PONG,
    PUBACK,
    SUBACK,
    alive,
    answers,
    config,
    datagram,
    delivery,
    descriptors,
    fresh,
    gets_all,
    identity,
    padded,
    padded_publish,
    padded_subscriber,
    publication,
    subscription,
    wait_descriptors,
    wait_read,
)

MOST_GROWTH = 60_000_000  # bytes: what is bounded takes up to 50, what is not takes hundreds


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """One broker for all that these tests do to it."""
    with Broker(*roomy(tmp_path_factory)) as broker:
        check_all_dialects(broker)
        yield broker


@pytest.fixture
def broker(shared: Broker) -> Iterator[Broker]:
    with unharmed(shared):
        yield shared


# --- connections ---


def test_connections_that_are_reset_at_once_leave_no_trace() -> None:
    """Some are gone before the broker has accepted them."""
    with Broker() as broker:
        before = descriptors(broker)
        for kind in ("padded", "typed", "tcp") * 300:
            sock = socket.create_connection(("127.0.0.1", broker.ports[kind]))
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
            sock.close()
        wait_descriptors(broker, before)
        check_all_dialects(broker)
        assert not [line for line in broker.err.all if not prescribed(line)]


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
    assert growth.bytes < 500 * 20_000 + 5 * MEGABYTE, str(growth)
    for client in clients:
        client.sock.close()
    wait_descriptors(broker, before)


def test_a_hundred_publishers_that_promise_16_mib_and_send_half_of_one_are_bounded(tmp_path: Path) -> None:
    with Broker(*config(tmp_path, "[tcp]\ninput_bytes = 30000000\n")) as broker:
        check_all_dialects(broker)
        growth, rate = Growth(broker), Rate(broker.err.all)
        clients = [broker.tcp("padded") for _ in range(100)]
        for client in clients:
            with suppress(ConnectionError):
                client.send(publication(b"t", b"x" * MEGABYTE, 16 << 20))
        check_all_dialects(broker)
        assert growth.bytes < MOST_GROWTH, str(growth)
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
        client.send(padded(fresh(), b"1") + b"x" + PING if first else PING)
        assert gets_all(client, PUBACK, PONG) if first else client.receive(64) == PONG
    assert growth.bytes < 5 * MEGABYTE, str(growth)


def test_words_forever_that_nobody_knows_cost_nothing(broker: Broker) -> None:
    client, growth = broker.tcp("padded"), Growth(broker)
    for _ in range(30):
        client.send(b"x" * MEGABYTE)
    client.send(b"x" * (64 - 30 * MEGABYTE % 64) + PING)
    assert client.receive(64) == PONG
    assert growth.bytes < 5 * MEGABYTE, str(growth)


def test_a_client_that_asks_and_never_reads_the_answers_is_bounded(broker: Broker) -> None:
    client, growth = broker.tcp("padded"), Growth(broker)
    client.sock.settimeout(1)
    with suppress(ConnectionError, TimeoutError):
        for _ in range(100):
            client.send(PING * 16_000)
    assert growth.bytes < MOST_GROWTH, str(growth)


# --- subscriptions and topics ---


LONG_TOPICS = [pytest.param(b"x" * 65_000, id="long")] + [
    pytest.param((level + b"/") * (65_000 // (len(level) + 1)), id=f"deep, {level!r}") for level in (b"a", b"ab", b"")
]


@pytest.mark.parametrize("topic", LONG_TOPICS)
def test_a_thousand_subscriptions_of_64_kb_from_one_address_are_bounded(topic: bytes) -> None:
    with Broker() as broker:
        check_all_dialects(broker)
        client, growth, rate, refused = broker.udp(), Growth(broker), Rate(broker.err.all), 0
        for number in range(1_000):
            refused += client.ask(b"S|%04d/%b" % (number, topic)) != b"Hello Subscriber!"
            if refused == 10 or growth.bytes > MOST_GROWTH:
                break
        print(f"{number} subscriptions of 64 KB, {refused} refused: grown by {growth}")
        assert growth.bytes < MOST_GROWTH, str(growth)
        assert refused, "or there is no limit"
        assert rate.kept()
        elsewhere = from_elsewhere(broker)
        assert elsewhere.ask(b"S|t") == b"Hello Subscriber!", "another address has room of its own"
        padded_publish(broker.tcp("padded"), b"t", b"x")
        assert elsewhere.receive() == b"TOPIC: t - MESSAGE: x"


def from_elsewhere(broker: Broker) -> Udp:
    client = broker.udp()
    client.sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    client.sock.bind(("127.0.0.2", 0))
    client.sock.connect(("127.0.0.1", broker.ports["udp"]))
    return client


def test_deep_wildcards_are_bounded(broker: Broker) -> None:
    growth, control, clients = Growth(broker), broker.udp(), [broker.udp() for _ in range(100)]
    for number, client in enumerate(clients):
        for first in range(10):
            client.send(b"s%d/%d/" % (number, first) + b"#/" * 50 + b"#")
            client.send(b"S#/%d/%d/" % (number, first) + b"a/" * 200 + b"a")
        answers(control)
    for topic in (b"/" * 65_000, b"a/" * 32_000, b"0/0" + b"/a" * 60):
        assert control.ask(b"P|%b|x" % topic) == b"Hello Publisher!"
    for client in clients:
        client.sock.close()
    assert growth.bytes < MOST_GROWTH, str(growth)


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
    assert growth.bytes < MOST_GROWTH, str(growth)


def test_ids_that_come_once_are_bounded(broker: Broker) -> None:
    growth, before = Growth(broker), descriptors(broker)
    for number in range(5_000):
        with socket.create_connection(("127.0.0.1", broker.ports["typed"])) as sock:
            sock.sendall(identity(b"once%d" % number))
    wait_descriptors(broker, before)
    broker.out.wait("Client once4999 disconnected.")
    assert growth.bytes < MOST_GROWTH, str(growth)


def test_one_client_may_not_subscribe_without_end() -> None:
    with Broker("--no-log") as broker:
        growth, client, typed = Growth(broker), broker.tcp("padded"), broker.tcp("typed")
        typed.send(identity(b"C1") + b"".join(subscription(b"%d" % number) for number in range(20_001)))
        broker.err.wait(f"typed 127.0.0.1:{typed.address[1]}: at most 20000 subscriptions")
        for thousand in range(22):
            client.send(b"".join(padded(b"Subscribe", b"%d/%d" % (thousand, number)) for number in range(1_000)))
            assert thousand >= 20 or client.receive(64 * 1_000) == SUBACK * 1_000
        assert alive(client), "no further SubAck"
        check_all_dialects(broker)
        assert growth.bytes < MOST_GROWTH, str(growth)
        broker.stop()
        assert broker.err.has("too_many_subscriptions 2001")


def test_the_subscriptions_of_one_client_hold_up_no_other() -> None:
    """Not even when its history must be read from disk: more rows are in the log than stay in memory."""
    with Broker() as broker:
        publisher, title = broker.tcp("padded"), fresh()
        for _ in range(25):
            publisher.send(publication(fresh(), b"x") * 1_000)
            assert publisher.receive(64 * 1_000) == PUBACK * 1_000
        greedy = broker.tcp("padded")
        greedy.send(b"".join(padded(b"Subscribe", b"greedy/%d" % number) for number in range(2_000)))
        assert greedy.receive(64 * 2_000) == SUBACK * 2_000
        other = padded_subscriber(broker, title)
        padded_publish(publisher, title, b"x")
        assert other.receive(193, 10) == delivery(title, b"x")


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
        wait_read(broker, "typed")
        assert broker.stop() == 0
        for reason in ("topic_too_long", "unknown_dialect", "too_short"):
            assert f"{reason} {sent}" in broker.err.all[-1].replace(",", ""), broker.err.all[-1]


def test_bytes_of_strangers_do_not_reach_the_terminal_raw(broker: Broker) -> None:
    lines, client = len(broker.err.all), broker.udp()
    for data in (b"p\x1b[31mred;x", b"pa\nb;x", b"?\x1b]0;title\x07\r", b"S\x1b"):
        client.send(data)
    answers(broker.udp())
    connection = broker.tcp("typed")
    connection.send(identity(b"\x1b[2J\nx"))
    broker.out.wait(r"\x1b[2J\nx")
    new = broker.err.all[lines:] + broker.out.all
    assert not any(character < " " for line in new for character in line)
