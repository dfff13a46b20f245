"""What the tests of kept subscriptions share: what the state must hold of them, and how a broker ends."""

from collections.abc import Sequence
from itertools import count

import pytest

from flow.house import Broker
from flow.lasting import Home, TypedReader, send_all
from flow.wires import subscription

KEPT = "SELECT * FROM subscriptions WHERE dialect = 'typed' AND keep = 1"
NOT_KEPT = "SELECT * FROM subscriptions WHERE dialect = 'typed' AND keep = 0"
PEERS = "SELECT * FROM subscriptions WHERE dialect != 'typed'"


_numbers = count()


class Client:
    """An id of its own, on a broker that it may share."""

    def __init__(self, home: Home, broker: Broker) -> None:
        self.broker = broker
        self.name = b"K%d" % next(_numbers)
        self._home = home

    def reader(self, *commands: bytes) -> TypedReader:
        return TypedReader(self.broker, self.name, *commands)

    def subscribed(self, *topics: bytes) -> TypedReader:
        """With sf = 1 on all of these."""
        reader = self.reader(*(subscription(topic, 1) for topic in topics))
        self.wait_saved(KEPT, len(topics))
        return reader

    def wait_saved(self, sql: str, count: int) -> None:
        self._home.wait_saved(f"{sql} AND name = '{self.name.decode()}'", count)

    def publish(self, topic: bytes, payloads: Sequence[bytes]) -> None:
        send_all(self.broker, topic, payloads)


def subscribed(home: Home, broker: Broker, *topics: bytes, name: bytes = b"C1") -> TypedReader:
    """A client with sf = 1 on all of these."""
    client = TypedReader(broker, name, *(subscription(topic, 1) for topic in topics))
    home.wait_saved(KEPT, len(topics))
    return client


def ended(broker: Broker, how: str) -> None:
    if how == "kill":
        broker.kill()
    else:
        assert broker.stop() == 0
        assert not broker.err.has("Traceback"), broker.err.all


HOW = pytest.mark.parametrize("how", ["stop", "kill"])
