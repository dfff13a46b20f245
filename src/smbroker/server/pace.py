"""How fast a connection may send, and how slowly: a pace it must not exceed, and input that must go on.

Who sends faster than `tcp.max_rate` is not read from for a while. Whoever has begun a message must go on with it: the
connections are looked at from time to time, and one whose input has been unfinished for `tcp.stall_timeout` seconds
with hardly a byte more is closed. Neither costs anything for a message.
"""

from asyncio import AbstractEventLoop, TimerHandle
from collections.abc import Callable, Iterable
from typing import Protocol

LOOKS = 4  # in the time after which a connection is closed
PROGRESS = 4_096  # bytes that count as going on


class Pace:
    """Up to a second's worth at once."""

    __slots__ = ("_at", "_level", "_rate")

    def __init__(self, rate: int, now: float) -> None:
        self._rate = rate
        self._level = float(rate)
        self._at = now

    def wait(self, size: int, now: float) -> float:
        """So many bytes have come: seconds to wait before more are read."""
        self._level = min(self._rate, self._level + (now - self._at) * self._rate) - size
        self._at = now
        return -self._level / self._rate if self._level < 0 else 0.0


class Sender(Protocol):
    """A connection, as the stall watch sees it."""

    received: int  # bytes so far

    @property
    def unfinished(self) -> int:
        """Bytes of input that wait for their end, while that is listened for."""

    def stalled(self) -> None:
        """Ends it."""


class StallWatch:
    def __init__(self, loop: AbstractEventLoop, connections: Iterable[Sender], timeout: float) -> None:
        self._loop = loop
        self._connections = connections
        self._timeout = timeout
        self._since: dict[Sender, tuple[float, int]] = {}  # when its input was first seen unfinished, and `received`
        self._timer: TimerHandle | None = None
        if timeout:
            self._next()

    def _next(self) -> None:
        self._timer = self._loop.call_later(self._timeout / LOOKS, self._look)

    def _look(self) -> None:
        self.look(self._loop.time())
        self._next()

    def look(self, now: float) -> None:
        seen: dict[Sender, tuple[float, int]] = {}
        late: list[Callable[[], None]] = []
        for one in self._connections:
            if not one.unfinished:
                continue
            since, received = self._since.get(one, (now, one.received))
            if one.received - received >= PROGRESS:
                since, received = now, one.received
            if now - since >= self._timeout:
                late.append(one.stalled)
            seen[one] = since, received
        self._since = seen
        for end in late:
            end()

    def stop(self) -> None:
        if self._timer:
            self._timer.cancel()
