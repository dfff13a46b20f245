"""Floods wait for subscribers who are behind and keep reading, so that nothing need be left out for them.

MQTT QoS 0 is left out for a subscriber that lets more than `tcp.outbox_bytes` wait. Who reads all the time comes to
that as well when somebody writes faster than it reads. So once a quarter of it waits, floods to that subscriber are
not read until most of it has left: their publishers then wait in TCP.

    keeps up ──a quarter waits──► waited for ──a sixteenth is left──► keeps up
                                      └──MOMENT passes, and it has not taken that much──► slow: what is too much is
                                         left out, and for SLOW seconds nobody waits for it

Only who floods a topic of that subscriber waits. Those who do not read cost floods a tenth of their time at most.
"""

from asyncio import AbstractEventLoop
from collections.abc import Callable

from smbroker.server.client import Client

FLOOD = 4_096  # bytes of a read, from which on it may wait
BEHIND, PART = 1 / 4, 1 / 16  # of what may wait for a subscriber: who is waited for, and what that one has to take
LOOK = 0.001  # seconds between looks at those who are waited for
MOMENT = 0.05  # … in which one has to take a part: the system has room again by the megabyte only
SLOW = 2.0  # … for which nobody waits for one that has not …
RECOVERY = 9 * MOMENT  # … and for anyone


class Throttle:
    __slots__ = ("_loop", "_most", "_not_before", "_paused", "_slow", "on")

    def __init__(self, loop: AbstractEventLoop, most: int) -> None:
        """`most` bytes may wait for a subscriber."""
        self._loop = loop
        self._most = most
        self.on: dict[Client, tuple[float, int]] = {}  # who is waited for: until when, what waited a MOMENT before
        self._slow: set[Client] = set()  # who is not, for a while
        self._not_before = 0.0
        self._paused: list[Callable[[], None]] = []

    def waits(self, subscriber: Client, size: int) -> None:
        """So many bytes wait for it."""
        if size < BEHIND * self._most or subscriber in self.on or subscriber in self._slow:
            return
        now = self._loop.time()
        if now < self._not_before:
            return
        if not self.on:
            self._loop.call_later(LOOK, self._look)
        self.on[subscriber] = now + MOMENT, size

    def when_there_is_room(self, callback: Callable[[], None]) -> None:
        """While it is `on`."""
        self._paused.append(callback)

    def _look(self) -> None:
        now = self._loop.time()
        part = PART * self._most
        for subscriber, (until, before) in list(self.on.items()):
            size = subscriber.waiting
            if size <= part:
                del self.on[subscriber]
            elif now >= until and before - size >= part:
                self.on[subscriber] = now + MOMENT, size
            elif now >= until:
                del self.on[subscriber]
                self._slow.add(subscriber)
                self._loop.call_later(SLOW, self._slow.discard, subscriber)
                self._not_before = now + RECOVERY
        if self.on:
            self._loop.call_later(LOOK, self._look)
            return
        paused, self._paused = self._paused, []
        for resume in paused:
            resume()
