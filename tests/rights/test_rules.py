"""The rules file and the decision: what is allowed, to whom, and what is told of a file that is wrong."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from smbroker.model.errors import UsageError
from smbroker.model.filter import ANY, REST, Filter, covers, matches, overlaps, parse
from smbroker.model.message import Dialect
from smbroker.model.rights import Action, Identity, bound, is_loopback
from smbroker.model.rules import rules

HOUSE = """\
[groups]
family = ["ann", "bob"]

[[allow]]
group = "family"
topics = ["home/#", "people/%u/#"]

[[allow]]
user = "*"
subscribe = "news"

[[allow]]
anonymous = true
address = ["192.168.1.0/24", "fd00::/8"]
dialect = "semicolon"
publish = ["sensors/%c/#", "sensors/plain"]

[[allow]]
anyone = true
client = ["lamp-*", "door"]
publish = "clients/%c"

[[deny]]   # whoever it is
anyone = true
subscribe = "home/diary/#"
replay = "#"
"""


def may(who: Identity, action: str, topic: str, text: str = HOUSE) -> bool:
    made, raw = rules(text, "rules.toml"), topic.encode()
    allowed = made.permit(who, Action(action)).allows(raw)
    assert made.decide(who, Action(action), raw).allowed is allowed, "the explanation agrees with the decision"
    return allowed


def user(name: str | None, **more: str) -> Identity:
    return Identity(Dialect.MQTT, "10.0.0.1", name, **more)


@pytest.mark.parametrize(
    ("who", "action", "topic", "expected"),
    [
        (user("ann"), "publish", "home/x", True),
        (user("ann"), "subscribe", "home", True),
        (user("carl"), "publish", "home/x", False),
        (user(None), "publish", "home/x", False),
        (user("ann"), "publish", "people/ann/x", True),
        (user("ann"), "publish", "people/bob/x", False),
        (user("carl"), "subscribe", "news", True),
        (user(None), "subscribe", "news", False),
        (user("ann"), "subscribe", "home/diary", False),
        (user("ann"), "publish", "home/diary", True),
        (user("ann"), "replay", "home/x", False),
        (user("ann", client="lamp-1"), "publish", "clients/lamp-1", True),
        (user("ann", client="lamp-1"), "publish", "clients/lamp-2", False),
        (user(None, client="doors"), "publish", "clients/doors", False),
        (Identity(Dialect.SEMICOLON, "192.168.1.9"), "publish", "sensors/plain", True),
        (Identity(Dialect.SEMICOLON, "::ffff:192.168.1.9"), "publish", "sensors/plain", True),
        (Identity(Dialect.SEMICOLON, "fd00::1%eth0"), "publish", "sensors/plain", True),
        (Identity(Dialect.SEMICOLON, "192.168.2.9"), "publish", "sensors/plain", False),
        (Identity(Dialect.SOH, "192.168.1.9"), "publish", "sensors/plain", False),
        (Identity(Dialect.SEMICOLON, ""), "publish", "sensors/plain", False),
    ],
)
def test_who_may_do_what(who: Identity, action: str, topic: str, expected: bool) -> None:
    assert may(who, action, topic) is expected


def test_a_deny_wins_wherever_it_stands() -> None:
    text = '[[deny]]\nuser="ann"\npublish="a/+"\n[[allow]]\nanyone=true\ntopics="#"\n'
    assert not may(user("ann"), "publish", "a/b", text)
    assert may(user("ann"), "publish", "a", text)
    assert may(user("bob"), "publish", "a/b", text)


def test_the_rule_that_decides_is_told_with_its_line() -> None:
    made = rules(HOUSE, "rules.toml")
    denied = made.decide(user("ann"), Action.SUBSCRIBE, b"home/diary/x").rule
    allowed = made.decide(user("ann"), Action.SUBSCRIBE, b"home/x").rule
    assert denied is not None
    assert allowed is not None
    assert HOUSE.splitlines()[denied.line - 1].startswith("[[deny]]")
    assert allowed.line == 4
    assert made.decide(user("ann"), Action.SUBSCRIBE, b"other").rule is None


def test_topics_with_a_dollar_need_a_rule_that_names_them() -> None:
    text = (
        '[[allow]]\nanyone=true\ntopics=["#", "$stats/#", "$alerts/#"]\n[[deny]]\nanyone=true\nsubscribe="secret/#"\n'
    )
    assert not may(user("ann"), "subscribe", "$SYS/broker/version", text)
    assert may(user("ann"), "subscribe", "$stats/home/x", text)
    assert not may(user("ann"), "subscribe", "$stats/secret/x", text), "what is derived of it is as secret"
    assert not may(user("ann"), "subscribe", "$alerts/silence/secret/x", text)
    assert may(user("ann"), "subscribe", "$alerts/silence/home/x", text)


BAD_NAMES = ["#", "+", "a/b", "a\nb", "", "/", "a+", "$SYS", "a\x00", "a\x7f", "\u2028", "a/#", "\ud800"]


@pytest.mark.parametrize("name", BAD_NAMES)
@pytest.mark.parametrize("place", ["user", "client"])
def test_a_name_cannot_be_more_than_a_level(name: str, place: str) -> None:
    who = Identity(Dialect.MQTT, "10.0.0.1", name if place == "user" else "ann", name if place == "client" else "c")
    letter = b"%u" if place == "user" else b"%c"
    for pattern in ((letter, REST), (b"a", letter), (b"a", b"x-" + letter)):
        assert bound(pattern, who, widen=False) is None, "an allow means nothing"
        widened = bound(pattern, who, widen=True)
        assert widened is not None
        assert ANY in widened, "a deny means any level"


@given(st.text(), st.text())
def test_a_placeholder_never_reaches_another_level(name: str, client: str) -> None:
    who = Identity(Dialect.MQTT, "", name, client)
    made = bound((b"a", b"%u%c", REST), who, widen=False)
    if made is not None:
        assert made[0] == b"a"
        assert made[2] is REST
        assert len(made) == 3
        assert made[1] == (name + client).encode(), "and what is filled in is not looked into again"
        assert isinstance(made[1], bytes)
        assert b"/" not in made[1]


WRONG = [
    ("", 1, "no [[allow]]"),
    ("# nothing\n", 1, "no [[allow]]"),
    ('[[deny]]\nanyone = true\ntopics = "#"\n', 1, "no [[allow]]"),
    ("[[allow]]\nuser = ", 2, "nvalid"),
    ("[[allow]]\nanyone = true\npublish = 'a'\nsubscribe = oops\n", 4, "nvalid"),
    ("[[allow]]\n", 1, "for whom"),
    ("[[allow]]\nuser = 'ann'\n", 1, "no topics"),
    ("[[allow]]\ntopics = '#'\n", 1, "for whom"),
    ("[[allow]]\nuser = 'ann'\ntopic = '#'\n", 3, "unknown key topic"),
    ("\n[[alow]]\nuser = 'ann'\ntopics = '#'\n", 2, "unknown alow"),
    ("[[allow]]\nanonymous = false\ntopics = '#'\n", 2, "anonymous is true"),
    ("[[allow]]\nuser = []\ntopics = '#'\n", 2, "not empty"),
    ("[[allow]]\nuser = ''\ntopics = '#'\n", 2, "not empty"),
    ("[[allow]]\nuser = 3\ntopics = '#'\n", 2, "a text"),
    ("[[allow]]\nanyone = true\ntopics = []\n", 3, "not empty"),
    ("[[allow]]\nanyone = true\ntopics = 'a/#/b'\n", 3, "last level"),
    ("[[allow]]\nanyone = true\ntopics = ['a', 'b+']\n", 3, "whole levels"),
    ("[[allow]]\naddress = '10.0.0.1/8'\ntopics = 'a'\n", 2, "host bits"),
    ("[[allow]]\naddress = 'home'\ntopics = 'a'\n", 2, "192.168.1.0/24"),
    ("[[allow]]\ndialect = 'kafka'\ntopics = 'a'\n", 2, "no dialect kafka"),
    ("[[allow]]\ngroup = 'x'\ntopics = 'a'\n", 2, "no group x"),
    ("groups = 3\n[[allow]]\nanyone = true\ntopics = 'a'\n", 1, "table"),
    ("[groups]\na = ['b']\nc = 'd'\n[[allow]]\nanyone = true\ntopics = 'a'\n", 3, "group c"),
    ("allow = [{anyone = true, topics = '#'}]\n", 1, "[[allow]]"),
    ("[allow]\nanyone = true\ntopics = '#'\n", 1, "[[allow]]"),
    ('[[allow]]\nuser = """\n[[deny]]\n"""\ntopics = "a"\n', 2, "several lines"),
]


@pytest.mark.parametrize(("text", "line", "reason"), WRONG)
def test_a_file_that_is_wrong_is_refused_with_its_line(text: str, line: int, reason: str) -> None:
    with pytest.raises(UsageError) as caught:
        rules(text, "rules.toml")
    assert caught.value.text.startswith(f"rules.toml:{line}: "), caught.value.text
    assert reason in caught.value.text


@given(st.text())
def test_no_text_makes_rules_by_accident(text: str) -> None:
    with pytest.raises(UsageError):
        rules(text, "rules.toml")


LEVELS = st.sampled_from([b"a", b"b", b"$x", b""])
FILTERS = (
    st.tuples(st.lists(LEVELS | st.just(ANY), max_size=3), st.sampled_from([(), (REST,)]))
    .map(lambda parts: (*parts[0], *parts[1]))
    .filter(bool)
)
EVERY = [  # the empty one too: nobody can publish to it, but filters know no better
    b"/".join([b"a", b"b", b"$x", b""][number // 4**at % 4] for at in range(depth))
    for depth in range(1, 5)
    for number in range(4**depth)
]


@given(FILTERS, FILTERS)
def test_what_filters_share_and_cover_is_what_their_topics_say(one: Filter, other: Filter) -> None:
    mine = {topic for topic in EVERY if matches(one, topic)}
    theirs = {topic for topic in EVERY if matches(other, topic)}
    if mine and theirs:
        assert overlaps(one, other) == bool(mine & theirs)
        assert overlaps(other, one) == overlaps(one, other)
    if covers(one, other):
        assert theirs <= mine
    assert covers(one, one)


@pytest.mark.parametrize(
    ("wanted", "expected"),
    [
        ("#", True),
        ("home/+", True),
        ("home/diary/x", False),
        ("home/diary/#", False),
        ("other/#", False),
        ("$SYS/#", False),
    ],
)
def test_a_subscription_that_can_bring_nothing_is_known(wanted: str, expected: bool) -> None:
    assert rules(HOUSE, "rules.toml").permit(user("ann"), Action.SUBSCRIBE).meets(parse(wanted)) is expected


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        ("127.0.0.1", True),
        ("127.9.9.9", True),
        ("::1", True),
        ("::ffff:127.0.0.1", True),
        ("10.0.0.1", False),
        ("", False),
        ("localhost", False),
    ],
)
def test_loopback(host: str, expected: bool) -> None:
    assert is_loopback(host) is expected


def test_a_proof_is_never_shown() -> None:
    assert "hash" not in repr(Identity(Dialect.MQTT, user="ann", proof="hash"))
