"""The pipe dialect's client: every request is answered, with a greeting or with `ERROR: …`.

The wire has no time limit; ours is there so that nobody waits forever for a broker that is gone.
"""

from smbroker.client.address import Address
from smbroker.client.datagrams import Datagrams
from smbroker.client.errors import ClientError
from smbroker.dialects.pipe import ERROR, HELLO_SUBSCRIBER, encode_publish, encode_subscribe

__all__ = ["ANSWER_TIMEOUT", "Subscriber", "encode_publish", "encode_subscribe", "publish"]

ANSWER_TIMEOUT = 10.0  # seconds


def publish(address: Address, topic: bytes, message: bytes, answer_timeout: float = ANSWER_TIMEOUT) -> bytes:
    """The broker's greeting, which says that it has the message."""
    request = encode_publish(topic, message)
    datagrams = Datagrams(address)
    try:
        datagrams.send(request)
        return _answer(datagrams, answer_timeout)[0]
    finally:
        datagrams.close()


class Subscriber:
    def __init__(self, address: Address, topic: bytes, answer_timeout: float = ANSWER_TIMEOUT) -> None:
        self._request = encode_subscribe(topic)
        self._answer_timeout = answer_timeout
        self._datagrams = Datagrams(address)

    def subscribe(self) -> tuple[bytes, list[bytes]]:
        """The broker's greeting, and the messages that came with it or overtook it."""
        self._datagrams.send(self._request)
        first = _answer(self._datagrams, self._answer_timeout)
        return HELLO_SUBSCRIBER, [datagram for datagram in first if datagram != HELLO_SUBSCRIBER]

    def receive(self) -> list[bytes]:
        """Datagrams as they came, `TOPIC: … - MESSAGE: …`; waits for the first."""
        return self._datagrams.receive()

    def close(self) -> None:
        self._datagrams.close()


def _answer(datagrams: Datagrams, timeout: float) -> list[bytes]:
    batch = datagrams.receive(timeout)
    if not batch:
        raise ClientError("no_answer", f"no answer from {datagrams.address} within {timeout:g} s; check host and port")
    if batch[0].startswith(ERROR):
        raise ClientError("refused", batch[0].decode(errors="backslashreplace"))
    return batch
