"""When a message may leave by a lane: by hand, with the broker's own turn and a client that notes what it is sent."""

import gc
import time
import weakref
from collections.abc import Iterator

import pytest

from server.passing import pass_time
from server.turns import FRAME, HEAD, TOPIC, House, Noting
from smbroker.model.filter import exact
from smbroker.model.message import Dialect, Kind
from smbroker.server.lane import ACCOUNT, INSISTENCE, LONE_READS, LONG_AWAY, MOST_LONE_READS, SMALL_READ
from smbroker.server.mqtt.session import FRAMINGS
from smbroker.server.turn import MAX_TURN, ROW_BYTES, Turn


@pytest.fixture
def house() -> Iterator[House]:
    made = House()
    yield made
    made.loop.close()


def test_it_leaves_at_once_and_is_counted_later(house: House) -> None:
    one, other = house.subscriber(), house.subscriber()
    house.read()
    lane, stats = house.lane(), house.turn.stats
    assert lane
    assert lane.take(FRAME)
    assert lane.take(HEAD + b"def")
    assert one.sent == other.sent == [FRAME, HEAD + b"def"]
    house.turn.lanes.account()
    assert (stats.received[Dialect.MQTT], stats.delivered[Dialect.MQTT], stats.bytes_in) == (2, 4, 6)
    assert house.publisher.bytes_by_lane == 2 * len(FRAME)
    house.turn.lanes.account()
    assert stats.received[Dialect.MQTT] == 2


def test_it_is_counted_after_a_while_even_if_nobody_asks(house: House) -> None:
    """Keep-alive depends on it."""
    house.subscriber()
    house.read()
    lane = house.lane()
    assert lane
    for _ in range(2):
        assert lane.take(FRAME)
        pass_time(house.loop, ACCOUNT + 0.05)
        assert house.publisher.bytes_by_lane == len(FRAME)
        house.publisher.bytes_by_lane = 0


def test_only_what_is_like_the_one_before(house: House) -> None:
    house.subscriber()
    house.read()
    lane = house.lane()
    assert lane
    assert not lane.take(FRAME + b"d")
    assert not lane.take(b"\x31" + FRAME[1:])
    assert lane.take(FRAME)


def test_a_few_that_come_together_stay_on_it(house: House) -> None:
    got = house.subscriber()
    house.read()
    lane, stats = house.lane(), house.turn.stats
    assert lane
    some = FRAME + HEAD + b"def" + FRAME
    assert lane.take(some)
    assert got.sent == [some]
    house.turn.lanes.account()
    assert (stats.received[Dialect.MQTT], stats.delivered[Dialect.MQTT], stats.bytes_in) == (3, 3, 9)
    assert house.publisher.bytes_by_lane == len(some)
    assert not lane.take(FRAME + b"\x31" + FRAME[1:]), "another flag"
    assert not lane.take(FRAME + FRAME[:-1]), "cut off"
    assert not lane.take(FRAME * (SMALL_READ // len(FRAME) + 1)), "work enough for a turn"
    assert lane.take(FRAME)


def test_only_while_reads_come_alone(house: House) -> None:
    house.subscriber()
    lane = house.lane()
    assert lane
    assert not lane.take(FRAME)
    house.read()
    assert lane.take(FRAME)
    house.read(2)
    assert not lane.take(FRAME)
    house.read()
    house.turn.begin()
    assert not lane.take(FRAME), "what came before it in this turn has not left yet"


def test_now_and_then_a_turn_waits_for_others(house: House) -> None:
    got = house.subscriber()
    house.read()
    lane = house.lane()
    assert lane

    def until_one_waits() -> int:
        taken = 0
        while not house.turn.scheduled:
            assert lane.take(FRAME)
            taken += 1
        return taken

    assert until_one_waits() == LONE_READS + 1
    assert len(got.sent) == LONE_READS + 1
    house.turn.end()
    assert until_one_waits() == 2 * LONE_READS + 1, "nobody else came"
    for _ in range(10):
        house.turn.end()
        taken = until_one_waits()
    assert taken == MOST_LONE_READS + 1
    house.turn.begin_read(10)
    house.turn.end()
    assert not lane.take(FRAME), "somebody did"
    house.read()
    assert until_one_waits() == LONE_READS + 1


def test_not_after_a_change_of_who_gets_what(house: House) -> None:
    house.subscriber()
    house.read()
    lane = house.lane()
    assert lane
    assert lane.take(FRAME)
    late = house.subscriber()
    assert not lane.take(FRAME)
    lane = house.lane()
    assert lane
    assert lane.take(FRAME)
    assert late.sent == [FRAME]
    house.turn.rights_changed()
    house.turn.end()
    house.read()
    assert not lane.take(FRAME)


def test_not_while_the_log_is_behind(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    """Reads then go through turns, where they pause."""
    house.subscriber()
    house.read()
    lane = house.lane()
    assert lane
    monkeypatch.setattr(Turn, "behind", True)
    while not house.turn.scheduled:
        assert lane.take(FRAME)
    house.turn.end()
    assert not lane.take(FRAME)
    house.read()
    assert not lane.take(FRAME)


def test_it_gives_way_once_the_message_has_left(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    got, seen = house.subscriber(), []
    house.read()
    lane = house.lane()
    assert lane
    monkeypatch.setattr("smbroker.server.lane.sched_yield", lambda: seen.append(list(got.sent)))
    monkeypatch.setattr("smbroker.server.lane.LONG_AWAY", 10.0)
    assert lane.take(FRAME)
    assert lane.take(FRAME)
    assert seen == [[FRAME], [FRAME, FRAME]]
    assert lane.take(FRAME + FRAME)
    assert len(seen) == 2, "who reads several is awake"


def test_it_does_not_give_way_for_a_while_to_one_who_keeps_the_core(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    got, away = house.subscriber(), []

    def another_computes() -> None:
        away.append(len(got.sent))
        time.sleep(2 * LONG_AWAY)

    house.read()
    lane = house.lane()
    assert lane
    monkeypatch.setattr("smbroker.server.lane.sched_yield", another_computes)
    for _ in range(3):
        assert lane.take(FRAME)
    assert away == [1]
    pass_time(house.loop, INSISTENCE + 0.05)
    assert lane.take(FRAME)
    assert away == [1, 4]


def test_what_was_read_before_it_leaves_before_it(house: House) -> None:
    """Another client's read is so long that its turn is relieved in the middle: what follows still comes first."""
    got = house.subscriber()
    house.read()
    lane = house.lane()
    assert lane
    other, rows = Noting(), MAX_TURN // ROW_BYTES + 100
    house.turn.begin()
    for _ in range(rows):
        house.turn.publish(other, (TOPIC, b"", Kind.BYTES, b""))
    assert 0 < len(got.sent) < rows
    assert not lane.take(FRAME)
    house.turn.end()
    assert len(got.sent) == rows


def test_a_lane_holds_on_to_nobody_who_has_gone(house: House) -> None:
    gone = weakref.ref(house.subscriber())
    lane = house.lane()
    assert lane
    session = next(iter(house.turn.delivery._router.match(TOPIC)))
    house.turn.delivery.remove(exact(TOPIC), session)
    del session
    gc.collect()
    assert gone() is None


def test_topics_without_subscribers_leave_no_trace(house: House) -> None:
    for number in range(10):
        assert house.turn.lanes.new(house.publisher, b"t/%d" % number, FRAMINGS[4], HEAD, 10) is None
    assert not house.turn.delivery._routes


def test_nobody_subscribed_or_another_framing_has_none(house: House) -> None:
    assert house.lane() is None
    house.subscriber(FRAMINGS[5])
    assert house.lane() is None
    house.subscriber()
    assert house.lane() is None, "of two framings"


def test_large_messages_and_an_open_stream_have_none(house: House) -> None:
    house.subscriber()
    assert house.lane(SMALL_READ)
    assert house.lane(SMALL_READ + 1) is None
    house.read()
    lane = house.lane()
    assert lane
    house.turn.tell_relayed(lambda _: None)
    assert not lane.take(FRAME)
    assert house.lane() is None
