"""When to ask a silent padded client whether it is there, and when to give it up.

    seconds of silence    10     20         30         40
                          Ping   Ping, [1]  Ping, [2]  [3], lost

Any data restarts the interval; only a Pong resets the count of unanswered Pings.
"""

from dataclasses import dataclass

INTERVAL = 10.0  # seconds
LIMIT = 3  # unanswered Pings in a row


@dataclass(frozen=True, slots=True)
class Due:
    ping: bool = False  # send a Ping
    unanswered: int = 0  # report this many unanswered Pings; 0: nothing to report
    lost: bool = False  # close the connection


class KeepAlive:
    __slots__ = ("_asked", "_interval", "_limit", "deadline")

    def __init__(self, now: float, interval: float = INTERVAL, limit: int = LIMIT) -> None:
        self._interval = interval
        self._limit = limit
        self._asked = 0  # Pings since the last Pong
        self.deadline = now + interval

    def heard(self, now: float) -> None:
        self.deadline = now + self._interval

    def answered(self) -> None:
        self._asked = 0

    def due(self, now: float) -> Due:
        if now < self.deadline:
            return Due()
        self.deadline = now + self._interval
        unanswered = self._asked
        if unanswered >= self._limit:
            return Due(unanswered=unanswered, lost=True)
        self._asked += 1
        return Due(ping=True, unanswered=unanswered)
