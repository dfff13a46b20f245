"""Where a padded message ends, though one client says its length in characters and others in bytes.

    length 3:   f ü r  =  66 c3 bc | 72        3 bytes are `fü`, 3 characters are `für`

The length is bytes if the bytes are no UTF-8 text, if nothing has come after them, or if what came
is a known command; otherwise it is characters. A length that ends within a character which then
goes on can only be characters. Every byte is looked at once, however slowly the message arrives.
"""

import re
from codecs import utf_8_decode

from smbroker.dialects.padded.fields import WORDS
from smbroker.model.errors import ProtocolError

PIECE = 65_536  # bytes turned into text at a time: enough to be fast, little to hold

_known_command = re.compile(rb" *(?:%b)(?: |\Z)" % b"|".join(WORDS), re.IGNORECASE).match
_LONGEST = max(map(len, WORDS))


class TextEnd:
    """Finds the end of one message that is not ASCII, in a buffer that holds at least `length` bytes of it."""

    __slots__ = ("_bytes", "_characters", "_length", "_limit")

    def __init__(self, length: int, limit: int) -> None:
        self._length = length
        self._limit = limit
        self._bytes = 0  # so many bytes of the message are whole characters,
        self._characters = 0  # so many of them

    def find(self, buffer: bytearray, start: int) -> int | None:
        """How many bytes the message has, or None while that cannot be told."""
        length, here = self._length, len(buffer) - start
        try:
            self._count(buffer, start, length)
            if self._bytes == length:
                missing = length - self._characters
                if here == length or _command_follows(buffer, start + length, missing):
                    return length
                if _word_begun(buffer, start + length) and here < length + missing:
                    return None
            self._count(buffer, start, here)
        except UnicodeDecodeError:
            return length
        if self._bytes > self._limit:
            raise ProtocolError("message_too_long", f"a message of more than {self._limit} bytes")
        return self._bytes if self._characters == length else None

    def _count(self, buffer: bytearray, start: int, end: int) -> None:
        """Counts on to `end`, an incomplete last character excepted, or to as many characters as the length says."""
        while self._bytes < end and self._characters < self._length:
            first = start + self._bytes
            text, used = utf_8_decode(buffer[first : min(first + PIECE, start + end)], "strict", False)
            if not used:
                return
            room = self._length - self._characters
            if len(text) > room:
                text = text[:room]
                used = len(text.encode())
            self._bytes += used
            self._characters += len(text)


def _command_follows(buffer: bytearray, position: int, missing: int) -> bool:
    """Whether a known command stands there. A word of which only the beginning has come counts if
    it is longer than what the text would need to have as many characters as its length says."""
    if _known_command(buffer, position):
        return True
    return len(buffer) - position > missing and _word_begun(buffer, position)


def _word_begun(buffer: bytearray, position: int) -> bool:
    if len(buffer) - position >= _LONGEST:
        return False
    begun = bytes(buffer[position:]).lower()
    return any(word.lower().startswith(begun) for word in WORDS)
