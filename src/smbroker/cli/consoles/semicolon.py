"""semicolon on the console: each datagram as it came, on a line.

Nothing tells us that the broker has heard us; at the end we tell it `u`.
"""

from collections.abc import Sequence
from contextlib import closing
from typing import NoReturn

from smbroker.cli import terminal
from smbroker.client.address import Address
from smbroker.client.semicolon import Subscriber, encode_subscribe

__all__ = ["encode_subscribe", "run"]


def run(address: Address, topics: Sequence[bytes]) -> NoReturn:
    [topic] = topics
    with closing(Subscriber(address, topic)) as subscriber:
        subscriber.subscribe()
        while True:
            terminal.write(b"".join(datagram + b"\n" for datagram in subscriber.receive()))
