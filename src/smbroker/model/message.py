"""What a message is made of, as columns.

A message is a topic, a payload (opaque bytes), a kind and an origin. On the hot path there is
no object per message: what one turn received is one `Columns`, lists of equal length. The kinds
other than BYTES and STRING are numbers of the `typed` dialect; their payload is the decimal text.
"""

from array import array
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import IntEnum, StrEnum
from operator import itemgetter
from struct import iter_unpack
from typing import NamedTuple

from smbroker.model.topic import Topic

_first_row = itemgetter(0)
_NOT_ASKED = b"\0\0"  # no topic
PAIR_BYTES = 150  # what a property takes in memory besides its characters
LONG_RUN = 16  # rows that came together, on average, so that it pays to look at them as one


class Kind(IntEnum):
    INT = 0
    SHORT_REAL = 1
    FLOAT = 2
    STRING = 3
    BYTES = 4


class Dialect(StrEnum):
    SOH = "soh"
    PIPE = "pipe"
    SEMICOLON = "semicolon"
    PADDED = "padded"
    TYPED = "typed"
    MQTT = "mqtt"
    HTTP = "http"  # the `web` listener

    __hash__ = str.__hash__  # Enum's own is Python: it would cost as much as all else that is counted


@dataclass(frozen=True, slots=True, eq=False)
class Origin:
    """Where messages come from; one object per publisher, shared by all its messages."""

    dialect: Dialect
    host: str = ""  # "" where there is no address
    port: int = 0
    client: str | None = None  # the id that the client gave itself, if any

    @property
    def source(self) -> str:
        """`host:port`, with brackets around an IPv6 address; empty without an address."""
        if not self.host:
            return ""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @classmethod
    def at(cls, dialect: Dialect, source: str, client: str | None = None) -> "Origin":
        """The origin with this `source`."""
        host, _, port = source.rpartition(":")
        return cls(dialect, host.strip("[]"), int(port or 0), client)


@dataclass(frozen=True, slots=True)
class Extra:
    """What only some messages have: MQTT's quality of service, retain flag and properties."""

    qos: int = 0
    retain: bool = False
    properties: tuple[tuple[str, str], ...] = ()  # MQTT 5's own under keys such as `$content-type`

    @property
    def bytes(self) -> int:
        """That the properties take, about."""
        return sum(PAIR_BYTES + _length(key) + _length(value) for key, value in self.properties)


NO_EXTRA = Extra()


class Wire(NamedTuple):
    """Rows as they came: packets of equal length, each with its payload at the end."""

    first: int
    end: int
    version: int  # of MQTT
    packets: bytes
    size: int  # of a payload
    extra: Extra | None = None  # of every row; without, the packets are fit to be passed on

    @property
    def length(self) -> int:
        """Of a packet."""
        return len(self.packets) // (self.end - self.first)


def payloads_in(packets: bytes, count: int, size: int) -> list[bytes]:
    """Those of so many packets of equal length, each with its payload at the end."""
    head = len(packets) // count - size
    return [packets[head:]] if count == 1 else [payload for (payload,) in iter_unpack(f"{head}x{size}s", packets)]


class Rows(NamedTuple):
    """Messages as a request brought them, unchecked; a part that is empty is the same as usual for all of them."""

    topics: list[bytes]
    payloads: list[bytes]
    retain: Sequence[bool] = ()
    kinds: Sequence[str | None] = ()
    properties: Sequence[list[tuple[str, str]] | None] = ()


class Columns:
    """Messages in the order received: `topics[i]`, `payloads[i]`, `kinds[i]` and `origins[i]` are one message."""

    __slots__ = (
        "_bytes", "_earliest", "_extras", "_latest", "_packed", "_payloads", "_shared", "_topic", "_volume", "base",
        "kinds", "origins", "received", "stamps", "topics", "wires",
    )  # fmt: skip

    def __init__(
        self,
        received: int = 0,
        topics: list[Topic] | None = None,
        payloads: list[bytes] | None = None,
        kinds: list[Kind] | None = None,
        origins: list[Origin] | None = None,
        extras: dict[int, Extra] | None = None,
        wires: list[Wire] | None = None,
        base: int = -1,
        stamps: "array[int] | None" = None,
    ) -> None:
        self.received = received  # when, in microseconds since 1970 UTC: one time for all that a turn brought
        self.topics = [] if topics is None else topics
        self._payloads = [] if payloads is None else payloads
        self._packed = 0  # of the last rows the payload is still in its packet
        self.kinds = [] if kinds is None else kinds
        self.origins = [] if origins is None else origins
        self._extras = {} if extras is None else extras
        self._shared = False  # some rows have that of their wire
        self.wires = [] if wires is None else wires  # rows that came in as MQTT packets
        self.base = base  # the offset of the first row, once committed
        self.stamps = array("q") if stamps is None else stamps  # when each row came, if several turns were gathered …
        self._earliest, self._latest = (min(stamps), max(stamps)) if stamps else (0, 0)  # … and of those
        self._bytes = self._volume = -1
        self._topic: Topic | None = _NOT_ASKED

    def __len__(self) -> int:
        return len(self.topics)

    def gather(self, other: "Columns") -> None:
        """Takes over the rows of another turn; how they came (`wires`) is left out."""
        row, count = len(self.topics), len(other.topics)
        if not count:
            return
        earliest, latest = other.times
        self._earliest = min(self._earliest, earliest) if row else earliest
        self._latest = max(self._latest, latest) if row else latest
        self.topics += other.topics
        self.payloads.extend(other.payloads)
        self.kinds += other.kinds
        self.origins += other.origins
        self.stamps += other.stamps or array("q", [other.received]) * count
        self._bytes = max(self._bytes, 0) + other.bytes
        self._volume = max(self._volume, 0) + other.volume
        if extras := other.extras:
            self.extras.update({row + at: extra for at, extra in extras.items()})
        self.received = other.received

    def add(self, topic: Topic, payload: bytes, origin: Origin, received: int) -> None:
        """One more row, of bytes, to those that were gathered."""
        if not self.topics:
            self._earliest = self._latest = received
        elif received > self._latest:
            self._latest = received
        elif received < self._earliest:  # the clock was set back
            self._earliest = received
        self.topics.append(topic)
        self.payloads.append(payload)
        self.kinds.append(Kind.BYTES)
        self.origins.append(origin)
        self.stamps.append(received)
        self._bytes = max(self._bytes, 0) + len(payload)
        self._volume = max(self._volume, 0) + len(topic) + len(payload) + _length(origin.client or "")
        self.received = received

    def add_packets(
        self,
        topic: Topic,
        origin: Origin,
        version: int,
        packets: bytes,
        count: int,
        size: int,
        extra: Extra | None = None,
    ) -> None:
        """Rows of bytes, as they came."""
        row = len(self.topics)
        self.wires.append(Wire(row, row + count, version, packets, size, extra))
        if extra:
            self._shared = True
        self.topics += [topic] * count
        self.kinds += [Kind.BYTES] * count
        self.origins += [origin] * count
        self._packed += count

    @property
    def payloads(self) -> list[bytes]:
        """To cut them out of their packets is most of what such rows cost, so that is done only if someone asks."""
        if self._packed:
            known = list(self._payloads)
            for wire in self.wires_from(len(known)):
                known += payloads_in(wire.packets, wire.end - wire.first, wire.size)
            self._payloads = known  # all at once: the writing thread may ask at the same time
            self._packed = 0
        return self._payloads

    @property
    def extras(self) -> dict[int, Extra]:
        """By row; most rows have none. Put together only if someone asks, as `payloads`."""
        if self._shared:
            known = dict(self._extras)
            for wire in self.wires:
                if wire.extra and wire.end == wire.first + 1:
                    known[wire.first] = wire.extra
                elif wire.extra:
                    known.update(dict.fromkeys(range(wire.first, wire.end), wire.extra))
            self._extras = known
            self._shared = False
        return self._extras

    def extra_at(self, row: int) -> Extra:
        """As `extras`, of one row."""
        wire = self.wire_at(row) if self._shared else None
        return (wire and wire.extra) or self._extras.get(row, NO_EXTRA)

    @property
    def own_extras(self) -> dict[int, Extra]:
        """Those of single rows; those of whole wires may be missing."""
        return self._extras

    @property
    def same_extra(self) -> Extra | None:
        """What all rows have, if they are alike."""
        if self._shared and not self._extras and (runs := self.runs):
            values = {id(wire.extra): wire.extra for wire in runs}
            return next(iter(values.values())) or NO_EXTRA if len(values) == 1 else None
        extras = self.extras
        if not extras:
            return NO_EXTRA
        alike = len(extras) == len(self.topics) and len(set(map(id, extras.values()))) == 1
        return next(iter(extras.values())) if alike else None

    def ts(self, row: int) -> int:
        """When it was received."""
        return self.stamps[row] if self.stamps else self.received

    @property
    def times(self) -> tuple[int, int]:
        """Least and greatest `ts`."""
        return (self._earliest, self._latest) if self.stamps else (self.received, self.received)

    @property
    def bytes(self) -> int:
        """Of all payloads. They are counted once: not to be asked before the last row is in."""
        if self._bytes < 0:
            size = self.size if self.wires else -1
            self._bytes = size * len(self.topics) if size >= 0 else sum(map(len, self.payloads))
        return self._bytes

    @property
    def size(self) -> int:
        """That of each payload, if all rows came as packets and are as long; -1: they are not, or it is not known."""
        sizes = {wire.size for wire in self.runs}
        return sizes.pop() if len(sizes) == 1 else -1

    @property
    def runs(self) -> list[Wire]:
        """If all rows came as packets, and many together, these; each is of one topic and from one client."""
        wires, rows = self.wires, len(self.topics)
        whole = LONG_RUN * len(wires) <= rows and sum(wire.end - wire.first for wire in wires) == rows
        return wires if whole else []

    @property
    def topic(self) -> Topic | None:
        """That of all rows, if they have the same. Looked for once, as `bytes`."""
        if self._topic is _NOT_ASKED:
            topics = self.topics
            if self.wires:
                topics = [topics[run.first] for run in self.runs] or topics
            alike = topics and topics[0] == topics[-1] and topics.count(topics[0]) == len(topics)
            self._topic = topics[0] if alike else None
        return self._topic

    @property
    def topic_bytes(self) -> int:
        topic = self.topic
        if topic is not None:
            return len(topic) * len(self.topics)
        runs = self.runs
        return sum(len(self.topics[run.first]) * (run.end - run.first) for run in runs) or sum(map(len, self.topics))

    @property
    def volume(self) -> int:
        """Bytes of all that may be long: topics, payloads, properties, ids of clients. Counted once, as `bytes`."""
        if self._volume < 0:
            self._volume = self.bytes + self.topic_bytes
            if self._extras:
                self._volume += sum(extra.bytes for extra in self._extras.values() if extra.properties)
            origins = self.origins
            first = origins[0] if origins else None
            if first and (first.client is not None or origins.count(first) < len(origins)):
                self._volume += self._client_bytes
        return self._volume

    @property
    def _client_bytes(self) -> int:
        origins = self.origins
        runs = [(origins[run.first], run.end - run.first) for run in self.runs]
        return sum(_length(origin.client) * rows for origin, rows in runs or Counter(origins).items() if origin.client)

    def volume_at(self, row: int) -> int:
        """As `volume`, of one row."""
        text = len(self.topics[row]) + len(self.payloads[row]) + _length(self.origins[row].client or "")
        extra = self._extras.get(row)
        return text + extra.bytes if extra and extra.properties else text

    def wires_from(self, row: int) -> Iterator[Wire]:
        """Those that begin at the row or after it."""
        wires = self.wires
        return (wires[at] for at in range(bisect_left(wires, row, key=_first_row), len(wires)))

    def wire_at(self, row: int) -> Wire | None:
        """The one that the row came in."""
        wires = self.wires
        at = bisect_right(wires, row, key=_first_row) - 1
        return wires[at] if at >= 0 and row < wires[at].end else None

    def rows(self, numbers: list[int]) -> "Columns":
        """These rows alone."""
        return Columns(
            self.received,
            [self.topics[row] for row in numbers],
            [self.payloads[row] for row in numbers],
            [self.kinds[row] for row in numbers],
            [self.origins[row] for row in numbers],
            {new: self.extras[row] for new, row in enumerate(numbers) if row in self.extras},
            stamps=array("q", [self.stamps[row] for row in numbers]) if self.stamps else None,
        )


def _length(text: str) -> int:
    """Of its bytes, or more."""
    return len(text) if text.isascii() else 4 * len(text)
