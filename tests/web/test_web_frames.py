"""WebSocket frames: what they carry, however they are cut; and what is not one."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dialects.streams import cut, one_by_one
from smbroker.web.frames import Decoder, encode_binary
from web.websocket import BINARY, CLOSE, CONTINUED, PING, PONG, TEXT, frame

messages = st.lists(st.binary(max_size=300) | st.sampled_from([b"x" * 126, b"y" * 65_535, b"z" * 65_536]), max_size=6)
places = st.lists(st.integers(0, 200_000), max_size=8)


def carried(pieces: list[bytes]) -> tuple[bytes, list[bytes]]:
    decoder, data, pings = Decoder(), b"", []
    for piece in pieces:
        fed = decoder.feed(piece)
        assert fed.end is None
        data += fed.data
        pings += fed.pings
    return data, pings


@settings(deadline=None)
@given(messages, places)
def test_what_frames_carry_comes_through_however_they_are_cut(payloads: list[bytes], at: list[int]) -> None:
    stream = b"".join(frame(BINARY, payload) for payload in payloads)
    assert carried([stream]) == (b"".join(payloads), [])
    assert carried(cut(stream, at)) == (b"".join(payloads), [])


@given(st.lists(st.binary(max_size=20), min_size=2, max_size=6), places)
def test_messages_of_many_frames_with_control_frames_in_between(payloads: list[bytes], at: list[int]) -> None:
    stream, opcode = b"", BINARY
    for number, payload in enumerate(payloads):
        stream += frame(opcode, payload, last=number == len(payloads) - 1)
        stream += frame(PING, b"%d" % number) + frame(PONG)
        opcode = CONTINUED
    wanted = b"".join(payloads), [b"%d" % number for number in range(len(payloads))]
    assert carried(cut(stream, at)) == wanted
    assert carried(one_by_one(stream)) == wanted


def test_a_long_frame_is_passed_on_before_it_is_all_there() -> None:
    decoder = Decoder()
    whole = frame(BINARY, b"a" * 100_000)
    assert decoder.feed(whole[:50_014]).data == b"a" * 50_000
    assert decoder.feed(whole[50_014:]).data == b"a" * 50_000


BAD = {
    "text": (frame(TEXT, b"x"), 1003),
    "no mask": (frame(BINARY, b"x", masked=False), 1002),
    "reserved bits": (frame(BINARY, b"x", bits=4), 1002),
    "reserved opcode": (frame(3, b"x"), 1002),
    "reserved control opcode": (frame(11), 1002),
    "continued without a beginning": (frame(CONTINUED, b"x"), 1002),
    "another beginning": (frame(BINARY, b"", last=False) + frame(BINARY), 1002),
    "a long control frame": (frame(PING, b"x" * 126), 1002),
    "a control frame in pieces": (frame(PING, b"x", last=False), 1002),
    "a length of two bytes that needs none": (b"\x82\xfe\x00\x01", 1002),
    "a length of eight bytes that needs two": (b"\x82\xff" + (65_535).to_bytes(8, "big"), 1002),
    "a length beyond all": (b"\x82\xff" + b"\xff" * 8, 1002),
    "half a reason": (frame(CLOSE, b"\x03"), 1002),
    "a wish to close": (frame(CLOSE), 1000),
    "a wish to close with a reason": (frame(CLOSE, b"\x03\xe9bye"), 1000),
}


@pytest.mark.parametrize("name", BAD)
def test_what_ends_the_connection(name: str) -> None:
    data, code = BAD[name]
    for pieces in ([data], one_by_one(data), [frame(BINARY, b"before") + data + frame(BINARY, b"after")]):
        decoder = Decoder()
        end = None
        for piece in pieces:
            fed = decoder.feed(piece)
            assert fed.data in (b"", b"before")
            end = fed.end
            if end:
                break
        assert end
        assert end.code == code


@given(st.binary(max_size=100), places)
def test_any_bytes_are_frames_or_an_end(data: bytes, at: list[int]) -> None:
    decoder = Decoder()
    for piece in cut(data, at):
        if decoder.feed(piece).end:
            break


def test_what_we_send_is_cut_so_that_clients_can_hold_it() -> None:
    sent = encode_binary(b"x" * 150_000)
    assert sent[:4] == b"\x82\x7f\x00\x00"
    assert len(sent) == 150_000 + 10 + 10 + 4
    assert encode_binary(b"y" * 126) == b"\x82\x7e\x00\x7e" + b"y" * 126
