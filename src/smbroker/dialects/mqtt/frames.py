"""What MQTT subscribers get at QoS 0: `framer(topic, version)` for all who want the same bytes.

A run that came in as plain publishes of the same version (the columns' `wires`) is passed on as it came.
MQTT 3.1 and 3.1.1 have the same bytes; 5 has a length of properties after the topic.
"""

from smbroker.dialects.mqtt.fields import MAX_LENGTH, PUBLISH, encode_binary, encode_length, encode_properties
from smbroker.dialects.mqtt.messages import expires, to_properties
from smbroker.model.errors import Unfit
from smbroker.model.framing import Framer, FramerOf
from smbroker.model.message import Columns
from smbroker.model.topic import Topic

FIRST = bytes((PUBLISH << 4,))


def check_name(topic: Topic) -> None:
    if b"+" in topic or b"#" in topic:
        raise Unfit("topic_wildcard", "MQTT topics hold neither + nor #")


def framer_of(version: int) -> FramerOf:
    """`version` is 4 (also for 3) or 5."""

    def framer(topic: Topic) -> Framer:
        check_name(topic)
        name = encode_binary(topic)
        head = name + b"\0" if version == 5 else name
        room = MAX_LENGTH - len(head)
        starts: dict[int, bytes] = {}  # by length of the payload

        def one(columns: Columns, row: int) -> bytes | None:
            payload = columns.payloads[row]
            extra = columns.extras.get(row) if columns.extras else None
            if extra is not None and extra.properties:
                when, now = expires(extra.properties), columns.received / 1e6
                if when is not None and when <= now:
                    return None
                if version == 5:
                    body = name + encode_properties(to_properties(extra.properties, now)) + payload
                    return FIRST + encode_length(len(body)) + body
            start = starts.get(len(payload))
            if start is None:
                if len(starts) > 1_000:
                    starts.clear()
                start = starts[len(payload)] = FIRST + encode_length(len(head) + len(payload)) + head
            return start + payload

        def frames(columns: Columns, start: int, end: int, unfit: list[str]) -> list[bytes]:
            if columns.wires:
                found = _as_they_came(columns, start, end, version)
                if found is not None:
                    return found
            framed: list[bytes] = []
            for row in range(start, end):
                if len(columns.payloads[row]) > room:
                    unfit.append("too_long")
                elif (frame := one(columns, row)) is None:
                    unfit.append("expired")
                else:
                    framed.append(frame)
            return framed

        return frames

    return framer


def _as_they_came(columns: Columns, start: int, end: int, version: int) -> list[bytes] | None:
    """The bytes of rows [start, end) if all of them came in with that version."""
    found: list[bytes] = []
    position = start
    for first, last, came, wire in columns.wires_from(start):
        if first != position or last > end or came != version:
            return None
        found.append(wire)
        position = last
        if position == end:
            return found
    return None
