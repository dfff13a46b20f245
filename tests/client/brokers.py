"""A broker's end of a socket, for tests of the client within one process."""

import socket
from collections.abc import Iterator
from contextlib import contextmanager

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
