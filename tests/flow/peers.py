"""UDP peers at addresses of their own, and ways to line them up with a broker.

    peer = Peer(broker, "127.0.0.2")       all of 127/8 is loopback: each test may have its own addresses
    with frozen(broker): ...               what is sent inside is read by the broker at once
    settled(broker)                        everything sent before has been dealt with
    counts(broker)                         stops it: what it dropped, by reason
Nothing here knows more of a dialect than how to subscribe.
"""

import re
import signal
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from flow.house import Broker, Udp, wait_for

SUBSCRIBE = {"soh": b"S", "pipe": b"S|", "semicolon": b"s"}


class Peer(Udp):
    """Bound to an address before it connects, so that it can come back to the same one."""

    def __init__(self, broker: Broker, host: str = "127.0.0.1", own: int = 0, kind: str = "udp") -> None:
        self.sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4 << 20)
        self.sock.bind((host, own))
        self.sock.connect(("127.0.0.1", broker.ports[kind]))
        self._broker, self._kind = broker, kind

    def subscribe(self, dialect: str, topic: bytes) -> None:
        """Subscribes and makes sure that the broker has dealt with it."""
        self.send(SUBSCRIBE[dialect] + topic)
        expected = {"soh": b"A" + topic, "pipe": b"Hello Subscriber!"}
        if dialect in expected:
            assert self.receive() == expected[dialect]
        else:
            settled(self._broker, self._kind)

    def again(self) -> "Peer":
        """A new socket at the same address and port; the old one is closed."""
        host, port = self.address
        self.sock.close()
        return Peer(self._broker, host, port, self._kind)

    def close(self) -> None:
        self.sock.close()


def settled(broker: Broker, kind: str = "udp") -> None:
    """A question that is answered after all that came before it on that socket; no wildcard sees its topic."""
    client = Udp(broker.ports[kind])
    assert client.ask(b"P|$settled|")
    client.sock.close()


@contextmanager
def frozen(broker: Broker) -> Iterator[None]:
    """The broker stands still meanwhile; what is sent to it then comes in one read."""
    broker.signal(signal.SIGSTOP)
    try:
        status = Path(f"/proc/{broker.process.pid}/stat")
        wait_for(lambda: status.read_text().rpartition(")")[2].split()[0] == "T", "the broker to stand still")
        yield
    finally:
        broker.signal(signal.SIGCONT)


def signalled(broker: Broker, number: int) -> None:
    """Sends the signal and makes sure that the broker has taken note of it."""
    broker.signal(number)
    for _ in range(3):
        settled(broker)


def counts(broker: Broker) -> dict[str, int]:
    """Stops the broker; what it says it has dropped: `reason`, or `dialect reason` for what did not fit."""
    broker.stop()
    line = next((line for line in broker.err.all if "dropped in all: " in line), "dropped in all: ")
    found = re.findall(r"([a-z_0-9 ]+) (\d+)(?:, |$)", line.partition("dropped in all: ")[2])
    return {reason: int(count) for reason, count in found}
