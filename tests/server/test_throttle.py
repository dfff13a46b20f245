"""Floods wait for a subscriber that is behind: for a moment, and not again and again for who never catches up."""

from collections.abc import Callable, Collection, Container
from typing import Any

from smbroker.core.outbox import Outbox
from smbroker.model.message import Dialect, Origin
from smbroker.server.client import Client
from smbroker.server.throttle import FAST, GRACE, LOOK, PARDONS, RECOVERY, SLOW, STALL, Throttle

MOST = 16 << 20
LONGEST = GRACE + MOST / FAST  # seconds for one that has all of it to read


class Loop:
    def __init__(self) -> None:
        self.now = 100.0
        self.due: list[tuple[float, Callable[..., None], tuple[Any, ...]]] = []

    def time(self) -> float:
        return self.now

    def call_at(self, when: float, callback: Callable[..., None], *given: Any) -> None:
        self.due.append((when, callback, given))

    def call_later(self, seconds: float, callback: Callable[..., None], *given: Any) -> None:
        self.call_at(self.now + seconds, callback, *given)

    def stand_still(self, seconds: float) -> None:
        self.now += seconds

    def pass_time(self, seconds: float) -> None:
        end = self.now + seconds
        while due := [one for one in self.due if one[0] <= end]:
            first = min(due, key=lambda one: one[0])
            self.due.remove(first)
            self.now = max(self.now, first[0])
            first[1](*first[2])
        self.now = max(self.now, end)


class Subscriber(Client):
    def __init__(self, topic: bytes = b"t") -> None:
        super().__init__(Origin(Dialect.MQTT, "127.0.0.1", 1))
        self.topic = topic
        self.waits = 0

    @property
    def waiting(self) -> int:
        return self.waits


def reaches(topic: bytes, some: Container[Outbox]) -> bool:
    assert isinstance(some, Collection)
    return any(one.topic == topic for one in some)


class House:
    def __init__(self) -> None:
        self.loop = Loop()
        self.throttle = Throttle(self.loop, MOST, reaches)  # type: ignore[arg-type]
        self.resumed: list[bytes] = []

    def flood(self, subscriber: Subscriber, waits: int) -> bool:
        """So much waits for it now; whether the flood has to wait as well."""
        subscriber.waits = waits
        self.throttle.waits(subscriber, waits)
        if not self.throttle.outruns(subscriber.topic):
            return False
        self.throttle.when_there_is_room(subscriber.topic, lambda: self.resumed.append(subscriber.topic))
        return True

    def take(self, subscriber: Subscriber, speed: float) -> float:
        """Until it has all; how long the flood waited."""
        begun = self.loop.now
        while not self.resumed:
            subscriber.waits = max(0, subscriber.waits - int(speed * LOOK))
            self.loop.pass_time(LOOK)
        return self.loop.now - begun


def test_a_flood_goes_on_when_its_subscriber_has_caught_up() -> None:
    house, subscriber = House(), Subscriber()
    assert not house.flood(subscriber, MOST // 4 - 1)
    assert house.flood(subscriber, MOST // 4)
    subscriber.waits = MOST // 16 + 1
    house.loop.pass_time(2 * LOOK)
    assert not house.resumed
    subscriber.waits = MOST // 16
    house.loop.pass_time(1.5 * LOOK)
    assert house.resumed == [b"t"]
    assert not house.throttle.on
    assert house.flood(subscriber, MOST)  # as often as it keeps up


def test_a_flood_waits_for_those_of_its_topic_who_were_behind_when_it_was_held() -> None:
    """And for nobody else; with many who read fast it might wait for ever."""
    house, one, other, third = House(), Subscriber(), Subscriber(), Subscriber(b"u")
    for subscriber in (one, other, third):
        assert house.flood(subscriber, MOST)  # the second one's waits for the first as well
    assert not house.throttle.outruns(b"v")
    assert not house.throttle.outruns(b"")
    other.waits = 0
    house.loop.pass_time(1.5 * LOOK)
    assert house.resumed == []
    third.waits = 0
    house.loop.pass_time(1.5 * LOOK)
    assert house.resumed == [b"u"]
    house.flood(other, MOST)
    one.waits = 0
    house.loop.pass_time(1.5 * LOOK)
    assert house.resumed == [b"u", b"t", b"t"]
    assert house.throttle.outruns(b"t")


def test_who_reads_fast_is_waited_for_however_much_there_is() -> None:
    house, subscriber = House(), Subscriber()
    assert house.flood(subscriber, MOST // 4)
    subscriber.waits = MOST  # what was read before the floods were held
    assert house.take(subscriber, FAST * 1.1) > MOST / FAST / 2
    assert house.flood(subscriber, MOST)


def test_nobody_waits_long_nor_soon_again_for_who_reads_slowly_or_not_at_all() -> None:
    for speed in (0.0, FAST / 2):
        house, slow = House(), Subscriber()
        assert house.flood(slow, MOST)
        assert GRACE < house.take(slow, speed) < LONGEST + 2 * LOOK
        begun = house.loop.now
        while house.loop.now < begun + SLOW - 2 * LOOK:
            assert not house.flood(slow, MOST)
            house.loop.pass_time(SLOW / 100)
        house.loop.pass_time(SLOW / 50)
        assert house.flood(slow, MOST)


def test_a_broker_that_stood_still_does_not_blame_a_subscriber() -> None:
    house, subscriber = House(), Subscriber()
    assert house.flood(subscriber, MOST // 4)
    house.loop.stand_still(10 * (LONGEST + STALL))
    house.loop.pass_time(LOOK)
    assert house.resumed == []
    subscriber.waits = 0
    house.loop.pass_time(2 * LOOK)
    assert house.flood(subscriber, MOST)


def test_a_broker_that_is_slow_itself_does_not_hold_a_flood_for_longer() -> None:
    house, deaf = House(), Subscriber()
    assert house.flood(deaf, MOST)
    begun = house.loop.now
    while not house.resumed:
        house.loop.stand_still(STALL * 2)
        house.loop.pass_time(0)
    assert house.loop.now - begun < LONGEST + (PARDONS + 2) * (2 * STALL + LOOK)


def test_many_who_do_not_read_cost_a_flood_little_together() -> None:
    house, waited = House(), 0.0
    deaf = [Subscriber() for _ in range(100)]
    for step in range(10_000):
        for one in deaf[: step % 100 + 1]:
            house.flood(one, MOST // 4 + step * 1_000)
        waited += LOOK * bool(house.throttle.on)
        house.loop.pass_time(LOOK)
    assert 0 < waited < 10_000 * LOOK * 2 / RECOVERY
