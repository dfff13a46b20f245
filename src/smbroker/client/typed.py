"""The typed dialect's client: publishers send datagrams, subscribers hold a connection under an id.

subscriber ─► id ─► subscribe, unsubscribe …      no answers
broker ─► messages of 1,570 bytes each            closes at once if the id is connected already
"""

from smbroker.client.address import Address
from smbroker.client.datagrams import send_once
from smbroker.client.stream import Stream
from smbroker.dialects import typed
from smbroker.dialects.typed import FRAME, Received, decode_message, encode_identity
from smbroker.model.message import Kind

__all__ = ["Received", "Subscriber", "encode_identity", "encode_publish", "encode_subscribe", "publish"]

CONNECT_TIMEOUT = 10.0  # seconds


def encode_publish(topic: bytes, message: bytes, kind: Kind = Kind.STRING) -> bytes:
    """A number may have spaces and newlines around it, as it does when a program printed it."""
    text = message if kind is Kind.STRING else message.strip()
    return typed.encode_publish(topic, kind, text.decode(errors="surrogateescape"))


def encode_subscribe(topic: bytes) -> bytes:
    return typed.encode_subscribe(topic, False)


def publish(address: Address, topic: bytes, message: bytes, kind: Kind = Kind.STRING) -> None:
    send_once(address, encode_publish(topic, message, kind))


class Subscriber:
    def __init__(self, address: Address, client: str) -> None:
        identity = encode_identity(client)
        self._stream = Stream(address, CONNECT_TIMEOUT)
        self._stream.send(identity)
        self._rest = b""

    def fileno(self) -> int:
        return self._stream.fileno()

    def subscribe(self, topic: bytes, keep: bool) -> None:
        """`keep`: have the broker keep messages while we are away (the wire's `sf`)."""
        self._stream.send(typed.encode_subscribe(topic, keep))

    def unsubscribe(self, topic: bytes) -> None:
        self._stream.send(typed.encode_unsubscribe(topic))

    def receive(self) -> list[Received]:
        """The messages that one read completes, perhaps none; waits if there is nothing to read yet."""
        data = self._rest + self._stream.receive()
        end = len(data) - len(data) % FRAME
        self._rest = data[end:]
        return [decode_message(data[start : start + FRAME]) for start in range(0, end, FRAME)]

    def close(self) -> None:
        self._stream.leave()
        self._stream.close()
