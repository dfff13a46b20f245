"""pipe on the console: each datagram as it came, on a line.

The broker's greeting is no message and goes to standard error.
"""

from collections.abc import Sequence
from contextlib import closing
from typing import NoReturn

from smbroker.cli import terminal
from smbroker.client.address import Address
from smbroker.client.pipe import Subscriber, encode_subscribe

__all__ = ["encode_subscribe", "run"]


def run(address: Address, topics: Sequence[bytes]) -> NoReturn:
    [topic] = topics
    with closing(Subscriber(address, topic)) as subscriber:
        greeting, batch = subscriber.subscribe()
        terminal.say(terminal.text_of(greeting))
        while True:
            terminal.write(b"".join(datagram + b"\n" for datagram in batch))
            batch = subscriber.receive()
