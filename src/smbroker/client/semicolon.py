"""The semicolon dialect's client: datagrams without acknowledgement.

A publisher sends and hopes. A subscriber says `u` before it goes.
"""

from smbroker.client.address import Address
from smbroker.client.datagrams import Datagrams, send_once
from smbroker.client.errors import ClientError
from smbroker.dialects import semicolon
from smbroker.model.topic import checked_topic


def encode_publish(topic: bytes, message: bytes) -> bytes:
    return semicolon.encode_publish(checked_topic(topic), message)


def encode_subscribe(topic: bytes) -> bytes:
    return semicolon.encode_subscribe(checked_topic(topic))


def publish(address: Address, topic: bytes, message: bytes) -> None:
    send_once(address, encode_publish(topic, message))


class Subscriber:
    def __init__(self, address: Address, topic: bytes) -> None:
        self._request = encode_subscribe(topic)
        self._datagrams = Datagrams(address)

    def subscribe(self) -> None:
        self._datagrams.send(self._request)

    def receive(self) -> list[bytes]:
        """Datagrams as they came, `topic;message`; waits for the first."""
        return self._datagrams.receive()

    def close(self) -> None:
        try:
            self._datagrams.send(semicolon.encode_unsubscribe())
        except ClientError:  # nobody is left to be told
            pass
        self._datagrams.close()
