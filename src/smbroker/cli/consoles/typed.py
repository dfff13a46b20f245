"""typed on the console: commands from standard input, messages as `IP:PORT - TOPIC - INT - -10`.

The end of standard input is not the end of the program: `exit` is, or the broker's closing.
"""

import select
from collections.abc import Sequence
from contextlib import closing

from smbroker.cli import terminal
from smbroker.client.address import Address
from smbroker.client.errors import ClientError
from smbroker.client.typed import Received, Subscriber, encode_subscribe
from smbroker.model.errors import Refused

__all__ = ["encode_subscribe", "run"]

COMMANDS = "subscribe TOPIC SF (SF is 0 or 1), unsubscribe TOPIC, or exit"


def run(address: Address, topics: Sequence[bytes], client: str) -> int:
    lines = terminal.InputLines()
    with closing(Subscriber(address, client)) as subscriber:
        try:
            for topic in topics:
                _subscribe(subscriber, topic, keep=False)
            _converse(subscriber, lines)
        except ClientError as error:
            if error.code != "closed":
                raise
            terminal.warn(f"{error.text}: it was stopped, or the id {client} is in use (then choose another with --id)")
    return 0


def _converse(subscriber: Subscriber, lines: terminal.InputLines) -> None:
    """Until `exit`, or a ClientError."""
    while True:
        sources: list[Subscriber | terminal.InputLines] = [subscriber] if lines.ended else [subscriber, lines]
        readable, _, _ = select.select(sources, [], [])
        if subscriber in readable:
            terminal.write(b"".join(map(_shown, subscriber.receive())))
        if lines in readable:
            for line in lines.read():
                if line.strip() == b"exit":
                    return
                _obey(subscriber, line)


def _obey(subscriber: Subscriber, line: bytes) -> None:
    try:
        match line.split():
            case [b"subscribe", topic, b"0" | b"1" as sf]:
                _subscribe(subscriber, topic, keep=sf == b"1")
            case [b"unsubscribe", topic]:
                subscriber.unsubscribe(topic)
                terminal.write(b"Unsubscribed from topic.\n")
            case [_, *_]:
                terminal.warn(f"{terminal.text_of(line)}: no such command; type {COMMANDS}")
    except Refused as error:
        terminal.warn(f"{terminal.text_of(line)}: {error.text}")


def _subscribe(subscriber: Subscriber, topic: bytes, keep: bool) -> None:
    subscriber.subscribe(topic, keep)
    terminal.write(b"Subscribed to topic.\n")


def _shown(message: Received) -> bytes:
    text = message.text if isinstance(message.text, bytes) else message.text.encode()
    source = f"{message.host}:{message.port}".encode()
    return b"%b - %b - %b - %b\n" % (source, message.topic, message.kind.name.encode(), text)
