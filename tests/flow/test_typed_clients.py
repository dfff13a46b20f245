"""typed clients: their ids, how they end, and what they may take of the broker."""

import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from flow.house import BIN, LIMIT, Broker, Lines, Tcp, wait_for
from flow.lasting import free_ports
from flow.wires import (
    SmallTcp,
    TypedSubscriber,
    config,
    datagram,
    ended,
    identity,
    padded_subscriber,
    subscription,
    unsubscription,
)


@pytest.fixture(scope="module", params=["log", "no log"])
def broker(request: pytest.FixtureRequest) -> Iterator[Broker]:
    with Broker(*(["--no-log"] if request.param == "no log" else [])) as broker:
        yield broker


# --- ids ---


def leave(broker: Broker, subscriber: TypedSubscriber, line: str) -> None:
    """Closes the connection and waits for the line that says so."""
    before = broker.out.all.count(line)
    subscriber.client.sock.close()
    wait_for(lambda: broker.out.all.count(line) > before, line)


def test_an_id_that_was_away_missed_what_came_and_is_still_subscribed(broker: Broker) -> None:
    first = TypedSubscriber(broker, b"missed", b"t", b"u")
    assert first.takes(b"t", b"1")
    leave(broker, first, "Client missed disconnected.")
    first.publisher.send(datagram(b"t", b"2"))
    returned = TypedSubscriber(broker, b"missed")
    assert returned.takes(b"t", b"3"), "and nothing before it"
    assert returned.takes(b"u", b"4")
    returned.send(unsubscription(b"t"))
    leave(broker, returned, "Client missed disconnected.")
    again = TypedSubscriber(broker, b"missed")
    again.publisher.send(datagram(b"t", b"5"))
    assert again.takes(b"u", b"6"), "what was unsubscribed stays so"


def test_ids_are_apart(broker: Broker) -> None:
    leave(broker, TypedSubscriber(broker, b"apart1", b"apart"), "Client apart1 disconnected.")
    other = TypedSubscriber(broker, b"apart2", b"apart/2")
    other.publisher.send(datagram(b"apart", b"x"))
    assert other.takes(b"apart/2")


def test_an_id_that_is_connected_already_closes_the_new_connection(broker: Broker) -> None:
    first = TypedSubscriber(broker, b"here", b"t")
    ports = [first.client.address[1]]
    for _ in range(3):
        second = broker.tcp("typed")
        second.send(identity(b"here") + subscription(b"second"))
        assert second.closed()
    broker.out.wait("Client here already connected.")
    first.publisher.send(datagram(b"second", b"x"))
    assert first.takes(b"t"), "the first goes on, and the second's commands do not count"
    leave(broker, first, "Client here disconnected.")
    third = TypedSubscriber(broker, b"here")
    ports.append(third.client.address[1])
    assert third.takes(b"t")
    leave(broker, third, "Client here disconnected.")
    assert [line for line in broker.out.all if "lient here " in line] == [
        f"New client here connected from 127.0.0.1:{ports[0]}.",
        *["Client here already connected."] * 3,
        "Client here disconnected.",
        f"New client here connected from 127.0.0.1:{ports[1]}.",
        "Client here disconnected.",
    ]


def test_the_console_lines_stay_when_quiet_and_no_other_does(tmp_path: Path) -> None:
    (port,) = free_ports(1)
    command = [BIN / "smbbroker", "--quiet", "--data", tmp_path, "--listen", f"typed://127.0.0.1:{port}"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stdin=subprocess.DEVNULL) as process:
        try:
            out = Lines(process.stdout)
            client = wait_for(lambda: connected(port), "the broker")
            client.send(identity(b"C1"))
            out.wait(f"New client C1 connected from 127.0.0.1:{client.address[1]}.")
            client.sock.close()
            out.wait("Client C1 disconnected.")
        finally:
            process.send_signal(signal.SIGTERM)
        assert process.wait() == 0
        assert len(out.wait_end()) == 2


def connected(port: int) -> Tcp | None:
    try:
        return Tcp(port)
    except ConnectionRefusedError:
        return None


# --- the end ---


def test_exit_on_standard_input_closes_all_clients_and_stops() -> None:
    with Broker() as broker:
        clients = [TypedSubscriber(broker, b"C%d" % number, b"t").client for number in range(5)]
        clients += [broker.tcp("typed"), padded_subscriber(broker, b"t"), broker.tcp("tcp")]
        broker.type("hello\nexit please\n exit \n")
        for client in clients:
            assert client.closed()
        assert broker.process.wait(LIMIT) == 0


def test_the_end_of_standard_input_does_not_stop_it() -> None:
    with Broker() as broker:
        broker.type("exi")  # nor do words that are none
        assert broker.process.stdin
        broker.process.stdin.close()
        assert TypedSubscriber(broker, b"C1", b"t").takes(b"t")
        assert broker.process.poll() is None


# --- limits ---


def test_a_subscriber_that_never_reads_is_disconnected_and_others_get_everything(tmp_path: Path) -> None:
    with Broker(*config(tmp_path, "[tcp]\noutbox_bytes = 1000000\n")) as broker:
        reading = TypedSubscriber(broker, b"reading", b"t")
        stuck = SmallTcp(broker.ports["typed"])
        stuck.send(identity(b"stuck") + subscription(b"t"))
        broker.out.wait("New client stuck connected")
        for number in range(10_000):
            assert reading.takes(b"t", b"%d" % number)
            if number % 100 == 0 and broker.out.has("Client stuck disconnected."):
                break
        broker.out.wait("Client stuck disconnected.")
        broker.err.wait(f"typed 127.0.0.1:{stuck.address[1]}: disconnected: it does not read")
        assert ended(stuck)
        stuck.sock.close()
        assert reading.takes(b"t")
        returned = TypedSubscriber(broker, b"stuck")
        assert returned.takes(b"t"), "it may come back, still subscribed"


def test_subscriptions_beyond_the_limit_are_refused_and_the_connection_lives(tmp_path: Path) -> None:
    with Broker(*config(tmp_path, "[tcp]\nmax_subscriptions = 3\n")) as broker:
        subscriber = TypedSubscriber(broker, b"C1", b"1", b"2", b"3", b"4", b"3")
        subscriber.publisher.send(datagram(b"4", b"x"))
        for topic in (b"1", b"2", b"3"):
            assert subscriber.takes(topic)
        subscriber.send(unsubscription(b"1") + unsubscription(b"2") + subscription(b"5"))
        assert subscriber.takes(b"5"), "what is given up makes room"
        broker.stop()
        assert broker.err.has("too_many_subscriptions 1")


def test_ids_beyond_the_limit_are_refused_and_known_ones_are_not(tmp_path: Path) -> None:
    with Broker(*config(tmp_path, "[typed]\nmax_sessions = 2\n")) as broker:
        first, second = TypedSubscriber(broker, b"C1", b"t"), TypedSubscriber(broker, b"C2", b"t")
        third = broker.tcp("typed")
        third.send(identity(b"C3") + subscription(b"t"))
        assert third.closed()
        leave(broker, first, "Client C1 disconnected.")
        assert TypedSubscriber(broker, b"C1").takes(b"t")
        assert second.take()[51:53] == b"x\0"
        broker.stop()
        assert broker.err.has("too_many_sessions 1")
        assert not broker.out.has(f"Client 127.0.0.1:{third.address[1]}")
