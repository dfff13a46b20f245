"""The client's side of padded.

    sends        Publish · title · length · message    Subscribe · title    Pong    Disconnect
    receives     PubAck    SubAck    Ping    Pong    Message · title · length · message

The broker is held to its word: lengths are bytes, and an unknown command is an error.
"""

from dataclasses import dataclass
from typing import TypeAlias

from smbroker.dialects.padded.fields import PUBLISH, SUBSCRIBE, Fields, title_field
from smbroker.model.errors import ProtocolError, Refused
from smbroker.model.topic import Topic, checked_topic


@dataclass(frozen=True, slots=True)
class PubAck:
    pass


@dataclass(frozen=True, slots=True)
class SubAck:
    pass


@dataclass(frozen=True, slots=True)
class Ping:
    pass


@dataclass(frozen=True, slots=True)
class Pong:
    pass


@dataclass(frozen=True, slots=True)
class Message:
    title: Topic
    message: bytes


Received: TypeAlias = PubAck | SubAck | Ping | Pong | Message

ALONE: dict[bytes, Received] = {b"puback": PubAck(), b"suback": SubAck(), b"ping": Ping(), b"pong": Pong()}
MESSAGE = b"message"


def encode_publish(topic: Topic, message: bytes) -> bytes:
    return b"%b%b%-64d%b" % (PUBLISH, title_field(checked_topic(topic), Refused), len(message), message)


def encode_subscribe(topic: Topic) -> bytes:
    return SUBSCRIBE + title_field(checked_topic(topic), Refused)


class ClientDecoder:
    """Feed it what the broker sent, then take what that means with `next()` until it says None."""

    __slots__ = ("_fields", "_head")

    def __init__(self) -> None:
        self._fields = Fields()
        self._head: list[bytes] = []  # command, title and length of a Message, as far as they have come

    def feed(self, data: bytes) -> None:
        self._fields.feed(data)

    @property
    def held(self) -> int:
        return self._fields.held

    def next(self) -> Received | None:
        received = self._next()
        if received is None:
            self._fields.drop_used()
        return received

    def _next(self) -> Received | None:
        head = self._head
        while len(head) < 3:
            field = self._fields.field()
            if field is None:
                return None
            if not head and field.lower() in ALONE:
                return ALONE[field.lower()]
            if not head and field.lower() != MESSAGE:
                raise ProtocolError("malformed", f"the broker sent {field[:20]!r}, which is no known command")
            head.append(field)
        return self._message(*head[1:])

    def _message(self, title: bytes, length: bytes) -> Message | None:
        if not length.isdigit():
            raise ProtocolError("malformed", "the length is not a number")
        if self._fields.held < int(length):
            return None
        self._head = []
        try:
            return Message(checked_topic(title), self._fields.take(int(length)))
        except Refused as error:
            raise ProtocolError(error.code, error.text) from error
