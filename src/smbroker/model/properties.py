"""Properties of a message: pairs of texts; MQTT's own have names that begin with `$` (`dialects.mqtt.messages`)."""

from base64 import b64decode
from binascii import Error
from typing import TypeAlias

from smbroker.model.moments import as_seconds

Pairs: TypeAlias = tuple[tuple[str, str], ...]

EXPIRES = "$expires"
CORRELATION = "$correlation-data"
LONGEST = 65_535  # bytes of a name or value that MQTT can say


def fault(pairs: Pairs) -> str:
    """Why they cannot be a message's properties; nothing if they can."""
    for key, value in pairs:
        if too_long(key) or too_long(value):
            return f"the property {key[:50]!r} is longer than {LONGEST} bytes"
        if "\0" in key or "\0" in value:
            return f"the property {key[:50]!r} has a character U+0000"
        if key == EXPIRES and as_seconds(value) is None:
            return f"{EXPIRES} is no time such as 2026-03-01T12:00:00Z"
        if key == CORRELATION and correlation(value) is None:
            return f"{CORRELATION} is not base64"
    return ""


def too_long(text: str) -> bool:
    return 4 * len(text) > LONGEST and len(text.encode()) > LONGEST


def correlation(text: str) -> bytes | None:
    """What the text stands for; None if it is no base64."""
    try:
        return b64decode(text)
    except (Error, ValueError):
        return None
