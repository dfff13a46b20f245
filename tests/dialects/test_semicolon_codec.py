import pytest
from hypothesis import given
from hypothesis import strategies as st

from dialects.wire import Case, cases, check_decode, check_encode, check_frame, shown
from smbroker.dialects import semicolon
from smbroker.dialects.semicolon import Codec
from smbroker.model.commands import Subscribe
from smbroker.model.errors import ProtocolError, Refused
from smbroker.model.filter import matches


@pytest.mark.parametrize("case", cases("semicolon", "decode"), ids=lambda case: case.name)
def test_decode(case: Case) -> None:
    check_decode(case, Codec().decode)


@pytest.mark.parametrize("case", cases("semicolon", "frame"), ids=lambda case: case.name)
def test_frame(case: Case) -> None:
    check_frame(case, semicolon.framer)


@pytest.mark.parametrize("case", cases("semicolon", "encode"), ids=lambda case: case.name)
def test_encode(case: Case) -> None:
    check_encode(case, semicolon)


@given(
    st.binary(max_size=600)
    | st.builds(lambda verb, rest: verb + rest, st.sampled_from([b"p", b"s", b"u"]), st.binary())
)
def test_any_bytes_give_a_command_or_an_error(datagram: bytes) -> None:
    try:
        shown(Codec().decode(datagram))
    except (ProtocolError, Refused):
        pass


@pytest.mark.parametrize(
    ("subscription", "topic", "expected"),
    [
        (b"a/#", b"a/b", True),
        (b"a/#", b"a/b/c", True),
        (b"a/#", b"a", False),
        (b"a/#/c", b"a/b/c", True),
        (b"a/#/c", b"a/c", False),
        (b"a/#/c", b"a/b/b/c", False),
        (b"#", b"a", True),
        (b"#", b"a/b/c", True),
        (b"#", b"$SYS/x", False),
        (b"#/b/#", b"a/b/c/d", True),
        (b"#/b/#", b"a/b", False),
        (b"a/#/#", b"a/b", False),
        (b"a/#/#", b"a/b/c", True),
        (b"a", b"a/b", False),
        (b"a/+", b"a/b", False),
    ],
)
def test_what_a_subscription_matches(subscription: bytes, topic: bytes, expected: bool) -> None:
    command = Codec().decode(b"s" + subscription)
    assert isinstance(command, Subscribe)
    assert matches(command.filter, topic) is expected


def test_prefix_match_reaches_deeper_topics() -> None:
    pattern = Codec(prefix_match=True).filter(b"a")
    assert matches(pattern, b"a")
    assert matches(pattern, b"a/b/c")
    assert not matches(pattern, b"ab")


def test_the_limits_can_be_set() -> None:
    codec = Codec(max_topic=2, max_message=3)
    assert codec.decode(b"pab;xyz")
    with pytest.raises(Refused):
        codec.decode(b"pabc;x")
    with pytest.raises(Refused):
        codec.decode(b"pa;wxyz")
