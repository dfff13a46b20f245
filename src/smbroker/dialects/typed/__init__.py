"""typed: publishers speak UDP, subscribers TCP, on the same port number; no acknowledgements.

    publish (UDP)   topic 50 · type 1 · content up to 1,500
    identity (TCP)  id 11                           once, first
    subscribe       s · topic 50 · sf · NUL         sf: keep messages while the subscriber is away
    unsubscribe     u · topic 50 · NUL
    to client       topic 50 · type 1 · content 1,500 · IP as text 16 · port 2 · \\r

Texts are padded with NUL; numbers are big-endian. Inside the broker a number is its decimal text.
"""

from smbroker.dialects.typed.client import (
    Received,
    decode_message,
    encode_identity,
    encode_publish,
    encode_subscribe,
    encode_unsubscribe,
)
from smbroker.dialects.typed.datagram import decode
from smbroker.dialects.typed.decoder import Decoder
from smbroker.dialects.typed.frames import FRAME, framer

__all__ = [
    "FRAME",
    "Decoder",
    "Received",
    "decode",
    "decode_message",
    "encode_identity",
    "encode_publish",
    "encode_subscribe",
    "encode_unsubscribe",
    "framer",
]
