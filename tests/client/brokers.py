"""A broker's end of a socket, for tests of the client within one process."""

import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from threading import Thread

from smbroker.client.address import Address

PATIENCE = 20.0  # seconds until a test that waits in vain fails
SHORT = 0.05  # a timeout that is meant to run out


@contextmanager
def udp_broker(port: int = 0) -> Iterator[tuple[socket.socket, Address]]:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as broker:
        broker.bind(("127.0.0.1", port))
        broker.settimeout(PATIENCE)
        yield broker, Address(*broker.getsockname())


@contextmanager
def tcp_broker() -> Iterator[tuple[socket.socket, Address]]:
    with socket.create_server(("127.0.0.1", 0)) as broker:
        broker.settimeout(PATIENCE)
        yield broker, Address(*broker.getsockname())


def unused(kind: socket.SocketKind) -> Address:
    with socket.socket(socket.AF_INET, kind) as probe:
        probe.bind(("127.0.0.1", 0))
        return Address(*probe.getsockname())


@contextmanager
def scripted_broker(*scripts: Sequence[bytes | None]) -> Iterator[tuple[Address, list[list[bytes]]]]:
    """One script for each connection: answers, each to one read; None closes. Also what each connection has said."""
    heard: list[list[bytes]] = [[] for _ in scripts]

    def talk(connection: socket.socket, script: Sequence[bytes | None], said: list[bytes]) -> None:
        with connection:
            connection.settimeout(PATIENCE)
            for answer in script:
                if answer is None:
                    return
                said.append(connection.recv(1_000))
                connection.sendall(answer)
            said.extend(iter(lambda: connection.recv(1_000), b""))

    def serve() -> None:
        threads = []
        for script, said in zip(scripts, heard, strict=True):
            threads.append(Thread(target=talk, args=(broker.accept()[0], script, said), daemon=True))
            threads[-1].start()
        for thread in threads:
            thread.join(PATIENCE)

    with tcp_broker() as (broker, address):
        serving = Thread(target=serve, daemon=True)
        serving.start()
        yield address, heard
        serving.join(PATIENCE)
