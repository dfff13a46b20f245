"""What a typed subscriber sends, over TCP, glued together or split anywhere.

    identity     id · NUL …                       11 bytes, once
    subscribe    s · topic 50 · sf · NUL          53 bytes
                 s · topic 50 · NUL · sf · NUL …  55 bytes, from one client
    unsubscribe  u · topic 50                     51 bytes, from one client with a newline in the topic
                 u · topic 50 · NUL               52 bytes

NULs between commands are skipped, so of a subscribe the first 53 bytes count and of an unsubscribe 51.
"""

import re

from smbroker.dialects.typed.content import NUL
from smbroker.model.commands import Command, Identify, Reject, Subscribe, Unsubscribe
from smbroker.model.errors import ProtocolError, Refused
from smbroker.model.filter import Filter, exact
from smbroker.model.topic import checked_topic

IDENTITY = 11
TOPIC = slice(1, 51)
SF = slice(51, 53)

_find_command = re.compile(rb"[^\0]").search


class Decoder:
    """Feed it what arrives, then take commands with `next()` until it says None."""

    __slots__ = ("_buffer", "_identified", "_start")

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._start = 0  # what comes before it is used
        self._identified = False

    def feed(self, data: bytes) -> None:
        self._buffer += data

    @property
    def held(self) -> int:
        return len(self._buffer) - self._start

    def next(self) -> Command | None:
        command = self._command() if self._identified else self._identity()
        if command is None and self._start:
            del self._buffer[: self._start]
            self._start = 0
        return command

    def _identity(self) -> Command | None:
        raw = self._taken(IDENTITY)
        if raw is None:
            return None
        client, nul, _ = raw.partition(NUL)
        if not client:
            raise ProtocolError("id_empty", "the id is empty")
        if not nul:
            raise ProtocolError("id_too_long", f"the id has more than {IDENTITY - 1} bytes")
        try:
            text = client.decode()
        except UnicodeDecodeError as error:
            raise ProtocolError("id_not_utf8", "the id is not UTF-8") from error
        self._identified = True
        return Identify(text)

    def _command(self) -> Command | None:
        found = _find_command(self._buffer, self._start)
        self._start = found.start() if found else len(self._buffer)
        if found is None:
            return None
        verb = self._buffer[self._start]
        if verb not in COMMANDS:
            raise ProtocolError("unknown_command", f"the command byte is {verb}, neither s nor u")
        size, command = COMMANDS[verb]
        raw = self._taken(size)
        if raw is None:
            return None
        try:
            return command(raw)
        except Refused as error:
            return Reject(error.code, error.text)

    def _taken(self, size: int) -> bytes | None:
        start, end = self._start, self._start + size
        if len(self._buffer) < end:
            return None
        self._start = end
        return bytes(self._buffer[start:end])


def _subscribe(raw: bytes) -> Command:
    keep = any(byte in b"\x011" for byte in raw[SF])
    return Subscribe(_filter(_topic(raw)), keep=keep)


def _unsubscribe(raw: bytes) -> Command:
    return Unsubscribe(_filter(_topic(raw).strip(b"\n ")))


COMMANDS = {ord("s"): (53, _subscribe), ord("u"): (51, _unsubscribe)}


def _topic(raw: bytes) -> bytes:
    return raw[TOPIC].partition(NUL)[0]


def _filter(topic: bytes) -> Filter:
    return exact(checked_topic(topic))
