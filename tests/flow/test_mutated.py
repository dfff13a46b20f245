"""Anything at all on any socket, random or a little wrong: the broker lives, and others are served."""

import os
import random
import socket
from collections.abc import Iterator
from contextlib import suppress
from itertools import count
from pathlib import Path

import pytest

from flow.hostile import DATAGRAMS, SEED, STREAMS, hostile
from flow.house import LIMIT, Broker
from flow.unharmed import RESET, Growth, check_all_dialects, roomy, unharmed
from flow.wires import PING, PONG, TypedSubscriber, answers, descriptors, identity, wait_descriptors

LONG = bool(os.environ.get("SMB_LONG"))
NUMBER = 10_000 if LONG else 4_000  # of datagrams or streams per dialect
MOST_GROWTH = 50_000_000  # bytes

_names = count()


class Fuzzed:
    """A broker, what it has grown by since the first of these tests, and how much of each dialect it is given."""

    def __init__(self, broker: Broker, number: int) -> None:
        self.broker = broker
        self.growth = Growth(broker)
        self.number = number
        self.control = broker.udp()  # a later one might get the port, and so the subscriptions, of one that has closed


@pytest.fixture(scope="module", params=["no log", "log"])
def fuzzed(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fuzzed]:
    """With the log, every subscription of a padded stream is given all that the streams before it published."""
    log = request.param == "log"
    with Broker(*roomy(tmp_path_factory), *([] if log else ["--no-log"])) as broker:
        check_all_dialects(broker)
        yield Fuzzed(broker, NUMBER if LONG or not log else NUMBER // 4)


def lost_datagrams(port: int) -> int:
    """What the kernel dropped because the broker did not read fast enough."""
    rows = [line.split() for line in Path("/proc/net/udp").read_text().splitlines()[1:]]
    return sum(int(row[-1]) for row in rows if row[1].endswith(f":{port:04X}"))


@pytest.mark.parametrize("dialect", DATAGRAMS)
def test_random_and_mutated_datagrams_do_no_harm(fuzzed: Fuzzed, dialect: str) -> None:
    print(f"SMB_SEED={SEED}")
    broker = fuzzed.broker
    kind = "typed" if dialect == "typed UDP" else "udp"
    clients = [broker.udp(kind) for _ in range(50)]
    mark = TypedSubscriber(broker, b"mark") if kind == "typed" else None
    with unharmed(broker):
        for number, data in enumerate(hostile(dialect, fuzzed.number)):
            clients[number % len(clients)].send(data)
            if number % 100 == 99:  # so that none is lost before the broker sees it
                answers(fuzzed.control)
                if mark:
                    mark.settle()
        assert lost_datagrams(broker.ports[kind]) == 0
        for client in clients:
            client.sock.close()
    print(f"after {fuzzed.number} {dialect}: grown by {fuzzed.growth}")
    assert fuzzed.growth.bytes < MOST_GROWTH, str(fuzzed.growth)


@pytest.mark.parametrize("kind", ["own", "tcp"])
@pytest.mark.parametrize("dialect", STREAMS)
def test_random_and_mutated_streams_do_no_harm(fuzzed: Fuzzed, dialect: str, kind: str) -> None:
    print(f"SMB_SEED={SEED}")
    broker, chance = fuzzed.broker, random.Random(SEED)
    port = broker.ports["tcp" if kind == "tcp" else dialect.split()[0]]
    before = descriptors(broker)
    held: list[socket.socket] = []
    with unharmed(broker):
        for number, data in enumerate(hostile(dialect, fuzzed.number // 2)):
            held.append(said(port, data, chance))
            if number % 100 == 99:
                wait_heard(broker, dialect, port)
                close_most(held, chance)
        for sock in held:
            sock.close()
        wait_descriptors(broker, before)
    print(f"after {fuzzed.number // 2} {dialect}: grown by {fuzzed.growth}")
    assert fuzzed.growth.bytes < MOST_GROWTH, str(fuzzed.growth)


def said(port: int, data: bytes, chance: random.Random) -> socket.socket:
    """A new connection that has sent this, in one piece or two."""
    sock = socket.create_connection(("127.0.0.1", port))
    place = chance.choice((len(data), len(data), chance.randrange(len(data) + 1)))
    with suppress(OSError):
        sock.sendall(data[:place])
        sock.sendall(data[place:])
        if chance.random() < 0.1:
            sock.shutdown(socket.SHUT_WR)
    return sock


def close_most(held: list[socket.socket], chance: random.Random) -> None:
    chance.shuffle(held)
    while len(held) > 20:
        sock = held.pop()
        if chance.random() < 0.3:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
        sock.close()


def wait_heard(broker: Broker, dialect: str, port: int) -> None:
    """Until the connections made so far have been accepted: they stand in one line."""
    with socket.create_connection(("127.0.0.1", port), timeout=LIMIT) as sock:
        if dialect == "padded":
            sock.sendall(PING)
            assert sock.recv(64) == PONG
        else:
            name = f"heard{next(_names)}"
            sock.sendall(identity(name.encode()))
            broker.out.wait(f"New client {name} connected")
