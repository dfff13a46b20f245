"""padded's keep-alive: who is asked, who is given up, and what is said of it."""

import os
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from flow.house import LIMIT, Broker, Tcp, wait_for
from flow.wires import (
    PING,
    PONG,
    PUBACK,
    config,
    delivery,
    ended,
    fresh,
    padded,
    padded_publish,
    padded_subscriber,
    publication,
)

INTERVAL = 10.0  # seconds of silence until the broker asks
HURRY = 0.5  # the same, for a broker whose time runs faster

LONG = pytest.mark.skipif(not os.environ.get("SMB_LONG"), reason="takes 40 s; SMB_LONG=1 runs it")


class Listening:
    """A client that never speaks; notes what comes first and when, while the other tests run."""

    def __init__(self, broker: Broker) -> None:
        self.client = broker.tcp("padded")
        self.client.sock.settimeout(INTERVAL + LIMIT)
        self.came: list[tuple[float, bytes]] = []
        self.silent_since = time.monotonic()
        self._thread = threading.Thread(target=self._listen)
        self._thread.start()

    def _listen(self) -> None:
        with suppress(OSError):
            data = self.client.sock.recv(1_000)
            self.came.append((time.monotonic() - self.silent_since, data))

    def end(self) -> None:
        with suppress(OSError):
            self.client.sock.shutdown(socket.SHUT_RDWR)
        self._thread.join()


@pytest.fixture(scope="module", autouse=True)
def silent() -> Iterator[Listening]:
    """Begins before the first test, so that the 10 s pass while the others run."""
    with Broker() as broker:
        silent = Listening(broker)
        yield silent
        silent.end()


def in_a_hurry(folder: Path, *options: str) -> Broker:
    """A broker to which HURRY is ten seconds."""
    hurry = f"from smbroker.dialects.padded import KeepAlive; KeepAlive.__init__.__defaults__ = ({HURRY}, 3)"
    (folder / "sitecustomize.py").write_text(hurry)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", f"{folder}:{os.environ.get('PYTHONPATH', '')}")
        return Broker(*options)


@pytest.fixture(scope="module")
def hurried(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    with in_a_hurry(tmp_path_factory.mktemp("hurry")) as broker:
        yield broker


GIVEN_UP = [
    " did not answer. [1]",
    " did not answer. [2]",
    " did not answer. [3]",
    " disconnected by Server",
]


def told(broker: Broker, client: Tcp) -> list[str]:
    """What the console said of this client."""
    name = str(client.address)
    return [line.removeprefix(name) for line in broker.out.all if line.startswith(name)]


def test_a_client_that_never_answers_is_asked_three_times_and_given_up(hurried: Broker) -> None:
    other = padded_subscriber(hurried, b"t")
    start = time.monotonic()
    client = padded_subscriber(hurried, b"t")
    assert client.receive(3 * 64) == PING * 3
    assert client.closed()
    assert time.monotonic() - start > 4 * HURRY - 0.1
    assert other.receive(64) == PING
    other.send(PONG)
    hurried.out.wait(f"{client.address} disconnected by Server")
    assert told(hurried, client) == GIVEN_UP


def test_a_client_that_answers_stays_and_nothing_is_said_of_it(hurried: Broker) -> None:
    title = fresh()
    answering = padded_subscriber(hurried, title)
    silent = hurried.tcp("padded")
    for _ in range(5):
        assert answering.receive(64) == PING
        answering.send(PONG)
    assert silent.receive(3 * 64) == PING * 3
    assert silent.closed()
    padded_publish(hurried.tcp("padded"), title, b"x")
    while (came := answering.receive(64)) == PING:
        answering.send(PONG)
    assert came + answering.receive(129) == delivery(title, b"x")
    assert told(hurried, answering) == []


def test_only_a_pong_resets_the_count(hurried: Broker) -> None:
    forgiven, speaking = hurried.tcp("padded"), hurried.tcp("padded")
    for client in (forgiven, speaking):
        assert client.receive(2 * 64) == PING * 2
        hurried.out.wait(f"{client.address} did not answer. [1]")
    forgiven.send(PONG)
    speaking.send(padded(b"Hello"))
    assert speaking.receive(64) == PING
    assert speaking.closed()
    hurried.out.wait(f"{speaking.address} disconnected by Server")
    assert told(hurried, speaking)[-2:] == [" did not answer. [3]", " disconnected by Server"]
    assert forgiven.receive(3 * 64) == PING * 3
    assert ended(forgiven), "after one more, if the Pong came late"
    hurried.out.wait(f"{forgiven.address} disconnected by Server")
    assert [line for line in told(hurried, forgiven) if "[1]" in line] == [" did not answer. [1]"] * 2


def test_a_client_that_speaks_is_not_asked(hurried: Broker) -> None:
    speaking, silent = hurried.tcp("padded"), hurried.tcp("padded")
    stop = threading.Event()

    def speak_always() -> None:
        while not stop.wait(HURRY / 10):
            speaking.send(padded(b"Hello"))

    thread = threading.Thread(target=speak_always)
    thread.start()
    try:
        assert silent.receive(3 * 64) == PING * 3
        assert silent.closed()
    finally:
        stop.set()
        thread.join()
    speaking.send(PING)
    assert speaking.receive(64) == PONG, "no Ping was waiting"


# --- the real ten seconds; last, so that they have passed by now ---


def test_a_client_that_the_broker_does_not_read_from_is_not_silent(tmp_path: Path) -> None:
    with in_a_hurry(tmp_path, *config(tmp_path, "[tcp]\nmax_rate = 200_000\n")) as broker:
        client = broker.tcp("padded")
        client.send(publication(fresh(), b"x" * 1_000_000))  # takes many times HURRY; a Pong would stand behind it
        while (came := client.receive(64)) == PING:
            pass  # if it was slow itself
        assert came == PUBACK
        assert GIVEN_UP[-1] not in told(broker, client)


def test_ten_seconds_of_silence_are_answered_by_a_ping(silent: Listening) -> None:
    wait_for(lambda: silent.came, "a Ping", INTERVAL + LIMIT)
    seconds, data = silent.came[0]
    assert data == PING
    assert seconds > INTERVAL - 0.2


@LONG
def test_the_whole_story_takes_forty_seconds() -> None:
    with Broker() as broker:
        answering, silent, speaking = (padded_subscriber(broker, b"t") for _ in range(3))
        start = time.monotonic()
        for seconds in (10, 20, 30):
            assert silent.receive(64, 15) == PING
            assert abs(time.monotonic() - start - seconds) < 1
            assert answering.receive(64, 1) == PING
            answering.send(PONG)
            if seconds == 10:
                assert speaking.receive(64, 1) == PING
                time.sleep(5)
                speaking.send(padded(b"Hello"))  # its time begins anew, its count does not
        assert silent.closed(15)
        assert abs(time.monotonic() - start - 40) < 1
        assert speaking.receive(128) == PING * 2
        assert speaking.closed(15)
        assert abs(time.monotonic() - start - 45) < 1
        broker.out.wait(f"{speaking.address} disconnected by Server")
        for client in (silent, speaking):
            assert told(broker, client) == GIVEN_UP
        assert told(broker, answering) == []
