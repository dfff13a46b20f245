"""Streams in numbers and under cuts: nothing is lost, nothing repeated, and a thousand that idle do no harm."""

import json
import random
import resource
import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from flow.cuts import Way
from flow.house import LIMIT, Broker, wait_for
from web.calls import KINDS, get, post, post_lines

STREAMS = 1_000  # as many as there may be
MEMORY = 100_000  # bytes of one that idles
CUTS = 25
BATCH = 50


def whole_events(port: int, last: int | None) -> Iterator[int]:
    """The numbers of events that came whole, until the connection ends."""
    head = "" if last is None else f"Last-Event-ID: {last}\r\n"
    with socket.create_connection(("127.0.0.1", port), timeout=LIMIT) as sock:
        sock.sendall(f"GET /v1/subscribe?from=0&filter=n HTTP/1.1\r\nHost: localhost\r\n{head}\r\n".encode())
        data = b""
        while True:
            try:
                piece = sock.recv(1 << 16)
            except ConnectionError:
                piece = b""
            if not piece:
                return
            data += piece
            *whole, data = data.split(b"\n\n")
            for event in whole:
                lines = dict(line.split(b": ", 1) for line in event.splitlines() if line.startswith((b"id", b"data")))
                if b"data" in lines:
                    assert json.loads(lines[b"data"])["offset"] == int(lines[b"id"])
                    yield int(lines[b"id"])


def test_however_often_the_connection_is_cut_while_much_flows_nothing_is_lost() -> None:
    chance = random.Random(5)
    enough = threading.Event()
    with Broker(kinds=KINDS) as broker, Way(broker.ports["web"]) as way:
        count = 0

        def publish() -> None:
            nonlocal count
            while not enough.is_set():
                messages = ({"topic": "n" if row % 2 else "other", "payload": f"{row}"} for row in range(BATCH))
                assert post_lines(broker, *messages).status == 200
                count += BATCH

        publishing = threading.Thread(target=publish)
        publishing.start()
        seen: list[int] = []
        try:
            for _ in range(CUTS):
                until = len(seen) + chance.randrange(1, 400)
                for number in whole_events(way.port, seen[-1] if seen else None):
                    seen.append(number)
                    if len(seen) == until:  # what has arrived already still counts
                        way.cut()
                        way.mend()
        finally:
            enough.set()
            publishing.join()
        for number in whole_events(way.port, seen[-1]):
            seen.append(number)
            if number == count - 1:
                break
        assert seen == list(range(1, count, 2))


@pytest.fixture
def _many_descriptors() -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard < STREAMS + 500:
        pytest.skip(f"this process may open {hard} files only")
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.usefixtures("_many_descriptors")
def test_a_thousand_idle_streams_are_bounded_and_harm_nobody() -> None:
    with Broker(kinds=KINDS) as broker, ExitStack() as open_:
        before = broker.memory()
        request = b"GET /v1/subscribe?filter=never HTTP/1.1\r\nHost: localhost\r\n\r\n"
        streams = []
        for _ in range(STREAMS):
            sock = open_.enter_context(socket.create_connection(("127.0.0.1", broker.ports["web"]), timeout=LIMIT))
            sock.sendall(request)
            streams.append(sock)
        for sock in streams:
            assert sock.recv(12) == b"HTTP/1.1 200"
        assert get(broker, "/v1/stats").json["streams"] == STREAMS
        assert broker.memory() - before < STREAMS * MEMORY
        said = get(broker, "/v1/subscribe")
        assert (said.status, said.code) == (503, "too_many_streams")
        said = get(broker, "/v1/live")
        assert (said.status, said.code) == (503, "too_many_streams")
        peer = broker.udp()
        peer.send(b"sidle/#")
        for number in range(50):
            assert post(broker, "idle/a", b"%d" % number).status == 200
            assert peer.receive() == b"idle/a;%d" % number
        open_.close()
        wait_for(lambda: get(broker, "/v1/stats").json["streams"] == 0, "no streams")
