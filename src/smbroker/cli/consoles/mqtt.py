"""mqtt on the console: `topic message`."""

from collections.abc import Sequence

from smbroker.cli import terminal
from smbroker.client.address import Address
from smbroker.client.mqtt import Subscriber, encode_subscribe

__all__ = ["encode_subscribe", "run"]


def run(address: Address, filters: Sequence[bytes]) -> int:
    subscriber = Subscriber(address, filters)
    try:
        for refused in subscriber.refused:
            terminal.error(f"{terminal.text_of(refused)}: the broker refused it")
        if len(subscriber.refused) == len(filters):
            return 1
        subscriber.run(_print)
    finally:
        subscriber.close()
    return 0


def _print(messages: list[tuple[bytes, bytes]]) -> None:
    terminal.write(b"".join(b"%b %b\n" % message for message in messages))
