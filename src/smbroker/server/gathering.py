"""Whether the loop rests for a moment after each turn, so that more is there when it looks again.

A client that writes each message by itself wakes the broker for each, and both pay for that more than for the message.
While the loop is busy nearly all of the time, resting is tried; it goes on as long as it pays: more messages come
through, or as many with less work. A broker that has time to spare never rests: nobody waits longer than necessary.

    off ──busy, small reads──► on trial ──it pays──► on ──fewer come than without, or a second has passed──► off
                                  └──it does not: for a while not again──► off
"""

from collections.abc import Callable
from enum import Enum, auto
from time import perf_counter, thread_time
from typing import TypeAlias

REST = 150e-6  # seconds; the system adds a third
LOOK = 64  # reads after which it may be time to judge: to ask for the time at each of them would cost
WINDOW = 0.02  # seconds of which one judges
BUSY = 0.85  # of the time, from which on it is tried …
SMALL_READ = 300  # … while a read has no more messages than that
MORE = 1.15  # it pays if so many times the messages come, …
AS_MANY, LESS_WORK = 0.95, 0.75  # … or as many with that much of the work
FEWER = 0.8  # of the messages without it: whatever has changed, it is over
AGAIN = 1.0  # seconds after which it has to show once more that it pays: a machine may have become faster meanwhile
PATIENCE, MOST_PATIENCE = 0.1, 30.0  # seconds until it is tried again: twice as long each time


Clock: TypeAlias = Callable[[], float]


class Rest(Enum):
    OFF = auto()
    TRIAL = auto()
    ON = auto()


class Gathering:
    __slots__ = (
        "_clock", "_last", "_not_after", "_not_before", "_patience", "_processor", "_reads", "_state", "_without", "on",
    )  # fmt: skip

    def __init__(self, clock: Clock = perf_counter, processor: Clock = thread_time) -> None:
        self._clock = clock
        self._processor = processor
        self.on = False  # the loop rests after each turn
        self._state = Rest.OFF
        self._reads = 0  # since the last judgement …
        self._last = clock(), processor(), 0  # … which was then, with so many messages
        self._without = 0.0, 0.0  # before it was tried: messages a second, and the processor time of each
        self._patience = PATIENCE
        self._not_before = self._not_after = 0.0

    def due(self, reads: int) -> bool:
        """So many reads more; whether it is time to `judge`."""
        self._reads += reads
        return (self.on or self._reads >= LOOK) and self._clock() - self._last[0] >= WINDOW

    def judge(self, messages: int) -> None:
        """So many have come in all, whoever sent them: rest must not cost others more than it brings."""
        now, processor, reads = self._clock(), self._processor(), self._reads
        (then, used, before), self._last = self._last, (now, processor, messages)
        self._reads = 0
        count, seconds, work = messages - before, now - then, processor - used
        rate, cost = count / seconds, work / max(count, 1)
        match self._state:
            case Rest.OFF if now >= self._not_before and work >= BUSY * seconds and count <= SMALL_READ * reads:
                self._without = rate, cost
                self._turn(Rest.TRIAL)
            case Rest.TRIAL if self._pays(rate, cost):
                self._patience = PATIENCE
                self._not_after = now + AGAIN
                self._turn(Rest.ON)
            case Rest.TRIAL:
                self._not_before = now + self._patience
                self._patience = min(2 * self._patience, MOST_PATIENCE)
                self._turn(Rest.OFF)
            case Rest.ON if now >= self._not_after or rate < FEWER * self._without[0]:
                self._turn(Rest.OFF)

    def _pays(self, rate: float, cost: float) -> bool:
        before, cost_before = self._without
        return rate >= MORE * before or (rate >= AS_MANY * before and cost <= LESS_WORK * cost_before)

    def _turn(self, state: Rest) -> None:
        self._state = state
        self.on = state is not Rest.OFF
