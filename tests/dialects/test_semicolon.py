import pytest
from hypothesis import given
from hypothesis import strategies as st

from dialects.wire import Case, cases, shown, wire_bytes
from smbroker.dialects import semicolon
from smbroker.dialects.semicolon import Codec
from smbroker.model.commands import Subscribe
from smbroker.model.errors import ProtocolError, Refused, Unfit
from smbroker.model.filter import matches
from smbroker.model.message import Columns, Dialect, Kind, Origin


@pytest.mark.parametrize("case", cases("semicolon", "decode"), ids=lambda case: case.name)
def test_decode(case: Case) -> None:
    if "error" in case.data:
        with pytest.raises((ProtocolError, Refused)) as caught:
            Codec().decode(case.bytes())
        assert caught.value.code == case.data["error"]
    else:
        assert shown(Codec().decode(case.bytes())) == case.data["gives"]


@pytest.mark.parametrize("case", cases("semicolon", "frame"), ids=lambda case: case.name)
def test_frame(case: Case) -> None:
    columns = Columns(0, [case.bytes("topic")], [case.bytes("payload")], [Kind.BYTES], [Origin(Dialect.PIPE)])
    unfit: list[str] = []
    try:
        frames = semicolon.framer(columns.topics[0])(columns, 0, 1, unfit)
    except Unfit as error:
        frames, unfit = [], [error.code]
    if "unfit" in case.data:
        assert (frames, unfit) == ([], [case.data["unfit"]])
    else:
        assert (frames, unfit) == ([case.bytes("gives")], [])


@pytest.mark.parametrize("case", cases("semicolon", "encode"), ids=lambda case: case.name)
def test_encode(case: Case) -> None:
    encode = getattr(semicolon, "encode_" + case.data["call"])
    arguments = [wire_bytes(text) for text in case.data["arguments"]]
    if "error" in case.data:
        with pytest.raises(Refused) as caught:
            encode(*arguments)
        assert caught.value.code == case.data["error"]
    else:
        assert encode(*arguments) == case.bytes("gives")


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
