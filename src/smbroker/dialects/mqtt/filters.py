"""MQTT's topic filters to the broker's: `+` is one level, `#` at the end the rest; `$share/GROUP/FILTER`.

[MQTT-4.7.1] `#` only as the last level, `+` and `#` only as whole levels; [MQTT-4.8.2] a share name is not
empty and has no wildcard.
"""

from smbroker.dialects.mqtt.reasons import PROTOCOL_ERROR, TOPIC_FILTER_INVALID, Malformed
from smbroker.model.errors import Refused
from smbroker.model.filter import Filter, parse

SHARE = b"$share/"
MAX_LEVELS = 200  # each is a node of the router


def decode_filter(raw: bytes) -> tuple[str, Filter]:
    """The share name (empty: not shared) and the filter."""
    group, rest = "", raw
    if raw.startswith(SHARE):
        name, _, rest = raw[len(SHARE) :].partition(b"/")
        if not name or not rest or b"+" in name or b"#" in name:  # [MQTT-4.8.2-1], [MQTT-4.8.2-2]
            raise Malformed("mqtt_filter", "a shared subscription is $share/NAME/FILTER", PROTOCOL_ERROR)
        group = name.decode()
    try:
        pattern = parse(rest.decode())
    except Refused as error:
        raise _bad(error.text) from error
    if len(pattern) > MAX_LEVELS:
        raise _bad(f"a filter has at most {MAX_LEVELS} levels")
    return group, pattern


def _bad(text: str) -> Malformed:
    return Malformed("mqtt_filter", text, TOPIC_FILTER_INVALID)
