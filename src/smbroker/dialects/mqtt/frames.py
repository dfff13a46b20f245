"""What MQTT subscribers get at QoS 0: `framer(topic, version)` for all who want the same bytes.

A run that came in as plain publishes of the same version (the columns' `wires`) is passed on as it came.
MQTT 3.1 and 3.1.1 have the same bytes; 5 has a length of properties after the topic.
"""

from smbroker.dialects.mqtt.fields import MAX_LENGTH, PUBLISH, encode_binary, encode_length, encode_properties
from smbroker.dialects.mqtt.messages import expires, to_properties
from smbroker.model.errors import Unfit
from smbroker.model.framing import FramerOf
from smbroker.model.message import Columns, Extra
from smbroker.model.topic import Topic

MAX_STARTS = 1_000  # lengths of payloads that a framer remembers
FIRST = bytes((PUBLISH << 4,))


def check_name(topic: Topic) -> None:
    if b"+" in topic or b"#" in topic:
        raise Unfit("topic_wildcard", "MQTT topics hold neither + nor #")


def framer_of(version: int) -> FramerOf:
    """`version` is 4 (also for 3) or 5."""
    return lambda topic: _Framer(topic, version).frames


class _Framer:
    def __init__(self, topic: Topic, version: int) -> None:
        check_name(topic)
        self._version = version
        self._name = encode_binary(topic)
        self._head = self._name + b"\0" if version == 5 else self._name
        self._room = MAX_LENGTH - len(self._head)
        self._starts: dict[int, bytes] = {}  # by length of the payload

    def frames(self, columns: Columns, start: int, end: int, unfit: list[str]) -> list[bytes]:
        if columns.wires:
            wire = columns.wires[0]
            if wire.first == start and wire.end == end and wire.version == self._version and not wire.extra:
                return [wire.packets]
            found = _as_they_came(columns, start, end, self._version)
            if found is not None:
                return found
        framed: list[bytes] = []
        extras, starts = columns.extras, self._starts
        for row, payload in enumerate(columns.payloads[start:end], start):
            if extras and (extra := extras.get(row)) is not None and extra.properties:
                self._with_properties(payload, extra, columns.received / 1e6, framed, unfit)
                continue
            beginning = starts.get(len(payload)) or self._start(len(payload))
            if beginning:
                framed.append(beginning + payload)
            else:
                unfit.append("too_long")
        return framed

    def _start(self, size: int) -> bytes:
        """What stands before a payload of that size; nothing if it does not fit."""
        if size > self._room:
            return b""
        if len(self._starts) >= MAX_STARTS:
            self._starts.clear()
        start = self._starts[size] = FIRST + encode_length(len(self._head) + size) + self._head
        return start

    def _with_properties(self, payload: bytes, extra: Extra, now: float, framed: list[bytes], unfit: list[str]) -> None:
        when = expires(extra.properties)
        head = self._head
        if self._version == 5:
            head = self._name + encode_properties(to_properties(extra.properties, now))
        size = len(head) + len(payload)
        if when is not None and when <= now:
            unfit.append("expired")
        elif size > MAX_LENGTH:
            unfit.append("too_long")
        else:
            framed.append(FIRST + encode_length(size) + head + payload)


def packets_in(frame: bytes) -> int:
    """How many packets there are, all as long as the first."""
    at = next(at for at in range(1, 5) if frame[at] < 0x80)
    length = sum((frame[1 + place] & 0x7F) << 7 * place for place in range(at))
    return len(frame) // (at + 1 + length)


def _as_they_came(columns: Columns, start: int, end: int, version: int) -> list[bytes] | None:
    """The bytes of rows [start, end) if all of them came in with that version."""
    found: list[bytes] = []
    position = start
    for wire in columns.wires_from(start):
        if wire.first != position or wire.end > end or wire.version != version or wire.extra:
            return None
        found.append(wire.packets)
        position = wire.end
        if position == end:
            return found
    return None
