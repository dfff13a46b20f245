"""What padded clients may take of the broker: connections, subscriptions, payloads, what waits for slow readers."""

import os
import socket
import threading
from contextlib import suppress
from pathlib import Path

from flow.house import Broker
from flow.wires import (
    DISCONNECT,
    PUBACK,
    SUBACK,
    SmallTcp,
    alive,
    config,
    delivery,
    descriptors,
    ended,
    padded,
    padded_publish,
    padded_subscriber,
    publication,
    wait_arrived,
    wait_descriptors,
)


def test_a_connection_that_says_nothing_and_closes_leaves_no_trace() -> None:
    with Broker() as broker:
        before = descriptors(broker)
        for kind in ("padded", "tcp", "typed"):
            for _ in range(100):
                broker.tcp(kind).sock.close()
            probes = [broker.tcp(kind) for _ in range(20)]
            for probe in probes:
                probe.sock.shutdown(socket.SHUT_WR)
            for probe in probes:
                assert probe.closed()
                probe.sock.close()
        wait_descriptors(broker, before)
        padded_publish(broker.tcp("padded"), b"t", b"x")
        assert len(broker.out.all) == 5, "four listeners and ready"
        assert broker.err.all == []


def test_the_largest_message_arrives_whole() -> None:
    with Broker() as broker:
        subscriber, publisher = padded_subscriber(broker, b"t"), broker.tcp("padded")
        message = os.urandom(1 << 20) * 16
        sending = threading.Thread(target=publisher.send, args=(publication(b"t", message),))
        sending.start()
        expected = delivery(b"t", message)
        assert subscriber.receive(len(expected)) == expected
        sending.join()
        assert publisher.receive(64) == PUBACK


def test_a_subscriber_that_never_reads_is_disconnected_and_others_get_everything(tmp_path: Path) -> None:
    with Broker("--no-log", *config(tmp_path, "[tcp]\noutbox_bytes = 1000000\n")) as broker:
        reading, publisher = padded_subscriber(broker, b"t"), broker.tcp("padded")
        stuck = SmallTcp(broker.ports["padded"])
        stuck.send(padded(b"Subscribe", b"t"))
        assert stuck.receive(64) == SUBACK
        for number in range(200):
            message = b"%06d" % number * 10_000
            padded_publish(publisher, b"t", message)
            assert reading.receive(192 + len(message)) == delivery(b"t", message)
        broker.err.wait(f"padded 127.0.0.1:{stuck.address[1]}: disconnected: it does not read")
        assert ended(stuck)
        assert alive(reading)
        stuck.sock.close()


def stuck_readers(broker: Broker) -> list[str]:
    """Publishes until ten subscribers that never read have been given up; what the console said of that."""
    stuck, publisher = [SmallTcp(broker.ports["padded"]) for _ in range(10)], broker.tcp("padded")
    for client in stuck:
        client.send(padded(b"Subscribe", b"t"))
        assert client.receive(64) == SUBACK
    for _ in range(300):
        padded_publish(publisher, b"t", b"x" * 100_000)
    for client in stuck:
        broker.err.wait(f"padded 127.0.0.1:{client.address[1]}: disconnected: it does not read")
        client.sock.close()
    return [line for line in broker.err.all if "does not read" in line]


def test_what_waits_for_slow_readers_is_bounded_and_each_is_counted_once(tmp_path: Path) -> None:
    with Broker("--no-log", *config(tmp_path, "[tcp]\noutbox_bytes = 1000000\n")) as broker:
        before = broker.memory()
        assert len(stuck_readers(broker)) == 10
        assert broker.memory() - before < 40_000_000
        broker.stop()
        assert broker.err.has("outbox_full 10")


def test_unfinished_input_is_bounded_for_all_connections_together(tmp_path: Path) -> None:
    with Broker(*config(tmp_path, "[tcp]\ninput_bytes = 1000000\n")) as broker:
        other = padded_subscriber(broker, b"t")
        for _ in range(5):  # what a closed connection held is free again
            holding = broker.tcp("padded")
            holding.send(publication(b"t", b"x" * 600_000, 700_000))
            wait_arrived(holding.sock)
            assert alive(other)
            greedy = broker.tcp("padded")
            with suppress(ConnectionError):
                greedy.send(publication(b"t", b"x" * 600_000, 700_000))
            assert greedy.closed(), "the one that went over it is closed"
            holding.send(b"x" * 100_000)
            assert holding.receive(64) == PUBACK
            expected = delivery(b"t", b"x" * 700_000)
            assert other.receive(len(expected)) == expected
        broker.stop()
        assert broker.err.has("input_full 5")


def test_connections_beyond_the_limit_are_closed_at_once(tmp_path: Path) -> None:
    with Broker(*config(tmp_path, "[tcp]\nmax_connections = 5\n")) as broker:
        clients = [broker.tcp(kind) for kind in ("padded", "padded", "typed", "tcp")]
        clients.append(padded_subscriber(broker, b"t"))
        for kind in ("padded", "typed", "tcp"):
            assert broker.tcp(kind).closed()
        assert alive(clients[0])
        clients[0].send(DISCONNECT)
        assert clients[0].closed()
        padded_publish(broker.tcp("padded"), b"t", b"x")
        assert clients[-1].receive(193) == delivery(b"t", b"x")
        broker.stop()
        assert broker.err.has("too_many_connections 3")


def test_subscriptions_beyond_the_limit_are_refused_and_the_connection_lives(tmp_path: Path) -> None:
    with Broker(*config(tmp_path, "[tcp]\nmax_subscriptions = 3\n")) as broker:
        client = padded_subscriber(broker, b"1", b"2", b"3", b"3")
        client.send(padded(b"Subscribe", b"4"))
        assert alive(client), "no SubAck"
        publisher = broker.tcp("padded")
        for title in (b"4", b"3"):
            padded_publish(publisher, title, b"x")
        assert client.receive(193) == delivery(b"3", b"x")


def test_the_largest_payload_is_a_setting(tmp_path: Path) -> None:
    with Broker(*config(tmp_path, "max_payload = 100\n")) as broker:
        client = padded_subscriber(broker, b"t")
        publisher = broker.tcp("padded")
        padded_publish(publisher, b"t", b"x" * 100)
        assert client.receive(292) == delivery(b"t", b"x" * 100)
        publisher.send(padded(b"Publish", b"t", b"101"))
        assert publisher.closed()
        characters = broker.tcp("padded")
        characters.send(publication(b"t", "ü".encode() * 60, 60))
        assert characters.closed(), "60 characters, but 120 bytes"
        assert alive(client)
