import struct
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dialects.streams import check_stream, cut, decoded, one_by_one
from dialects.wire import Case, cases, check_decode, check_frame, shown, wire_bytes
from smbroker.dialects import typed
from smbroker.dialects.typed import FRAME, Decoder, decode_message
from smbroker.dialects.typed.frames import MAX_SOURCES
from smbroker.model.commands import Identify, Subscribe, Unsubscribe
from smbroker.model.errors import ProtocolError, Refused
from smbroker.model.filter import exact
from smbroker.model.message import Columns, Dialect, Kind, Origin

HERE = Origin(Dialect.TYPED, "10.0.0.1", 4660)


def text(argument: str) -> str:
    return wire_bytes(argument).decode("utf-8", "surrogateescape")  # as an argument of a program comes


def kind(argument: str) -> Kind:
    return Kind[argument.upper()]


def flag(argument: str) -> bool:
    return argument == "1"


ARGUMENTS: dict[str, list[Callable[[str], Any]]] = {
    "publish": [wire_bytes, kind, text],
    "identity": [text],
    "subscribe": [wire_bytes, flag],
    "unsubscribe": [wire_bytes],
}

signs = st.sampled_from([b"\0", b"\x01"])
u32s = (st.integers(0, 2**32 - 1) | st.integers(0, 100)).map(struct.Struct(">I").pack)
u8s = st.integers(0, 255).map(struct.Struct(">B").pack)
u16s = st.integers(0, 2**16 - 1).map(struct.Struct(">H").pack)
number_contents = (
    st.tuples(st.just(b"\0"), signs, u32s)
    | st.tuples(st.just(b"\x01"), u16s)
    | st.tuples(st.just(b"\x02"), signs, u32s, u8s)
).map(b"".join)

topics = st.binary(max_size=50) | st.sampled_from([b"a/b", b" t\n", b"", b"\xff"])
commands = (
    st.builds(lambda topic, sf: b"s" + topic.ljust(50, b"\0") + sf, topics, st.binary(min_size=2, max_size=4))
    | st.builds(lambda topic, end: b"u" + topic.ljust(50, b"\0") + end, topics, st.sampled_from([b"", b"\0", b"\0\0"]))
    | st.sampled_from([b"\0", b"s", b"u", b"x"])
    | st.binary(max_size=20)
)
streams = st.builds(
    lambda client, rest: client.ljust(11, b"\0") + b"".join(rest),
    st.sampled_from([b"C1", b"0123456789", b"", b"\xff"]) | st.binary(max_size=11),
    st.lists(commands, max_size=6),
)
places = st.lists(st.integers(0, 1_000), max_size=6)


def framed(kind: Kind, payload: bytes) -> bytes:
    [frame] = typed.framer(b"t")(Columns(0, [b"t"], [payload], [kind], [HERE]), 0, 1, [])
    return frame


@pytest.mark.parametrize("case", cases("typed", "decode"), ids=lambda case: case.name)
def test_decode(case: Case) -> None:
    check_decode(case, typed.decode)


@pytest.mark.parametrize("case", cases("typed", "stream"), ids=lambda case: case.name)
def test_stream(case: Case) -> None:
    check_stream(case, Decoder, *cases("typed", "tail"))


@pytest.mark.parametrize("case", cases("typed", "frame"), ids=lambda case: case.name)
def test_frame(case: Case) -> None:
    check_frame(case, typed.framer)


@pytest.mark.parametrize("case", cases("typed", "message"), ids=lambda case: case.name)
def test_message(case: Case) -> None:
    if "error" in case.data:
        with pytest.raises(ProtocolError) as caught:
            decode_message(case.bytes())
        assert caught.value.code == case.data["error"]
    else:
        message = decode_message(case.bytes())
        line = f"{message.host}:{message.port} - {message.topic.decode()} - {message.kind.name} - {message.text!s}"
        assert line == case.text()


@pytest.mark.parametrize("case", cases("typed", "encode"), ids=lambda case: case.name)
def test_encode(case: Case) -> None:
    call = case.data["call"]
    arguments = [read(argument) for read, argument in zip(ARGUMENTS[call], case.data["arguments"], strict=True)]
    encode = getattr(typed, f"encode_{call}")
    if "error" in case.data:
        with pytest.raises(Refused) as caught:
            encode(*arguments)
        assert caught.value.code == case.data["error"]
    else:
        assert encode(*arguments) == case.bytes("gives")


@given(st.binary(max_size=100) | st.builds(lambda kind, rest: b"t".ljust(50, b"\0") + kind + rest, u8s, st.binary()))
def test_any_datagram_gives_a_command_or_an_error(datagram: bytes) -> None:
    try:
        shown(typed.decode(datagram))
    except (ProtocolError, Refused):
        pass


@given(streams | st.binary(max_size=200), places)
def test_any_bytes_cut_anywhere_give_the_same_commands_or_error(data: bytes, places: list[int]) -> None:
    whole = decoded(Decoder(), [data])
    assert decoded(Decoder(), cut(data, places)) == whole
    assert decoded(Decoder(), one_by_one(data)) == whole


@given(st.binary(min_size=FRAME, max_size=FRAME) | st.binary(max_size=10))
def test_any_frame_gives_a_message_or_an_error(frame: bytes) -> None:
    try:
        decode_message(frame)
    except ProtocolError:
        pass


@given(number_contents)
def test_a_number_comes_out_as_it_went_in(content: bytes) -> None:
    command = typed.decode(b"t".ljust(50, b"\0") + content)
    assert isinstance(command, tuple)
    _, payload, kind, _ = command
    frame = framed(kind, payload)
    message = decode_message(frame)
    assert len(frame) == FRAME
    assert (message.kind, message.text) == (kind, payload.decode())
    assert typed.decode(typed.encode_publish(b"t", kind, payload.decode())) == command


@given(st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=100))
def test_a_string_comes_out_as_it_went_in(sent: str) -> None:
    command = typed.decode(typed.encode_publish(b"t", Kind.STRING, sent))
    assert command == (b"t", sent.encode(), Kind.STRING, b"")
    assert decode_message(framed(Kind.STRING, sent.encode())).text == sent


@given(st.sampled_from(list(Kind)), st.binary(max_size=20) | st.from_regex(rb"-?[0-9]{1,12}(\.[0-9]{0,4})?"))
def test_any_payload_of_any_kind_is_framed_or_counted(kind: Kind, payload: bytes) -> None:
    unfit: list[str] = []
    frames = typed.framer(b"t")(Columns(0, [b"t"], [payload], [kind], [HERE]), 0, 1, unfit)
    assert [len(frame) for frame in frames] == [FRAME] * (1 - len(unfit))


def test_what_a_subscriber_encodes_the_broker_understands() -> None:
    data = typed.encode_identity("C1") + typed.encode_subscribe(b"a/b", True)
    data += typed.encode_subscribe(b"c", False) + typed.encode_unsubscribe(b"a/b")
    assert decoded(Decoder(), [data]) == (
        [
            Identify("C1"),
            Subscribe(exact(b"a/b"), keep=True),
            Subscribe(exact(b"c")),
            Unsubscribe(exact(b"a/b")),
        ],
        None,
    )


def test_a_run_of_all_kinds_keeps_its_order_and_leaves_out_what_does_not_fit() -> None:
    payloads = [b"before", b"text", b"a\0b", b"-10", b"x" * 1_501, b"ten", b"2.30", b"after"]
    kinds = [Kind.BYTES, Kind.STRING, Kind.BYTES, Kind.INT, Kind.STRING, Kind.INT, Kind.SHORT_REAL, Kind.BYTES]
    columns = Columns(0, [b"t"] * 8, payloads, kinds, [HERE] * 8)
    unfit = ["earlier"]
    frames = typed.framer(b"t")(columns, 1, 7, unfit)
    assert [decode_message(frame).text for frame in frames] == ["text", "-10", "2.30"]
    assert unfit == ["earlier", "payload_nul", "too_long", "not_a_number"]


def test_many_sources_of_one_topic_are_told_apart() -> None:
    count = 3 * MAX_SOURCES
    origins = [Origin(Dialect.TYPED, "10.0.0.1", port) for port in range(count)] * 2
    columns = Columns(0, [b"t"] * len(origins), [b"x"] * len(origins), [Kind.STRING] * len(origins), origins)
    frames = typed.framer(b"t")(columns, 0, len(origins), [])
    assert [decode_message(frame).port for frame in frames] == [*range(count), *range(count)]


def test_what_is_used_is_not_held() -> None:
    decoder = Decoder()
    decoder.feed(typed.encode_identity("C1") + typed.encode_subscribe(b"t", True) + b"\0" * 1_000 + b"u")
    assert decoder.held == 1_065
    assert decoded(decoder, [b""])[1] is None
    assert decoder.held == 1
