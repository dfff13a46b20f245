"""What the tests of kept subscriptions share: what the state must hold of them, and how a broker ends."""

import pytest

from flow.house import Broker
from flow.lasting import Home, TypedReader
from flow.wires import subscription

KEPT = "SELECT * FROM subscriptions WHERE dialect = 'typed' AND keep = 1"
NOT_KEPT = "SELECT * FROM subscriptions WHERE dialect = 'typed' AND keep = 0"
PEERS = "SELECT * FROM subscriptions WHERE dialect != 'typed'"


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
