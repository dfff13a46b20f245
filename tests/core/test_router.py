from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from smbroker.core.router import Router
from smbroker.model.filter import ANY, REST, Filter, exact, matches

LEVELS = st.sampled_from([b"a", b"b", b"", b"$x", b"+", b"#"])
TOPICS = st.lists(LEVELS, min_size=1, max_size=5).map(b"/".join).filter(bool)
FILTERS = (
    st.tuples(st.lists(LEVELS | st.just(ANY), max_size=4), st.sampled_from([(), (REST,)]))
    .map(lambda parts: (*parts[0], *parts[1]))
    .filter(bool)
)


@given(st.dictionaries(st.integers(0, 20), st.lists(FILTERS, min_size=1, max_size=5)), TOPICS)
def test_the_trie_agrees_with_the_plain_rule(subscriptions: dict[int, list[Filter]], topic: bytes) -> None:
    router: Router[int] = Router()
    for subscriber, filters in subscriptions.items():
        for pattern in filters:
            router.subscribe(pattern, subscriber)
    found = router.match(topic)
    expected = {who for who, filters in subscriptions.items() if any(matches(each, topic) for each in filters)}
    assert set(found) == expected
    assert len(found) == len(expected), "each subscriber once"


class RouterStory(RuleBasedStateMachine):
    """Subscriptions that come and go, against a plain set of pairs."""

    def __init__(self) -> None:
        super().__init__()
        self.router: Router[int] = Router()
        self.pairs: set[tuple[Filter, int]] = set()

    @rule(pattern=FILTERS, who=st.integers(0, 3))
    def subscribe(self, pattern: Filter, who: int) -> None:
        self.router.subscribe(pattern, who)
        self.pairs.add((pattern, who))

    @rule(pattern=FILTERS, who=st.integers(0, 3))
    def unsubscribe_any(self, pattern: Filter, who: int) -> None:
        self.router.unsubscribe(pattern, who)
        self.pairs.discard((pattern, who))

    @rule(data=st.data())
    def unsubscribe_one(self, data: st.DataObject) -> None:
        if self.pairs:
            pattern, who = data.draw(st.sampled_from(sorted(self.pairs, key=repr)))
            self.router.unsubscribe(pattern, who)
            self.pairs.remove((pattern, who))

    @rule(topic=TOPICS)
    def match(self, topic: bytes) -> None:
        assert set(self.router.match(topic)) == {who for pattern, who in self.pairs if matches(pattern, topic)}

    @invariant()
    def an_empty_router_keeps_nothing(self) -> None:
        if not self.pairs:
            assert not self.router._root.children
            assert not self.router._exact


TestRouterStory = RouterStory.TestCase


def test_rest_includes_the_parent_level() -> None:
    assert matches((b"a", REST), b"a")
    assert matches((b"a", REST), b"a/b/c")
    assert not matches((b"a", REST), b"ab")


def test_no_wildcard_matches_a_dollar_topic_unless_the_filter_begins_with_it() -> None:
    assert not matches((REST,), b"$SYS/x")
    assert not matches((ANY, b"x"), b"$SYS/x")
    assert matches((b"$SYS", REST), b"$SYS/x")
    assert matches((b"$SYS", ANY), b"$SYS/x")
    assert matches((REST,), b"a/$x")


def test_empty_levels_are_levels() -> None:
    assert matches(exact(b"a/"), b"a/")
    assert not matches(exact(b"a/"), b"a")
    assert matches((b"a", ANY), b"a/")
