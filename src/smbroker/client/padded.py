"""The padded dialect's client: everything is acknowledged, and a connection has one title.

    publish ─► PubAck within 10 s, or it failed
    subscribe ─► SubAck within 10 s, or it failed ─► messages until the broker closes
    at any time: Ping ─► Pong

A Subscriber is made in one thread, which also closes it; `run` is the whole life of another.
"""

from collections.abc import Callable
from dataclasses import dataclass
from time import monotonic
from typing import TypeAlias

from smbroker.client.address import Address
from smbroker.client.errors import ClientError
from smbroker.client.stream import Stream
from smbroker.dialects.padded import (
    DISCONNECT,
    PONG,
    ClientDecoder,
    Message,
    Ping,
    PubAck,
    Received,
    SubAck,
    encode_publish,
    encode_subscribe,
)
from smbroker.model.errors import SmbError

__all__ = [
    "ACK_TIMEOUT",
    "Ended",
    "Event",
    "Message",
    "Subscribed",
    "Subscriber",
    "encode_publish",
    "encode_subscribe",
    "publish",
]

ACK_TIMEOUT = 10.0  # seconds


@dataclass(frozen=True, slots=True)
class Subscribed:
    title: bytes


@dataclass(frozen=True, slots=True)
class Ended:
    """This subscriber gets nothing any more."""

    title: bytes
    reason: str


Event: TypeAlias = Subscribed | Message | Ended


def publish(address: Address, title: bytes, message: bytes, ack_timeout: float = ACK_TIMEOUT) -> None:
    """Returns once the broker has acknowledged the message."""
    request = encode_publish(title, message)
    deadline = monotonic() + ack_timeout
    replies = _Replies(Stream(address, ack_timeout))
    try:
        replies.stream.send(request)
        while not isinstance(replies.next(deadline), PubAck):
            pass
        replies.stream.leave(DISCONNECT)
    except SmbError as error:
        raise _failure("PubAck", "the publish failed", ack_timeout, error) from error
    finally:
        replies.stream.close()


class Subscriber:
    def __init__(self, address: Address, title: bytes, ack_timeout: float = ACK_TIMEOUT) -> None:
        request = encode_subscribe(title)
        self.title = title
        self._ack_timeout = ack_timeout
        self._deadline = monotonic() + ack_timeout
        self._replies = _Replies(Stream(address, ack_timeout))
        self._replies.stream.send(request)

    def run(self, deliver: Callable[[Event], None]) -> None:
        """Delivers what happens, Ended as the last."""
        deadline: float | None = self._deadline
        try:
            while True:
                reply = self._replies.next(deadline)
                if isinstance(reply, Message):
                    deliver(reply)
                elif isinstance(reply, SubAck) and deadline is not None:
                    deadline = None
                    deliver(Subscribed(self.title))
        except SmbError as error:
            failure = error if deadline is None else _failure("SubAck", "subscribing failed", self._ack_timeout, error)
            self.close()
            self._replies.stream.close()
            deliver(Ended(self.title, failure.text))

    def close(self) -> None:
        self._replies.stream.leave(DISCONNECT)


class _Replies:
    """What the broker says, one at a time; its Pings are answered here."""

    def __init__(self, stream: Stream) -> None:
        self.stream = stream
        self._decoder = ClientDecoder()

    def next(self, deadline: float | None) -> Received:
        while True:
            reply = self._decoder.next()
            if isinstance(reply, Ping):
                self.stream.send(PONG)
            elif reply is not None:
                return reply
            else:
                self._decoder.feed(self.stream.receive(deadline))


def _failure(ack: str, consequence: str, timeout: float, error: SmbError) -> ClientError:
    late = error.code == "no_answer"
    return ClientError(
        error.code,
        f"no {ack} within {round(timeout, 2):g} s; {consequence}" if late else f"{error.text}; {consequence}",
    )
