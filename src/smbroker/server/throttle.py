"""MQTT floods wait for subscribers who are a little behind, so that nothing need be left out for them.

QoS 0 is left out for a subscriber that lets more than `tcp.outbox_bytes` wait. Who reads fast and all the time comes
to that as well when somebody writes faster still. So once a quarter of it waits, floods of that subscriber's topics are
not read until most of it has left: their publishers then wait in TCP.

    keeps up ──a quarter waits──► waited for ──a sixteenth is left──► keeps up
                                      └──it takes less than FAST──► slow: what is too much is left out, and for SLOW
                                                                    seconds nobody waits for it

So only who reads at FAST slows a flood down, and those who do not cost it a fifth of its time at most.
"""

from asyncio import AbstractEventLoop
from collections.abc import Callable, Container
from dataclasses import dataclass

from smbroker.core.outbox import Outbox
from smbroker.model.topic import Topic
from smbroker.server.client import Client

FLOOD = 4_096  # bytes of a read, from which on it may wait
BEHIND, CAUGHT_UP = 1 / 4, 1 / 16  # of what may wait for a subscriber
FAST = 80 << 20  # bytes a second that it has to take …
GRACE = 0.02  # … but for so many seconds: the system has room again by the megabyte only
LOOK = 0.001  # seconds between looks at those who are waited for
STALL = 0.01  # … by which one is late when it was the broker that stood still …
PARDONS = 3  # … which is no fault of the subscriber, so many times
SLOW = 2.0  # seconds for which nobody waits for one that has not …
RECOVERY = 9  # … and for anyone, so many times as long as that took


@dataclass(slots=True)
class Wait:
    number: int  # they are counted
    since: float
    size: int  # bytes, the most that were seen
    pardons: int = PARDONS


class Throttle:
    __slots__ = ("_due", "_loop", "_most", "_not_before", "_number", "_paused", "_reaches", "_slow", "on")

    def __init__(self, loop: AbstractEventLoop, most: int, reaches: Callable[[Topic, Container[Outbox]], bool]) -> None:
        """`most` bytes may wait for a subscriber; `reaches` tells whether a topic goes to some of them."""
        self._loop = loop
        self._most = most
        self._reaches = reaches
        self.on: dict[Client, Wait] = {}  # who is waited for
        self._slow: set[Client] = set()  # who is not, for a while
        self._not_before = 0.0
        self._due = 0.0  # when the next look is
        self._number = 0  # of the last wait
        self._paused: list[tuple[Topic, int, Callable[[], None]]] = []  # with the last wait that it has to sit out

    def waits(self, subscriber: Client, size: int) -> None:
        """So many bytes wait for it."""
        if size < BEHIND * self._most or subscriber in self.on or subscriber in self._slow:
            return
        now = self._loop.time()
        if now < self._not_before:
            return
        if not self.on:
            self._look_later(now)
        self._number += 1
        self.on[subscriber] = Wait(self._number, now, size)

    def outruns(self, topic: Topic) -> bool:
        """Whether who floods this topic should wait."""
        return bool(topic) and self._reaches(topic, self.on)

    def when_there_is_room(self, topic: Topic, callback: Callable[[], None]) -> None:
        """For those who have none now: others may be behind by then."""
        self._paused.append((topic, self._number, callback))

    def _look_later(self, now: float) -> None:
        self._due = now + LOOK
        self._loop.call_at(self._due, self._look)

    def _look(self) -> None:
        now = self._loop.time()
        late = now - self._due
        before = len(self.on)
        for subscriber, wait in list(self.on.items()):
            size = subscriber.waiting
            wait.size = max(wait.size, size)
            if late > STALL and wait.pardons:
                wait.pardons -= 1
                wait.since += min(late, now - wait.since)
            if size <= CAUGHT_UP * self._most:
                del self.on[subscriber]
            elif now - wait.since > GRACE + wait.size / FAST:
                del self.on[subscriber]
                self._slow.add(subscriber)
                self._loop.call_later(SLOW, self._slow.discard, subscriber)
                self._not_before = max(self._not_before, now + RECOVERY * (now - wait.since))
        if self.on:
            self._look_later(now)
        if len(self.on) < before:
            self._resume()

    def _resume(self) -> None:
        """Those whose subscribers have room, or had since."""
        paused, self._paused = self._paused, []
        for topic, last, resume in paused:
            behind = {subscriber for subscriber, wait in self.on.items() if wait.number <= last}
            if behind and self._reaches(topic, behind):
                self._paused.append((topic, last, resume))
            else:
                resume()
