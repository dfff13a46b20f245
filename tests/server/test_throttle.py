"""Floods wait for a subscriber that is behind: for a moment, and not again and again for who never catches up."""

from collections.abc import Callable
from typing import Any

from smbroker.model.message import Dialect, Origin
from smbroker.server.client import Client
from smbroker.server.throttle import LOOK, MOMENT, RECOVERY, SLOW, Throttle

MOST = 1_600


class Loop:
    def __init__(self) -> None:
        self.now = 0.0
        self.due: list[tuple[float, Callable[..., None], tuple[Any, ...]]] = []

    def time(self) -> float:
        return self.now

    def call_later(self, seconds: float, callback: Callable[..., None], *given: Any) -> None:
        self.due.append((self.now + seconds, callback, given))

    def pass_time(self, seconds: float) -> None:
        end = self.now + seconds
        while due := [one for one in self.due if one[0] <= end]:
            first = min(due, key=lambda one: one[0])
            self.due.remove(first)
            self.now, callback, given = first
            callback(*given)
        self.now = end


class Subscriber(Client):
    waits = 0

    def __init__(self) -> None:
        super().__init__(Origin(Dialect.MQTT, "127.0.0.1", 1))

    @property
    def waiting(self) -> int:
        return self.waits


class House:
    def __init__(self) -> None:
        self.loop = Loop()
        self.throttle = Throttle(self.loop, MOST)  # type: ignore[arg-type]
        self.resumed = 0

    def flood(self, subscriber: Subscriber, waits: int) -> bool:
        """So much waits for it now; whether the flood has to wait as well."""
        subscriber.waits = waits
        self.throttle.waits(subscriber, waits)
        if subscriber not in self.throttle.on:
            return False
        self.throttle.when_there_is_room(self._resume)
        return True

    def _resume(self) -> None:
        self.resumed += 1


def test_a_flood_goes_on_when_its_subscriber_has_caught_up() -> None:
    house, subscriber = House(), Subscriber()
    assert not house.flood(subscriber, MOST // 4 - 1)
    assert house.flood(subscriber, MOST // 4)
    subscriber.waits = MOST // 16 + 1
    house.loop.pass_time(2 * LOOK)
    assert not house.resumed
    subscriber.waits = MOST // 16
    house.loop.pass_time(LOOK)
    assert house.resumed == 1
    assert not house.throttle.on
    assert house.flood(subscriber, MOST)  # as often as it keeps up


def test_a_flood_waits_for_all_that_are_behind() -> None:
    house, one, other = House(), Subscriber(), Subscriber()
    assert house.flood(one, MOST)
    assert house.flood(other, MOST)
    one.waits = 0
    house.loop.pass_time(2 * LOOK)
    assert not house.resumed
    other.waits = 0
    house.loop.pass_time(LOOK)
    assert house.resumed == 2


def test_a_flood_waits_as_long_as_its_subscriber_keeps_reading() -> None:
    house, subscriber = House(), Subscriber()
    assert house.flood(subscriber, MOST)
    while subscriber.waits > MOST // 16:
        assert not house.resumed
        subscriber.waits -= MOST // 16
        house.loop.pass_time(MOMENT + LOOK)
    assert house.resumed == 1
    assert house.flood(subscriber, MOST)
    subscriber.waits -= MOST // 16 - 1
    house.loop.pass_time(MOMENT + LOOK)
    assert house.resumed == 2
    assert not house.flood(subscriber, MOST)


def test_nobody_waits_long_nor_soon_again_for_who_does_not_read() -> None:
    house, deaf = House(), Subscriber()
    assert house.flood(deaf, MOST)
    house.loop.pass_time(MOMENT - LOOK)
    assert not house.resumed
    house.loop.pass_time(2 * LOOK)
    assert house.resumed == 1
    while house.loop.now < SLOW:
        assert not house.flood(deaf, MOST)
        house.loop.pass_time(SLOW / 20)
    house.loop.pass_time(MOMENT + LOOK)
    assert house.flood(deaf, MOST)


def test_many_who_do_not_read_cost_a_flood_little_together() -> None:
    house, waited = House(), 0.0
    deaf = [Subscriber() for _ in range(100)]
    while house.loop.now < 10:
        for one in deaf:
            house.flood(one, MOST)
        waited += LOOK * bool(house.throttle.on)
        house.loop.pass_time(LOOK)
    assert 0 < waited < 10 * 1.2 * MOMENT / (MOMENT + RECOVERY)
