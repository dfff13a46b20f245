"""What a typed subscriber gets: always 1,570 bytes.

    topic 50 · type 1 · content 1,500 · IP as text 16 · port 2 · \\r

Texts are padded with NUL. What is no typed number goes out as STRING. A source without an IPv4
address is 0.0.0.0 and 0.
"""

import re

from smbroker.dialects.typed.content import MAX_CONTENT, NUL, encode_content
from smbroker.dialects.typed.datagram import TOPIC
from smbroker.model.errors import Refused, SmbError, Unfit
from smbroker.model.framing import Framer
from smbroker.model.message import Columns, Kind, Origin
from smbroker.model.topic import Topic

SOURCE = TOPIC + 1 + MAX_CONTENT  # where it begins
HOST = 16
FRAME = SOURCE + HOST + 2 + 1
END = b"\r"
MAX_SOURCES = 64  # of one topic; so many publishers seldom share one

_STRING = Kind.STRING
_ipv4 = re.compile(r"\d{1,3}(?:\.\d{1,3}){3}", re.ASCII).fullmatch


def topic_field(topic: Topic, error: type[SmbError]) -> bytes:
    if len(topic) > TOPIC:
        raise error("topic_too_long", f"topic of {len(topic)} bytes, at most {TOPIC}")
    return topic.ljust(TOPIC, NUL)


class _Sources(dict[Origin, bytes]):
    """The end of a frame, by origin: made once, not per message."""

    def __missing__(self, origin: Origin) -> bytes:
        if len(self) >= MAX_SOURCES:
            self.clear()
        host, port = (origin.host, origin.port) if _ipv4(origin.host) else ("0.0.0.0", 0)
        self[origin] = end = host.encode().ljust(HOST, NUL) + port.to_bytes(2, "big") + END
        return end


def framer(topic: Topic) -> Framer:
    field = topic_field(topic, Unfit)
    string = field + bytes([_STRING])
    sources = _Sources()

    def frames(columns: Columns, start: int, end: int, unfit: list[str]) -> list[bytes]:
        rows = list(zip(columns.kinds[start:end], columns.payloads[start:end], columns.origins[start:end], strict=True))
        framed = [
            (string + payload).ljust(SOURCE, NUL) + sources[origin]
            for kind, payload, origin in rows
            if kind >= _STRING and len(payload) <= MAX_CONTENT and NUL not in payload
        ]
        return framed if len(framed) == len(rows) else mixed_frames(rows, unfit)

    def mixed_frames(rows: list[tuple[Kind, bytes, Origin]], unfit: list[str]) -> list[bytes]:
        framed = []
        for kind, payload, origin in rows:
            try:
                content = encode_content(kind, payload)
            except Refused as error:
                unfit.append(error.code)
            else:
                head = field + bytes([min(kind, _STRING)]) + content
                framed.append(head.ljust(SOURCE, NUL) + sources[origin])
        return framed

    return frames
