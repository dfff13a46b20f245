"""pipe by its wire cases, what its subscriptions match, and any bytes at all.

`P|topic|message` and `S|topic` in, `TOPIC: topic - MESSAGE: message` and the answers out.
"""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dialects.wire import Case, cases, check_decode, check_encode, check_frame, shown
from smbroker.dialects import pipe
from smbroker.model.commands import Subscribe
from smbroker.model.errors import ProtocolError, Refused
from smbroker.model.filter import matches
from smbroker.model.message import Kind

TOPICS = st.text(st.sampled_from("ab/#+|é\0"), max_size=8).map(str.encode)


@pytest.mark.parametrize("case", cases("pipe", "decode"), ids=lambda case: case.name)
def test_decode(case: Case) -> None:
    check_decode(case, pipe.decode)


@pytest.mark.parametrize("case", cases("pipe", "frame"), ids=lambda case: case.name)
def test_frame(case: Case) -> None:
    check_frame(case, pipe.framer)


@pytest.mark.parametrize("case", cases("pipe", "encode"), ids=lambda case: case.name)
def test_encode(case: Case) -> None:
    check_encode(case, pipe)


@pytest.mark.parametrize("datagram", [b"P|t", b"P|", b"P||m", b"S|", b"P", b"x", b""])
def test_what_is_malformed_is_the_peers_error(datagram: bytes) -> None:
    with pytest.raises(ProtocolError):
        pipe.decode(datagram)


@pytest.mark.parametrize("datagram", [b"P|#|m", b"P|\xff|m", b"S|a\0"])
def test_what_is_well_formed_may_be_refused(datagram: bytes) -> None:
    with pytest.raises(Refused):
        pipe.decode(datagram)


def test_the_answers_are_what_existing_clients_expect() -> None:
    assert pipe.HELLO_PUBLISHER == b"Hello Publisher!"
    assert pipe.HELLO_SUBSCRIBER == b"Hello Subscriber!"
    assert pipe.refusal("the größe is wrong") == b"ERROR: the gr\xc3\xb6\xc3\x9fe is wrong"


@given(
    st.binary(max_size=600)
    | st.builds(
        lambda verb, topic, rest: verb + topic + rest,
        st.sampled_from([b"P|", b"S|", b"P", b"S"]),
        TOPICS,
        st.binary() | st.just(b"|"),
    )
)
def test_any_bytes_give_a_command_or_an_error(datagram: bytes) -> None:
    try:
        shown(pipe.decode(datagram))
    except (ProtocolError, Refused):
        pass


@given(TOPICS, st.binary())
def test_a_publish_comes_back_unchanged(topic: bytes, message: bytes) -> None:
    try:
        command = pipe.decode(pipe.encode_publish(topic, message))
    except (ProtocolError, Refused):
        return
    assert command == (topic, message, Kind.BYTES, pipe.HELLO_PUBLISHER)


@pytest.mark.parametrize(
    ("subscription", "topic", "expected"),
    [
        (b"a", b"a", True),
        (b"a", b"a/b", False),
        (b"a/b", b"a/b", True),
        (b"a/b", b"a", False),
        (b"a/", b"a", False),
        (b"#", b"a", True),
        (b"#", b"a/b/c", True),
        (b"#", b"#", True),
        (b"#", b"$SYS/x", False),
        (b"$SYS/x", b"$SYS/x", True),
        (b"a/#", b"a/b", False),
        (b"a/#", b"a/#", True),
        (b"#/#", b"a/b", False),
        (b"+", b"a", False),
        (b"+", b"+", True),
    ],
)
def test_what_a_subscription_matches(subscription: bytes, topic: bytes, expected: bool) -> None:
    command = pipe.decode(b"S|" + subscription)
    assert isinstance(command, Subscribe)
    assert matches(command.filter, topic) is expected
