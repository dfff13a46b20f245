from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule

from core.test_router import FILTERS, TOPICS
from smbroker.core import delivery
from smbroker.core.delivery import Delivery
from smbroker.core.outbox import Outbox
from smbroker.core.sessions import Limits, Session, Sessions
from smbroker.model.errors import Unfit
from smbroker.model.filter import Filter, exact, matches, parse
from smbroker.model.framing import Framer, prefix_framer
from smbroker.model.grant import EVERYTHING
from smbroker.model.message import Columns, Dialect, Kind, Origin
from smbroker.model.stats import Stats


def framer(topic: bytes) -> Framer:
    if b"unfit" in topic:
        raise Unfit("test_unfit", "it says so")
    return prefix_framer(topic + b"=", 20)


class House:
    """Router, sessions and delivery, without sockets."""

    def __init__(self) -> None:
        self.stats = Stats()
        self.delivery = Delivery({Dialect.SEMICOLON: framer, Dialect.PIPE: framer}, self.stats)
        self.sessions = Sessions(self.delivery, None, Limits(semicolon_subscribers=10_000))

    def session(self, dialect: Dialect = Dialect.SEMICOLON) -> Session:
        session = Session(dialect, "name")
        session.grant = EVERYTHING
        session.outbox = Outbox()
        return session

    def publish(self, *messages: tuple[bytes, bytes]) -> None:
        topics, payloads = [m[0] for m in messages], [m[1] for m in messages]
        origin = Origin(Dialect.SOH)
        self.delivery.deliver(Columns(0, topics, payloads, [Kind.BYTES] * len(topics), [origin] * len(topics)))

    def taken(self, session: Session) -> list[bytes]:
        assert session.outbox
        frames, session.outbox.frames = session.outbox.frames, []
        self.delivery.dirty = [each for each in self.delivery.dirty if each is not session.outbox]
        return frames


def test_order_holds_across_topics() -> None:
    house = House()
    session = house.session()
    for topic in (b"a", b"b"):
        house.sessions.subscribe(session, exact(topic))
    house.publish((b"a", b"1"), (b"b", b"2"), (b"a", b"3"), (b"a", b"4"))
    assert house.taken(session) == [b"a=1", b"b=2", b"a=3", b"a=4"]


def test_an_outbox_is_dirty_once() -> None:
    house = House()
    session = house.session()
    house.sessions.subscribe(session, exact(b"a"))
    house.publish((b"a", b"1"), (b"b", b"2"), (b"a", b"3"))
    assert house.delivery.dirty == [session.outbox]


def test_whom_a_topic_reaches() -> None:
    house = House()
    one, other = house.session(), house.session(Dialect.PIPE)
    house.sessions.subscribe(one, exact(b"a"))
    house.sessions.subscribe(other, parse("#"))
    assert one.outbox
    assert other.outbox
    assert house.delivery.reaches(b"a", {one.outbox})
    assert not house.delivery.reaches(b"b", {one.outbox})
    assert house.delivery.reaches(b"b", {one.outbox, other.outbox})


def test_what_does_not_fit_is_counted_for_each_subscriber_and_others_still_get_it() -> None:
    house = House()
    first, second = house.session(), house.session()
    for session in (first, second):
        for topic in (b"a", b"unfit"):
            house.sessions.subscribe(session, exact(topic))
    house.publish((b"a", b"x" * 18), (b"a", b"x" * 19), (b"unfit", b""), (b"unfit", b""))
    assert house.taken(first) == house.taken(second) == [b"a=" + b"x" * 18]
    assert house.stats.undeliverable == {(Dialect.SEMICOLON, "too_long"): 2, (Dialect.SEMICOLON, "test_unfit"): 4}
    assert house.stats.delivered == {Dialect.SEMICOLON: 2}


def test_a_session_without_an_outbox_gets_nothing_until_it_has_one() -> None:
    house = House()
    session = house.session()
    house.sessions.subscribe(session, exact(b"a"))
    outbox = session.outbox
    house.sessions.attach(session, None)
    house.publish((b"a", b"1"))
    house.sessions.attach(session, outbox)
    house.publish((b"a", b"2"))
    assert house.taken(session) == [b"a=2"]


def test_the_cache_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    house = House()
    monkeypatch.setattr(delivery, "MAX_ROUTES", 10)
    for number in range(100):
        house.publish((b"%d" % number, b""))
        assert len(house.delivery._routes) <= 10
    house.publish((b"t" * 2_000, b""))
    assert b"t" * 2_000 not in house.delivery._routes


class DeliveryStory(RuleBasedStateMachine):
    """Subscriptions change while messages flow: the cached routes must agree with the plain rule."""

    def __init__(self) -> None:
        super().__init__()
        self.house = House()
        dialects = [Dialect.SEMICOLON, Dialect.PIPE, Dialect.PIPE]
        self.filters: dict[Session, set[Filter]] = {self.house.session(dialect): set() for dialect in dialects}

    def each(self) -> Iterator[Session]:
        return iter(self.filters)

    @rule(who=st.integers(0, 2), pattern=FILTERS)
    def subscribe(self, who: int, pattern: Filter) -> None:
        session = list(self.filters)[who]
        new = self.house.sessions.subscribe(session, pattern)
        assert new is (pattern not in self.filters[session])
        self.filters[session].add(pattern)

    @rule(who=st.integers(0, 2), pattern=FILTERS)
    def unsubscribe(self, who: int, pattern: Filter) -> None:
        session = list(self.filters)[who]
        assert self.house.sessions.unsubscribe(session, pattern) is (pattern in self.filters[session])
        self.filters[session].discard(pattern)

    @rule(who=st.integers(0, 2))
    def forget(self, who: int) -> None:
        session = list(self.filters)[who]
        assert self.house.sessions.forget(session) == len(self.filters[session])
        self.filters[session].clear()

    @rule(messages=st.lists(st.tuples(TOPICS, st.binary(max_size=4)), min_size=1, max_size=6))
    def publish(self, messages: list[tuple[bytes, bytes]]) -> None:
        self.house.publish(*messages)
        for session, filters in self.filters.items():
            expected = [
                topic + b"=" + payload for topic, payload in messages if any(matches(each, topic) for each in filters)
            ]
            assert self.house.taken(session) == expected


TestDeliveryStory = DeliveryStory.TestCase


@given(st.lists(st.tuples(st.sampled_from([b"a", b"b"]), st.binary(max_size=25)), max_size=20))
def test_every_message_is_delivered_or_counted(messages: list[tuple[bytes, bytes]]) -> None:
    house = House()
    session = house.session()
    house.sessions.subscribe(session, exact(b"a"))
    house.publish(*messages)
    wanted = sum(topic == b"a" for topic, _ in messages)
    assert len(house.taken(session)) + house.stats.undeliverable.total() == wanted


def test_routes_are_forgotten_when_they_have_too_many_subscribers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(delivery, "MAX_ENTRIES", 30)
    house = House()
    sessions = [house.session() for _ in range(10)]
    for session in sessions:
        house.sessions.subscribe(session, parse("#"))
    for number in range(20):
        house.publish((b"%d" % number, b""))
        assert len(house.delivery._routes) <= 3
    assert all(len(house.taken(session)) == 20 for session in sessions)
