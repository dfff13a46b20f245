"""soh by its wire cases, what its subscriptions match, and any bytes at all.

`\\x01topic/subtopic\\x02message` in both directions, `Stopic/subtopic` in, `Atopic/subtopic` out.
"""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dialects.wire import Case, cases, check_decode, check_encode, check_frame, quoted, shown
from smbroker.dialects import soh
from smbroker.model.commands import Subscribe
from smbroker.model.errors import ProtocolError, Refused, Unfit
from smbroker.model.filter import matches
from smbroker.model.message import Columns, Dialect, Kind, Origin

TOPICS = st.text(st.sampled_from("ab/#+é\x01\x02\0"), max_size=8).map(str.encode)
DATAGRAMS = st.binary(max_size=600) | st.builds(
    lambda verb, topic, rest: verb + topic + rest,
    st.sampled_from([b"\x01", b"S", b"A"]),
    TOPICS,
    st.binary() | st.just(b"\x02") | st.just(b"x" * 4_096),
)


@pytest.mark.parametrize("case", cases("soh", "decode"), ids=lambda case: case.name)
def test_decode(case: Case) -> None:
    check_decode(case, soh.decode)


@pytest.mark.parametrize("case", cases("soh", "frame"), ids=lambda case: case.name)
def test_frame(case: Case) -> None:
    check_frame(case, soh.framer)


@pytest.mark.parametrize("case", cases("soh", "encode"), ids=lambda case: case.name)
def test_encode(case: Case) -> None:
    check_encode(case, soh)


@pytest.mark.parametrize("case", cases("soh", "reply"), ids=lambda case: case.name)
def test_decode_reply(case: Case) -> None:
    if "error" in case.data:
        with pytest.raises(ProtocolError) as caught:
            soh.decode_reply(case.bytes())
        assert caught.value.code == case.data["error"]
    else:
        assert shown_reply(soh.decode_reply(case.bytes())) == case.text()


def shown_reply(reply: soh.Reply) -> str:
    match reply:
        case soh.Ack(topic):
            return f"ack {quoted(topic)}"
        case soh.Message(topic, message):
            return f"message {quoted(topic)} {quoted(message)}"


@pytest.mark.parametrize("datagram", [b"\x01a/b", b"\x01a\x02x", b"\x01a/\x02x", b"S", b"S/b", b"x", b"S" * 4_097])
def test_what_is_malformed_is_the_peers_error(datagram: bytes) -> None:
    with pytest.raises(ProtocolError):
        soh.decode(datagram)


@pytest.mark.parametrize("datagram", [b"\x01#/b\x02x", b"\x01a/#\x02x", b"\x01\xff/b\x02x", b"Sa/\0"])
def test_what_is_well_formed_may_be_refused(datagram: bytes) -> None:
    with pytest.raises(Refused):
        soh.decode(datagram)


def test_one_message_too_long_leaves_the_others_of_the_run() -> None:
    payloads = [b"1", b"x" * 4_091, b"", b"x" * 4_096, b"5"]
    columns = Columns(0, [b"t/s"] * 5, payloads, [Kind.BYTES] * 5, [Origin(Dialect.MQTT)] * 5)
    unfit: list[str] = []
    assert soh.framer(b"t/s")(columns, 0, 4, unfit) == [b"\x01t/s\x021", b"\x01t/s\x02"]
    assert unfit == ["too_long", "too_long"]


@given(DATAGRAMS)
def test_any_bytes_give_a_command_or_an_error(datagram: bytes) -> None:
    try:
        shown(soh.decode(datagram))
    except (ProtocolError, Refused):
        pass


@given(DATAGRAMS)
def test_any_bytes_give_a_reply_or_an_error(datagram: bytes) -> None:
    try:
        shown_reply(soh.decode_reply(datagram))
    except ProtocolError:
        pass


@given(TOPICS, st.binary())
def test_a_publish_comes_back_and_goes_on_unchanged(topic: bytes, message: bytes) -> None:
    try:
        datagram = soh.encode_publish(topic, message)
    except Refused:
        return
    assert soh.decode(datagram) == (topic, message, Kind.BYTES, b"")
    columns = Columns(0, [topic], [message], [Kind.BYTES], [Origin(Dialect.SOH)])
    assert soh.framer(topic)(columns, 0, 1, []) == [datagram]
    assert soh.decode_reply(datagram) == soh.Message(topic, message)


@given(TOPICS)
def test_a_subscribe_is_acknowledged_as_sent(topic: bytes) -> None:
    try:
        datagram = soh.encode_subscribe(topic)
    except Refused:
        return
    command = soh.decode(datagram)
    assert isinstance(command, Subscribe)
    assert soh.decode_reply(command.reply) == soh.Ack(topic)


@given(st.binary(min_size=1, max_size=20) | TOPICS.filter(len))
def test_a_topic_has_frames_or_is_unfit(topic: bytes) -> None:
    try:
        framer = soh.framer(topic)
    except Unfit:
        return
    columns = Columns(0, [topic], [b"x"], [Kind.BYTES], [Origin(Dialect.SEMICOLON)])
    (frame,) = framer(columns, 0, 1, [])
    assert soh.decode_reply(frame) == soh.Message(topic, b"x")


@pytest.mark.parametrize(
    ("subscription", "topic", "expected"),
    [
        (b"a/b", b"a/b", True),
        (b"a/b", b"a/b/c", False),
        (b"a/b", b"a", False),
        (b"a/b/c", b"a/b/c", True),
        (b"a/b/c", b"a/b", False),
        (b"a/#", b"a/b", True),
        (b"a/#", b"a/b/c", True),
        (b"a/#", b"a/#", True),
        (b"a/#", b"a", False),
        (b"a/#", b"ab/c", False),
        (b"#/x", b"a/x", True),
        (b"#/x", b"x", False),
        (b"#/x", b"a/b/x", False),
        (b"#/x", b"a/x/y", False),
        (b"#/x", b"$SYS/x", False),
        (b"#/b/c", b"a/b/c", True),
        (b"#/b/c", b"a/b", False),
        (b"#/b/c", b"b/c", False),
        (b"#/#", b"a/b", True),
        (b"#/#", b"a/b/c", True),
        (b"#/#", b"a", True),
        (b"#/#", b"$SYS/x", False),
        (b"#", b"a", True),
        (b"#", b"a/b/c", True),
        (b"#", b"$SYS/x", False),
        (b"only", b"only/a", True),
        (b"only", b"only/a/b", True),
        (b"only", b"only", False),
        (b"only", b"other/a", False),
        (b"$SYS", b"$SYS/x", True),
        (b"$SYS/#", b"$SYS/x/y", True),
        (b"a/b/#", b"a/b/c", False),
        (b"a/b/#", b"a/b/#", True),
        (b"a/#/c", b"a/b/c", False),
        (b"a#/b", b"ab/b", False),
        (b"a/+", b"a/b", False),
        (b"a/+", b"a/+", True),
    ],
)
def test_what_a_subscription_matches(subscription: bytes, topic: bytes, expected: bool) -> None:
    command = soh.decode(b"S" + subscription)
    assert isinstance(command, Subscribe)
    assert matches(command.filter, topic) is expected
