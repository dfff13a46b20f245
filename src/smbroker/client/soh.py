"""The soh dialect's client: publishes are not acknowledged, subscriptions are.

    ask ─► wait 15 s for each ACK ─► ask again for those missing, until all are there
           │
           ├ ACK of what we asked for          that subscription stands
           ├ message that a subscription fits  stands in for its ACK, which may have been lost
           └ anything else                     we are talking to the wrong one: it fails

Once all stand, messages just come. The wire knows no unsubscribe.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from time import monotonic
from typing import TypeAlias

from smbroker.client.address import Address
from smbroker.client.datagrams import Datagrams, send_once
from smbroker.client.errors import ClientError
from smbroker.dialects import soh
from smbroker.dialects.soh import Ack, Message, decode_reply, encode_publish, encode_subscribe
from smbroker.model.commands import Subscribe
from smbroker.model.errors import ProtocolError
from smbroker.model.filter import Filter, matches

__all__ = [
    "ACK_TIMEOUT",
    "Ack",
    "Event",
    "Message",
    "Note",
    "Subscriber",
    "encode_publish",
    "encode_subscribe",
    "publish",
]

ACK_TIMEOUT = 15.0  # seconds


@dataclass(frozen=True, slots=True)
class Note:
    """Something that the person at the terminal may want to know; we go on."""

    text: str


Event: TypeAlias = Ack | Message | Note


def publish(address: Address, topic: bytes, message: bytes) -> None:
    send_once(address, encode_publish(topic, message))


class Subscriber:
    def __init__(self, address: Address, topics: Sequence[bytes], ack_timeout: float = ACK_TIMEOUT) -> None:
        self._filters = {topic: _filter(topic) for topic in topics}
        self._pending = dict.fromkeys(topics)  # not acknowledged yet, in the order asked for
        self._ack_timeout = ack_timeout
        self._datagrams = Datagrams(address)

    def events(self) -> Iterator[list[Event]]:
        """Subscribes, and then whatever happens, as it comes: without end, or to a ClientError."""
        ask_at = monotonic()
        while True:
            if self._pending and monotonic() >= ask_at:
                yield from self._asked()
                ask_at = monotonic() + self._ack_timeout
            try:
                batch = self._datagrams.receive(ask_at - monotonic() if self._pending else None)
            except ClientError as error:
                yield [self._again(error)]
                continue
            if not self._pending:
                yield [event for datagram in batch for event in self._accepted(datagram)]
            elif batch:  # one by one: what is good gets out before what is not ends it
                yield from map(self._accepted, batch)
            else:
                yield [Note(f"no answer from {self._datagrams.address} in {self._ack_timeout:g} s; asking again")]

    def close(self) -> None:
        self._datagrams.close()

    def _asked(self) -> Iterator[list[Event]]:
        for topic in self._pending:
            try:
                self._datagrams.send(encode_subscribe(topic))
            except ClientError as error:
                yield [self._again(error)]
                return

    def _again(self, error: ClientError) -> Note:
        """A broker that is not there yet may come: it is asked again when the time is up."""
        if error.code != "nobody_listens":
            raise error
        return Note(f"{error.text}; asking again every {self._ack_timeout:g} s")

    def _accepted(self, datagram: bytes) -> list[Event]:
        try:
            reply = decode_reply(datagram)
        except ProtocolError as error:
            if self._pending:
                raise ClientError("mismatch", f"{error.text}; subscribing failed") from error
            return [Note(f"ignored what the broker sent: {error.text}")]
        fitting = self._fitting(reply)
        if self._pending and not fitting:
            raise ClientError("mismatch", f"{_described(reply)}, which we did not ask for; subscribing failed")
        news: list[Event] = [Ack(topic) for topic in fitting if topic in self._pending]
        for topic in fitting:
            self._pending.pop(topic, None)
        return [*news, reply] if isinstance(reply, Message) else news

    def _fitting(self, reply: Ack | Message) -> list[bytes]:
        """Those of our subscriptions that the broker's word is about."""
        if isinstance(reply, Ack):
            return [reply.topic] if reply.topic in self._filters else []
        return [topic for topic, pattern in self._filters.items() if matches(pattern, reply.topic)]


def _filter(topic: bytes) -> Filter:
    command = soh.decode(encode_subscribe(topic))
    assert isinstance(command, Subscribe)  # what we just encoded
    return command.filter


def _described(reply: Ack | Message) -> str:
    what = "acknowledged" if isinstance(reply, Ack) else "sent a message of"
    return f"the broker {what} {reply.topic.decode(errors='backslashreplace')}"
