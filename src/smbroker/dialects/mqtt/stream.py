"""A connection's bytes to packets, all that one read brought at once.

    first byte │ length of the body (1 to 4 bytes) │ body

Plain publishes (QoS 0, not retained, no properties) are by far the most frequent and come in rows with
the same beginning: first byte, length and topic. Such a row is one `Run`, whose bytes can be passed on
as they are; payloads are cut out of it only if someone asks. Those with QoS 1 (`Numbered`) and their
acknowledgements (`Acks`) come in rows too, mostly with identifiers that count up. Short plain publishes whose
topics change are gathered in one `Mixed`. A publish that is none of these is a `Publish`.
"""

from dataclasses import dataclass
from struct import unpack
from typing import Final, TypeAlias

from smbroker.dialects.mqtt.fields import (
    CONNACK,
    CONNECT,
    MAX_LENGTH,
    PINGRESP,
    SUBACK,
    UNSUBACK,
    malformed,
    protocol_error,
)
from smbroker.dialects.mqtt.packets import Connect, Packet, checked_name, decode
from smbroker.dialects.mqtt.reasons import PACKET_TOO_LARGE, Malformed
from smbroker.model.message import payloads_in
from smbroker.model.topic import KnownTopics, Topic

PLAIN: Final = 0x30  # the first byte of a publish with QoS 0 that is not retained
NUMBERED: Final = 0x32  # … with QoS 1, sent for the first time
PLAINS: Final = bytes((PLAIN,))
SHORT: Final = 128  # a body below that has its length in one byte
ACK: Final = b"\x40\x02"  # a PUBACK without a reason
HIGH: Final = b"".join([bytes((high,)) * 256 for high in range(256)])  # of each identifier, its first byte …
LOW: Final = bytes(range(256)) * 256  # … and its second
SERVERS_OWN: Final = {kind << 4 for kind in (CONNACK, SUBACK, UNSUBACK, PINGRESP)}  # wrong, whatever they hold
MAX_CONNECT: Final = 256 << 10  # bytes of a CONNECT: nobody is known yet

known_names: Final = KnownTopics(checked_name)

Numbers: TypeAlias = range | tuple[int, ...]
"""Packet identifiers; a range where they count up."""


@dataclass(slots=True)
class Run:
    """Plain publishes of one topic, of equal length, one after the other."""

    topic: Topic
    count: int
    size: int  # of a payload
    wire: bytes  # the packets as they came
    version: int

    @property
    def payloads(self) -> list[bytes]:
        return payloads_in(self.wire, self.count, self.size)


@dataclass(slots=True)
class One:
    """A read that is one plain publish. Where another one begins alike and is as long, it is such a publish too."""

    beginning: bytes
    size: int
    topic: Topic
    version: int  # 4 for 3 too: the same bytes


@dataclass(slots=True)
class Mixed:
    """Plain publishes of any topics, one after the other."""

    topics: list[Topic]
    payloads: list[bytes]


@dataclass(slots=True)
class Numbered:
    """Publishes of one topic with QoS 1, neither sent again nor retained, of equal length, one after the other."""

    topic: Topic
    size: int  # of a payload
    wire: bytes  # the packets as they came
    numbers: Numbers  # their packet identifiers
    version: int
    acks: bytes  # the PUBACKs for them

    @property
    def payloads(self) -> list[bytes]:
        return payloads_in(self.wire, len(self.numbers), self.size)


@dataclass(slots=True)
class Acks:
    """PUBACKs without a reason, one after the other."""

    numbers: Numbers


Item: TypeAlias = Run | Mixed | Numbered | Acks | Packet


class Decoder:
    """What has arrived and is not a whole packet yet waits here; `version` is that of the CONNECT."""

    __slots__ = ("_left", "_limit", "_most", "_need", "_rest", "_server", "again", "version")

    def __init__(self, max_packet: int, version: int = 0, most: int = 0, server: bool = False) -> None:
        """`most` packets, rows being one, that one call decodes; 0: all. `server`: the bytes come from a client."""
        self._limit = min(max_packet, MAX_LENGTH)
        self._most = self._left = most or MAX_LENGTH
        self._server = server
        self._rest = bytearray()
        self._need = 0  # so many bytes there must be before another look is worth it
        self.again: One | None = None  # what the last read was, and nothing of it is left
        self.version = version  # 0: the first packet must be a CONNECT

    @property
    def held(self) -> int:
        return len(self._rest)

    @property
    def more(self) -> bool:
        """Whether the last call has left packets for the next one."""
        return self._left <= 0

    def feed(self, data: bytes) -> list[Item]:
        """All whole packets, or as many as one call decodes: for the rest the caller comes again, with no data.

        Raises Malformed; what came before the fault is in its `items`."""
        self._left = self._most
        self.again = None
        if self._rest:
            if len(self._rest) + len(data) < self._need:
                self._rest += data
                return []
            data = b"".join((self._rest, data))
            self._rest = bytearray()
        items: list[Item] = []
        try:
            position = self._take(data, items)
        except Malformed as error:
            error.items = items
            raise
        if position < len(data):
            self._rest += memoryview(data)[position:]
        return items

    def _take(self, data: bytes, items: list[Item]) -> int:
        position, end = 0, len(data)
        while position < end:
            if self._left <= 0:
                self._need = 0
                break
            self._left -= 1
            first = data[position]
            if first in FAST and self.version:
                after = FAST[first](self, data, position, items)
                if after == position:
                    return position
                if after > position:
                    position = after
                    continue
            self._check_kind(first)
            body, length = self._head(data, position)
            if not body or body + length > end:
                return position
            packet = decode(first, data[body : body + length], self.version)
            if isinstance(packet, Connect):
                if self.version:
                    raise protocol_error("a second CONNECT")  # [MQTT-3.1.0-2]
                self.version = packet.version
            items.append(packet)
            position = body + length
        return position

    def _check_kind(self, first: int) -> None:
        if not self.version and first != CONNECT << 4:
            raise protocol_error("the first packet is not CONNECT")  # [MQTT-3.1.0-1]
        if self._server and first in SERVERS_OWN:
            raise protocol_error("this packet is not for a client to send")

    def _head(self, data: bytes, position: int) -> tuple[int, int]:
        """Where the body begins, and its length; 0 if that has not arrived."""
        self._need = length = shift = 0
        for at in range(position + 1, min(position + 5, len(data))):
            byte = data[at]
            length |= (byte & 0x7F) << shift
            if byte < 0x80:
                if shift and not byte:
                    raise malformed("a length has more bytes than it needs")
                self._check(length)
                self._need = at + 1 - position + length
                return at + 1, length
            shift += 7
        if len(data) - position >= 5:
            raise malformed("a length has more than four bytes")
        return 0, 0

    def _check(self, length: int) -> None:
        if length > (self._limit if self.version else min(self._limit, MAX_CONNECT)):
            raise Malformed("mqtt_packet_too_large", f"a packet of {length} bytes", PACKET_TOO_LARGE)

    def _run(self, data: bytes, start: int, items: list[Item]) -> int:
        """Takes the run that begins at `start`; where it ends. -1: not plain; `start`: it is not whole."""
        body, length = self._head(data, start)
        total = body + length - start
        if not body or start + total > len(data):
            return start
        if length < 3:
            return -1
        head = body + 2 + int.from_bytes(data[body : body + 2], "big")
        if self.version == 5:
            if head >= start + total or head == body + 2 or data[head]:
                return -1  # properties, or malformed: for `decode`
            head += 1
        if head > start + total:
            return -1
        topic = known_names[data[body + 2 : head - 1 if self.version == 5 else head]]
        beginning = data[start:head]
        after = start + total
        if length < SHORT and data.startswith(PLAINS, after) and not data.startswith(beginning, after):
            return self._mixed(data, start, items)
        if total == len(data):
            self.again = One(beginning, total, topic, 5 if self.version == 5 else 4)
        end = _row_end(data, start, total, beginning)
        items.append(Run(topic, (end - start) // total, after - head, data[start:end], self.version))
        return end

    def _mixed(self, data: bytes, start: int, items: list[Item]) -> int:
        """Takes short plain publishes from `start` on, up to one that is not, or that begins a row."""
        topics: list[Topic] = []
        payloads: list[bytes] = []
        five, known, before = self.version == 5, known_names, b""
        position, last, longest = start, len(data) - 4, min(SHORT - 1, self._limit)
        try:
            while position <= last and data[position] == PLAIN and self._left >= len(topics):
                length = data[position + 1]
                end = position + 2 + length
                head = position + 4 + (data[position + 2] << 8 | data[position + 3])
                if length > longest or end > len(data) or head > end - five or (five and data[head]):
                    break
                name = data[position + 4 : head]
                if five and not name:  # an alias, perhaps
                    break
                topic = known[name]
                if topic is before and data.startswith(data[position:head], end):
                    break
                topics.append(topic)
                payloads.append(data[head + five : end])
                before, position = topic, end
        finally:
            if topics:
                items.append(Mixed(topics, payloads))
        self._left -= len(topics) - 1
        return position

    def _numbered(self, data: bytes, start: int, items: list[Item]) -> int:
        """As `_run`, with an identifier after the topic."""
        body, length = self._head(data, start)
        total = body + length - start
        if not body or start + total > len(data):
            return start
        five = self.version == 5
        if length < 5 + five:
            return -1
        at = body + 2 + int.from_bytes(data[body : body + 2], "big")
        head = at + 2 + five
        if head > start + total or at == body + 2 or (five and data[at + 2]):  # properties
            return -1
        end = _row_end(data, start, total, data[start:at], at + 2 - start if five else 0)
        acks = bytearray(ACK + b"\0\0") * ((end - start) // total)
        acks[2::4], acks[3::4] = data[at:end:total], data[at + 1 : end : total]
        numbers = _numbers_in(acks)
        whole = len(numbers)
        if not whole:
            return -1
        topic = known_names[data[body + 2 : at]]
        end = start + whole * total
        size = start + total - head
        items.append(Numbered(topic, size, data[start:end], numbers, self.version, bytes(acks[: 4 * whole])))
        return end

    def _acks(self, data: bytes, start: int, items: list[Item]) -> int:
        if not data.startswith(ACK, start) or len(data) < start + 4:
            return -1
        end = _row_end(data, start, 4, ACK)
        numbers = _numbers_in(data[start:end])
        if not numbers:
            return -1
        items.append(Acks(numbers))
        return start + 4 * len(numbers)


def _row_end(data: bytes, start: int, total: int, beginning: bytes, zero: int = 0) -> int:
    """Where the row ends of packets that are `total` long and begin alike; the first of them is at `start`.

    `zero`: where in them a byte must be 0 as well. A long row is compared by columns, byte after byte of the beginning
    in many packets at once."""
    position, last, alike = start + total, len(data) - total, data.startswith
    few = min(last, start + len(beginning) * total // 2)
    while position <= few and alike(beginning, position) and not (zero and data[position + zero]):
        position += total
    while few < position <= last:
        count = min((len(data) - position) // total, 4 * (position - start) // total)  # a row may end soon
        end = position + count * total
        if any(data[position + at : end : total].count(byte) < count for at, byte in enumerate(beginning)):
            break
        if zero and data[position + zero : end : total].count(0) < count:
            break
        position = end
    while position <= last and alike(beginning, position) and not (zero and data[position + zero]):
        position += total
    return position


def _acks_of_all() -> bytes:
    acks = bytearray(ACK + b"\0\0") * len(LOW)
    acks[2::4], acks[3::4] = HIGH, LOW
    return bytes(acks)


ALL_ACKS: Final = _acks_of_all()  # the PUBACK of each identifier, in order


def _numbers_in(acks: bytes | bytearray) -> Numbers:
    """The identifiers of PUBACKs, up to the first that is 0: such a packet is malformed."""
    first, count = acks[2] << 8 | acks[3], len(acks) // 4
    if first and ALL_ACKS.startswith(acks, 4 * first):
        return range(first, first + count)
    numbers = unpack(f">{2 * count}H", acks)[1::2]
    return numbers[: numbers.index(0)] if 0 in numbers else numbers


FAST: Final = {PLAIN: Decoder._run, NUMBERED: Decoder._numbered, ACK[0]: Decoder._acks}
