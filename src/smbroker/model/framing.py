"""How messages become one dialect's bytes: `framer(topic)` of a dialect gives a Framer.

`framer(topic)` is asked once per route and raises Unfit if no message of that topic fits the
dialect. The Framer is then called with runs of messages of that topic; a message that does not
fit is left out and its reason appended to `unfit`, never cut short.
"""

from collections.abc import Callable
from typing import TypeAlias

from smbroker.model.message import Columns
from smbroker.model.topic import Topic

Framer: TypeAlias = Callable[[Columns, int, int, list[str]], list[bytes]]
"""Columns, first row, end (exclusive), unfit; returns the frames in order."""

FramerOf: TypeAlias = Callable[[Topic], Framer]


def prefix_framer(prefix: bytes, limit: int) -> Framer:
    """Frames that are `prefix` and the payload, at most `limit` bytes together."""
    room = limit - len(prefix)

    def frames(columns: Columns, start: int, end: int, unfit: list[str]) -> list[bytes]:
        payloads = columns.payloads[start:end]
        framed = [prefix + payload for payload in payloads if len(payload) <= room]
        if len(framed) < len(payloads):
            unfit.extend(["too_long"] * (len(payloads) - len(framed)))
        return framed

    return frames
