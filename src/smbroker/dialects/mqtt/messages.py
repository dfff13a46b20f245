"""MQTT 5's properties of a message, to and from what the broker carries through its log.

payload format     $payload-format     "1"
content type       $content-type       text
response topic     $response-topic     text
correlation data   $correlation-data   base64
message expiry     $expires            ISO time, UTC: when, not in how long
user property      its own name; one that begins with `$` gets another `$` before it
"""

from base64 import b64encode

from smbroker.dialects.mqtt import fields as f
from smbroker.dialects.mqtt.fields import Properties
from smbroker.model.moments import as_seconds, as_text
from smbroker.model.properties import CORRELATION, EXPIRES, Pairs, correlation, too_long

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


def to_properties(pairs: Pairs, now: float) -> Properties:
    """What MQTT cannot say is left out."""
    properties: Properties = {}
    user: list[tuple[str, str]] = []
    for key, value in pairs:
        if too_long(key) or too_long(value):
            continue
        if not key.startswith("$") or key.startswith("$$"):
            user.append((key[1:] if key.startswith("$") else key, value))
        elif key == "$payload-format":
            properties[f.PAYLOAD_FORMAT] = 1
        elif key == "$content-type":
            properties[f.CONTENT_TYPE] = value
        elif key == "$response-topic":
            properties[f.RESPONSE_TOPIC] = value
        elif key == CORRELATION and (data := correlation(value)) is not None:
            properties[f.CORRELATION_DATA] = data
    when = expires(pairs)
    if when is not None:
        # "the value received … minus the time that the Application Message has been waiting" [MQTT-3.3.2-6]
        properties[f.MESSAGE_EXPIRY] = min(max(round(when - now), 1), LONGEST_EXPIRY)
    if user:
        properties[f.USER] = user
    return properties
