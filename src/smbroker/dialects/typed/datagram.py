"""What a typed publisher sends, over UDP.

    topic 50, NUL-padded · type 1 · content up to 1,500

Bytes after the topic's first NUL do not count; a topic of 50 bytes has no NUL.
"""

from smbroker.dialects.typed.content import NUL, decode_content
from smbroker.model.commands import Command
from smbroker.model.errors import ProtocolError
from smbroker.model.topic import KnownTopics, published_topic

TOPIC = 50
CONTENT = TOPIC + 1  # where it begins


def decode(datagram: bytes) -> Command:
    if len(datagram) < CONTENT:
        raise ProtocolError("too_short", f"{len(datagram)} bytes, a datagram has at least {CONTENT}")
    kind, payload = decode_content(datagram[TOPIC], datagram[CONTENT:])
    return _topics[datagram[:TOPIC]], payload, kind, b""


_topics = KnownTopics(lambda field: published_topic(field.partition(NUL)[0]))
