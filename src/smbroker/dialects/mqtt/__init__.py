"""mqtt: versions 3.1, 3.1.1 and 5.0.

    first byte │ length of the body (1 to 4 bytes) │ body
    type flags

`stream` cuts a connection's bytes into packets, `packets` has each of them in both directions, `fields`
what they are made of, `filters`, `messages` and `frames` stand between MQTT and the broker's own words.
"""

from smbroker.dialects.mqtt.filters import decode_filter
from smbroker.dialects.mqtt.frames import check_name, framer_of, packets_in
from smbroker.dialects.mqtt.messages import expires, to_pairs, to_properties
from smbroker.dialects.mqtt.packets import Auth
from smbroker.dialects.mqtt.reasons import Malformed
from smbroker.dialects.mqtt.stream import Acks, Decoder, Mixed, Numbered, One, Run

__all__ = [
    "Acks",
    "Auth",
    "Decoder",
    "Malformed",
    "Mixed",
    "Numbered",
    "One",
    "Run",
    "check_name",
    "decode_filter",
    "expires",
    "framer_of",
    "packets_in",
    "to_pairs",
    "to_properties",
]
