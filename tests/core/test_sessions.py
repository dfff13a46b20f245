import pytest

from smbroker.core.delivery import Delivery
from smbroker.core.outbox import Outbox
from smbroker.core.sessions import Limits, Session, Sessions
from smbroker.model.errors import Refused
from smbroker.model.filter import REST, Filter, exact
from smbroker.model.message import Dialect
from smbroker.model.stats import Stats


def sessions(**limits: int) -> Sessions:
    return Sessions(Delivery({}, Stats()), None, Limits(**limits))


def peer(host: str, dialect: Dialect = Dialect.SOH) -> Session:
    return Session(dialect, host, host, "udp")


def refused(made: Sessions, session: Session, pattern: Filter) -> str:
    with pytest.raises(Refused) as caught:
        made.subscribe(session, pattern)
    return caught.value.code


def test_repeating_a_subscription_changes_nothing() -> None:
    made = sessions()
    session = peer("h")
    assert made.subscribe(session, exact(b"a"))
    assert not made.subscribe(session, exact(b"a"))
    assert made.by_dialect[Dialect.SOH] == 1


def test_udp_subscriptions_are_capped_in_all_and_per_address() -> None:
    made = sessions(udp_subscriptions=3, udp_subscriptions_per_address=2)
    first, second = peer("h1"), peer("h2")
    made.subscribe(first, exact(b"a"))
    made.subscribe(first, exact(b"b"))
    assert refused(made, first, exact(b"c")) == "too_many_subscriptions"
    made.subscribe(second, exact(b"a"))
    assert refused(made, second, exact(b"b")) == "too_many_subscriptions"
    made.forget(first)
    assert made.subscribe(second, exact(b"b")), "what was given back can be had again"


def test_the_bytes_of_an_address_are_capped() -> None:
    made = sessions(udp_filter_bytes_per_address=100)
    made.subscribe(peer("h"), exact(b"a" * 40))
    assert refused(made, peer("h"), exact(b"b" * 40)) == "too_many_subscriptions"
    assert made.subscribe(peer("other"), exact(b"b" * 40))


def test_semicolon_counts_pairs_of_address_and_topic() -> None:
    made = sessions(semicolon_subscribers=2)
    one = peer("h", Dialect.SEMICOLON)
    made.subscribe(one, exact(b"a"))
    made.subscribe(one, exact(b"b"))
    assert refused(made, one, exact(b"c")) == "too_many_subscribers"
    assert not made.subscribe(one, exact(b"b")), "one that is there is not one more"
    assert made.subscribe(peer("h"), exact(b"c")), "other dialects have limits of their own"


def test_forgetting_semicolon_leaves_the_others_alone() -> None:
    made = sessions()
    semicolon, soh = peer("h", Dialect.SEMICOLON), peer("h")
    for session in (semicolon, soh):
        made.subscribe(session, exact(b"a"))
        made.subscribe(session, (b"a", REST))
    assert made.forget_semicolon() == [semicolon]
    assert not semicolon.subscriptions
    assert len(soh.subscriptions) == 2


def test_a_filter_with_wildcards_has_a_bounded_depth() -> None:
    made = sessions(filter_levels=3)
    assert refused(made, peer("h"), (b"a", b"b", b"c", REST)) == "too_many_levels"
    assert made.subscribe(peer("h"), exact(b"a/b/c/d/e")), "an exact one costs no nodes"


def test_typed_ids_are_bounded_but_useless_ones_make_room() -> None:
    made = sessions(typed_sessions=2)
    first = made.typed("C1")
    made.subscribe(first, exact(b"a"))
    second = made.typed("C2")
    second.outbox = Outbox()
    with pytest.raises(Refused) as caught:
        made.typed("C3")
    assert caught.value.code == "too_many_sessions"
    second.outbox = None
    assert made.typed("C3")
    assert made.typed("C1") is first


class Noted:
    """A feed that notes what it is told."""

    def __init__(self) -> None:
        self.has: set[Filter] = set()

    def add(self, pattern: Filter, _session: Session) -> None:
        self.has.add(pattern)

    def remove(self, pattern: Filter, _session: Session) -> None:
        self.has.remove(pattern)

    def attached(self, pattern: Filter, _session: Session) -> None:
        assert pattern in self.has


def test_a_subscription_that_is_kept_no_more_changes_its_feed_when_the_client_leaves() -> None:
    live, kept = Noted(), Noted()
    made = Sessions(live, kept, Limits())
    session = made.typed("C1")
    pattern = exact(b"t")
    made.attach(session, Outbox())
    made.subscribe(session, pattern, keep=True)
    made.subscribe(session, pattern, keep=False)
    assert (live.has, kept.has) == (set(), {pattern}), "what was kept still comes from there"
    made.subscribe(session, pattern, keep=True)
    made.attach(session, None)
    assert (live.has, kept.has) == (set(), {pattern})
    made.attach(session, Outbox())
    made.subscribe(session, pattern, keep=False)
    made.attach(session, None)
    assert (live.has, kept.has) == ({pattern}, set())
    made.attach(session, Outbox())
    made.subscribe(session, pattern, keep=True)
    made.subscribe(session, pattern, keep=False)
    made.unsubscribe(session, pattern)
    assert (live.has, kept.has) == (set(), set())
    made.attach(session, None)
    assert (live.has, kept.has) == (set(), set())
