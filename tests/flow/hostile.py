"""Bytes that no good client sends: valid frames of each dialect, cut, flipped, repeated, inserted into and glued.

Everything comes from one seed, so that a failure can be had again: SMB_SEED=… repeats it.
"""

import os
import random
import struct
import time
from collections.abc import Callable, Iterator

from flow.wires import DISCONNECT, PING, PONG, datagram, identity, padded, publication, subscription, unsubscription

SEED = int(os.environ.get("SMB_SEED", "0")) or 8_080
TOPICS = (b"a", b"a/b", b"a/b/c", b"#", b"a/#", b"#/b", b"+", b"$x/y", b"", b"/", b"a//b", "größe/€".encode(), b" a ")
TEXTS = (b"", b"x", b"hello", "für €😀".encode(), b"\0", b"\xff\xfe", b"a;b|c\x02d", b"1" * 300)

_each = [(topic, text) for topic in TOPICS for text in TEXTS]

VALID: dict[str, list[bytes]] = {
    "soh": [b"S" + topic for topic in TOPICS] + [b"\x01%b\x02%b" % pair for pair in _each],
    "pipe": [b"S|" + topic for topic in TOPICS] + [b"P|%b|%b" % pair for pair in _each],
    "semicolon": [b"s" + topic for topic in TOPICS] + [b"p%b;%b" % pair for pair in _each] + [b"u"],
    "typed UDP": [datagram(topic, text) for topic, text in _each]
    + [datagram(b"a/b", struct.pack("!BI", 1, 10), 0), datagram(b"a/b", b"\0\xe6", 1)]
    + [datagram(b"a/b", struct.pack("!BIB", 0, 12_344_321, 4), 2)],
    "padded": [padded(b"Subscribe", topic) for topic in TOPICS]
    + [b"Subscribe".ljust(66) + padded(topic) for topic in TOPICS]
    + [publication(topic, text) for topic, text in _each]
    + [publication(b"a/b", text, len(text.decode("utf-8", "replace"))) for text in TEXTS]
    + [padded(b"Publish", b"a/b", length) for length in (b"-1", b"x", b"16777216", b"16777217", b"9" * 64)]
    + [PING, PONG, DISCONNECT, padded(b"Hello"), b" " * 100],
    "typed TCP": [subscription(topic, sf) for topic in TOPICS for sf in (0, 1, 49)]
    + [b"s" + topic.ljust(50, b"\0") + b"\0\1\0\0" for topic in TOPICS]
    + [unsubscription(topic) for topic in TOPICS]
    + [b"u" + (topic + b"\n").ljust(50, b"\0") for topic in TOPICS]
    + [b"\0" * 100],
}
DATAGRAMS = ("soh", "pipe", "semicolon", "typed UDP")
STREAMS = ("padded", "typed TCP")


def _cut(chance: random.Random, data: bytes, _others: list[bytes]) -> bytes:
    start = chance.choice((0, chance.randrange(len(data) + 1)))
    return data[start : chance.randrange(start, len(data) + 1)]


def _flip(chance: random.Random, data: bytes, _others: list[bytes]) -> bytes:
    changed = bytearray(data)
    for _ in range(chance.randrange(1, 4) if data else 0):
        changed[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
    return bytes(changed)


def _repeat(chance: random.Random, data: bytes, _others: list[bytes]) -> bytes:
    piece = _cut(chance, data, [])
    return data + piece * chance.choice((1, 2, 5, 50))


def _insert(chance: random.Random, data: bytes, _others: list[bytes]) -> bytes:
    place = chance.randrange(len(data) + 1)
    piece = chance.choice((b"\0", b"\n", b" ", b"/", b"#", b";", b"|", b"\x01", b"\x02", b"\xff", chance.randbytes(8)))
    return data[:place] + piece * chance.choice((1, 1, 3, 600)) + data[place:]


def _glue(chance: random.Random, data: bytes, others: list[bytes]) -> bytes:
    return data + b"".join(chance.choices(others, k=chance.randrange(1, 5)))


def _random(chance: random.Random, data: bytes, _others: list[bytes]) -> bytes:
    return data[: chance.randrange(3)] + chance.randbytes(chance.choice((1, 10, 64, 300, 1_600)))


MUTATIONS: tuple[Callable[[random.Random, bytes, list[bytes]], bytes], ...] = (
    _cut, _flip, _repeat, _insert, _glue, _random,
)  # fmt: skip


def hostile(dialect: str, number: int) -> Iterator[bytes]:
    """That many datagrams, or streams; among them some as they should be."""
    chance = random.Random(f"{SEED} {dialect}")
    valid = VALID[dialect]
    for _ in range(number):
        data = chance.choice(valid)
        for _ in range(chance.choice((0, 1, 1, 2, 3))):
            data = chance.choice(MUTATIONS)(chance, data, valid)
        if dialect == "typed TCP":
            data = _identity(chance) + data
        yield data if dialect in STREAMS else data[:65_000]


def _identity(chance: random.Random) -> bytes:
    """Mostly a good one, else nothing after it would be looked at."""
    name = identity(chance.choice((b"C1", b"C2", b"C%d" % chance.randrange(10_000))))
    return name if chance.random() < 0.8 else chance.choice(MUTATIONS)(chance, name, [name])


class Rate:
    """Whether the console keeps to its limit while this runs: 20 warnings a second and some lines of summary."""

    MOST = 26

    def __init__(self, lines: list[str]) -> None:
        self._lines = lines
        self._before = len(lines)
        self._start = time.monotonic()

    def kept(self) -> bool:
        seconds = int(time.monotonic() - self._start) + 2
        said = [line for line in self._lines[self._before :] if not prescribed(line)]
        return len(said) <= self.MOST * seconds


def prescribed(line: str) -> bool:
    """What the semicolon console has to say of every datagram."""
    return line.startswith(("127.0.0.1:", "Current Subscribers: "))
