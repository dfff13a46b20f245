"""What must hold whatever was done to a broker: all dialects work, and its memory has hardly grown."""

import struct
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count

import pytest

from flow.hostile import Rate
from flow.house import Broker
from flow.test_pairs import DIALECTS, EXPECTED, Subscriber, publish
from flow.wires import answers, config, fresh

MEGABYTE = 1_000_000
RESET = struct.pack("ii", 1, 0)  # SO_LINGER: a close is a reset

_names = count()


class Growth:
    """Of the broker's memory since this was made."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._before = broker.memory()

    @property
    def bytes(self) -> int:
        return self._broker.memory() - self._before

    def __str__(self) -> str:
        return f"{self.bytes / MEGABYTE:.1f} MB"


def roomy(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Options under which the subscriptions of strangers leave room for those that check."""
    many = config(tmp_path_factory.mktemp("hostile"), "[udp]\nmax_subscriptions_per_address = 100000\n")
    return ["-s", "100000", *many]


@contextmanager
def unharmed(broker: Broker) -> Iterator[None]:
    """What must hold whatever was done: all dialects work, and the broker found no bug in itself."""
    rate, before = Rate(broker.err.all), len(broker.err.all)
    yield
    assert broker.process.poll() is None
    check_all_dialects(broker)
    said = broker.err.all[before:]
    assert not [line for line in said if "Traceback" in line or "a bug in the broker" in line]
    assert rate.kept(), f"{len(said)} lines, the last: {said[-20:]}"


def check_all_dialects(broker: Broker) -> None:
    """All 25 pairs."""
    topic = fresh()
    subscribers = {dialect: Subscriber(broker, dialect, topic, name=f"all{next(_names)}") for dialect in DIALECTS}
    answers(broker.udp())  # so the semicolon subscription, which has no answer, was heard
    for sending in DIALECTS:
        address = publish(broker, sending, topic, sending.encode())
        for receiving, subscriber in subscribers.items():
            expected = EXPECTED[receiving](topic, sending.encode(), address)
            assert subscriber.take(len(expected)) == expected, f"{sending} to {receiving}"
    for subscriber in subscribers.values():
        subscriber.client.sock.close()
