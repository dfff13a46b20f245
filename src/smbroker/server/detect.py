"""Which dialect a stream speaks, from its first bytes (listener kind `tcp`).

MQTT begins with 0x10; padded with one of its words, padded with spaces; anything else is typed,
which begins with the client's id. As many bytes as an id has tell those two apart: an id such as
`Ping` or `Ping me` has a NUL among them.
"""

from smbroker.dialects.padded.fields import WORDS
from smbroker.dialects.typed.decoder import IDENTITY
from smbroker.model.message import Dialect

MQTT_CONNECT = b"\x10"
BEGINNINGS = tuple(word.lower().ljust(IDENTITY) for word in WORDS)


def stream_dialect(head: bytes) -> Dialect | None:
    """The dialect, or None while the bytes could still become more than one."""
    if head.startswith(MQTT_CONNECT):
        return Dialect.MQTT
    start = head.lstrip(b" ").lower()
    if any(start.startswith(beginning) for beginning in BEGINNINGS):
        return Dialect.PADDED
    if any(beginning.startswith(start) for beginning in BEGINNINGS):
        return None
    return Dialect.TYPED
