"""MQTT 5's properties of a message, to and from what the broker carries through its log.

payload format     $payload-format     "1"
content type       $content-type       text
response topic     $response-topic     text
correlation data   $correlation-data   base64
message expiry     $expires            ISO time, UTC: when, not in how long
user property      its own name; one that begins with `$` gets another `$` before it
"""

from base64 import b64decode, b64encode
from binascii import Error
from typing import TypeAlias

from smbroker.dialects.mqtt import fields as f
from smbroker.dialects.mqtt.fields import Properties
from smbroker.dialects.mqtt.moments import as_seconds, as_text

Pairs: TypeAlias = tuple[tuple[str, str], ...]

EXPIRES = "$expires"
CORRELATION = "$correlation-data"
LONGEST = 65_535  # bytes of a text, or of binary data
LONGEST_EXPIRY = 0xFFFF_FFFF  # seconds


def to_pairs(properties: Properties, now: float) -> Pairs:
    """`now`: seconds since 1970."""
    pairs: list[tuple[str, str]] = []
    if properties.get(f.PAYLOAD_FORMAT):
        pairs.append(("$payload-format", "1"))
    if f.CONTENT_TYPE in properties:
        pairs.append(("$content-type", properties[f.CONTENT_TYPE]))
    if f.RESPONSE_TOPIC in properties:
        pairs.append(("$response-topic", properties[f.RESPONSE_TOPIC]))
    if f.CORRELATION_DATA in properties:
        pairs.append((CORRELATION, b64encode(properties[f.CORRELATION_DATA]).decode()))
    if f.MESSAGE_EXPIRY in properties:
        pairs.append((EXPIRES, as_text(now + properties[f.MESSAGE_EXPIRY])))
    pairs += [("$" + key if key.startswith("$") else key, value) for key, value in properties.get(f.USER, ())]
    return tuple(pairs)


def expires(pairs: Pairs) -> float | None:
    """When a message is out of date, in seconds since 1970."""
    for key, value in pairs:
        if key == EXPIRES:
            return as_seconds(value)
    return None


def fault(pairs: Pairs) -> str:
    """Why they cannot be a message's properties; nothing if they can."""
    for key, value in pairs:
        if _too_long(key) or _too_long(value):
            return f"the property {key[:50]!r} is longer than {LONGEST} bytes"
        if "\0" in key or "\0" in value:
            return f"the property {key[:50]!r} has a character U+0000"
        if key == EXPIRES and as_seconds(value) is None:
            return f"{EXPIRES} is no time such as 2026-03-01T12:00:00Z"
        if key == CORRELATION and _decoded(value) is None:
            return f"{CORRELATION} is not base64"
    return ""


def to_properties(pairs: Pairs, now: float) -> Properties:
    """What MQTT cannot say is left out."""
    properties: Properties = {}
    user: list[tuple[str, str]] = []
    for key, value in pairs:
        if _too_long(key) or _too_long(value):
            continue
        if not key.startswith("$") or key.startswith("$$"):
            user.append((key[1:] if key.startswith("$") else key, value))
        elif key == "$payload-format":
            properties[f.PAYLOAD_FORMAT] = 1
        elif key == "$content-type":
            properties[f.CONTENT_TYPE] = value
        elif key == "$response-topic":
            properties[f.RESPONSE_TOPIC] = value
        elif key == CORRELATION and (data := _decoded(value)) is not None:
            properties[f.CORRELATION_DATA] = data
    when = expires(pairs)
    if when is not None:
        # "the value received … minus the time that the Application Message has been waiting" [MQTT-3.3.2-6]
        properties[f.MESSAGE_EXPIRY] = min(max(round(when - now), 1), LONGEST_EXPIRY)
    if user:
        properties[f.USER] = user
    return properties


def _too_long(text: str) -> bool:
    return 4 * len(text) > LONGEST and len(text.encode()) > LONGEST


def _decoded(text: str) -> bytes | None:
    try:
        return b64decode(text)
    except (Error, ValueError):
        return None
