"""The broker's side of padded: bytes of one connection to commands.

command 64 ┬ title 64 ─ length 64 ─ message      Publish
           ├ title 64                            Subscribe
           └                                     Ping, Pong, Disconnect; any other word is ignored
"""

from smbroker.dialects.padded.fields import PONG, PUBACK, SUBACK, Fields
from smbroker.dialects.padded.message import TextEnd
from smbroker.model.commands import Alive, Answer, Command, Leave, Reject, Subscribe
from smbroker.model.errors import ProtocolError, Refused
from smbroker.model.filter import exact
from smbroker.model.message import Kind
from smbroker.model.topic import checked_topic, published_topic

PUBLISH, SUBSCRIBE = b"publish", b"subscribe"
ALONE: dict[bytes, Command] = {b"ping": Answer(PONG), b"pong": Alive(), b"disconnect": Leave()}


class Decoder:
    """Feed it what arrives, then take commands with `next()` until it says None."""

    __slots__ = ("_fields", "_length", "_max_payload", "_text", "_title", "_word")

    def __init__(self, max_payload: int) -> None:
        self._max_payload = max_payload
        self._fields = Fields()
        self._begin()

    def _begin(self) -> None:
        """The next field is a command."""
        self._word = b""  # PUBLISH or SUBSCRIBE once that has been read, then
        self._title: bytes | None = None  # of a publish
        self._length: int | None = None
        self._text: TextEnd | None = None  # a message that is all there by its length, but may go on

    def feed(self, data: bytes) -> None:
        self._fields.feed(data)

    @property
    def held(self) -> int:
        return self._fields.held

    def next(self) -> Command | None:
        command = self._next()
        if command is None:
            self._fields.drop_used()
        return command

    def _next(self) -> Command | None:
        while self._title is None:
            field = self._fields.field()
            if field is None:
                return None
            if self._word == PUBLISH:
                self._title = field
            elif self._word == SUBSCRIBE:
                self._word = b""
                return _subscribe(field)
            else:
                word = field.lower()
                if word in ALONE:
                    return ALONE[word]
                if word in (PUBLISH, SUBSCRIBE):
                    self._word = word
        return self._publish(self._title)

    def _publish(self, title: bytes) -> Command | None:
        if self._length is None:
            field = self._fields.field()
            if field is None:
                return None
            self._length = self._checked_length(field)
        message = self._message(self._length)
        if message is None:
            return None
        self._begin()
        try:
            return published_topic(title), message, Kind.BYTES, PUBACK
        except Refused as error:
            return Reject(error.code, error.text)

    def _checked_length(self, field: bytes) -> int:
        if not field.isdigit():
            raise ProtocolError("malformed", "the length is not a number")
        length = int(field)
        if length > self._max_payload:
            raise ProtocolError("message_too_long", f"a message of {length}, at most {self._max_payload}")
        return length

    def _message(self, length: int) -> bytes | None:
        fields = self._fields
        if fields.held < length:
            return None
        if self._text is None:
            message = fields.first(length)
            if message.isascii():
                fields.start += length
                return message
            self._text = TextEnd(length, self._max_payload)
        end = self._text.find(fields.buffer, fields.start)
        return None if end is None else fields.take(end)


def _subscribe(title: bytes) -> Command:
    try:
        return Subscribe(exact(checked_topic(title)), reply=SUBACK)
    except Refused as error:
        return Reject(error.code, error.text)
