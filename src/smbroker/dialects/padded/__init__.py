"""padded: TCP, every field is text padded with spaces to 64 bytes; only the message is as long as it says.

    publish      Publish 64 · title 64 · length 64 · message    answered by PubAck 64
    subscribe    Subscribe 64 · title 64                        answered by SubAck 64
    keep-alive   Ping 64, Pong 64                               from either side
    leave        Disconnect 64
    to client    Message 64 · title 64 · length 64 · message

Reading is lenient (`fields`, `message`), writing is strict: fields have 64 bytes, lengths are bytes.
"""

from smbroker.dialects.padded.client import (
    ClientDecoder,
    Message,
    Ping,
    Pong,
    PubAck,
    Received,
    SubAck,
    encode_publish,
    encode_subscribe,
)
from smbroker.dialects.padded.decoder import Decoder
from smbroker.dialects.padded.fields import DISCONNECT, FIELD, PING, PONG, PUBACK, SUBACK, WORDS
from smbroker.dialects.padded.frames import framer
from smbroker.dialects.padded.keepalive import Due, KeepAlive

__all__ = [
    "DISCONNECT",
    "FIELD",
    "PING",
    "PONG",
    "PUBACK",
    "SUBACK",
    "WORDS",
    "ClientDecoder",
    "Decoder",
    "Due",
    "KeepAlive",
    "Message",
    "Ping",
    "Pong",
    "PubAck",
    "Received",
    "SubAck",
    "encode_publish",
    "encode_subscribe",
    "framer",
]
