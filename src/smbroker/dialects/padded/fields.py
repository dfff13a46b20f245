"""The fields of padded: 64 bytes each, text and then spaces.

    P u b l i s h · · · · …        one field, and what a client may make of it:
    · · P u b l i s h · · …        spaces before it (one client pads `Subscribe` to 66 bytes, and
                                   non-ASCII fields to 64 characters, so some of the last one's are left)

So a field begins at the first byte that is no space, and is never empty.
"""

import re

from smbroker.model.errors import SmbError
from smbroker.model.topic import Topic

FIELD = 64
WORDS = (b"Publish", b"Subscribe", b"PubAck", b"SubAck", b"Message", b"Ping", b"Pong", b"Disconnect")

_SPACE = ord(" ")
_find_text = re.compile(rb"[^ ]").search


def padded(text: bytes) -> bytes:
    return text.ljust(FIELD)


PUBLISH, SUBSCRIBE, PUBACK, SUBACK, MESSAGE, PING, PONG, DISCONNECT = map(padded, WORDS)


def title_field(topic: Topic, error: type[SmbError]) -> bytes:
    if len(topic) > FIELD:
        raise error("topic_too_long", f"topic of {len(topic)} bytes, a title has at most {FIELD}")
    if topic.startswith(b" ") or topic.endswith(b" "):
        raise error("topic_space", "the topic begins or ends with a space")
    return padded(topic)


class Fields:
    """What has arrived and is not used yet: `buffer` from `start` on."""

    __slots__ = ("buffer", "start")

    def __init__(self) -> None:
        self.buffer = bytearray()
        self.start = 0

    def feed(self, data: bytes) -> None:
        self.buffer += data

    @property
    def held(self) -> int:
        return len(self.buffer) - self.start

    def field(self) -> bytes | None:
        """The next field without its padding; None while it is not all here."""
        buffer, start = self.buffer, self.start
        if start < len(buffer) and buffer[start] == _SPACE:
            found = _find_text(buffer, start)
            self.start = start = found.start() if found else len(buffer)
        end = start + FIELD
        if len(buffer) < end:
            return None
        self.start = end
        return bytes(buffer[start:end]).rstrip(b" ")

    def first(self, length: int) -> bytes:
        """The next bytes, which must be here and stay here."""
        return bytes(memoryview(self.buffer)[self.start : self.start + length])

    def take(self, length: int) -> bytes:
        taken = self.first(length)
        self.start += length
        return taken

    def drop_used(self) -> None:
        if self.start:
            del self.buffer[: self.start]  # moves no bytes: a bytearray gives up its front for nothing
            self.start = 0
