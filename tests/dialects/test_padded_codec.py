import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from dialects.streams import check_stream, cut, decoded, one_by_one
from dialects.wire import Case, cases, check_encode, check_frame, shown
from smbroker.dialects import padded
from smbroker.dialects.padded import ClientDecoder, Decoder, Due, KeepAlive, Message
from smbroker.model.commands import Alive, Command
from smbroker.model.message import Columns, Dialect, Kind, Origin

MAX_PAYLOAD = 1_000

words = st.sampled_from([b"Publish", b"Subscribe", b"Message", b"Ping", b"PONG", b"disconnect", b"PubAck", b"what"])
numbers = st.sampled_from([b"0", b"1", b"2", b"7", b"64", b"300", b"-1", b"x"])
no_text = st.lists(st.sampled_from([b"a", b" ", b"\0", b"\xff", b"\xc3", b"\xf0"]), max_size=8).map(b"".join)
texts = st.text(min_size=1, max_size=40)
places = st.lists(st.integers(0, 5_000), max_size=6)


def padded_fields(*contents: st.SearchStrategy[bytes]) -> st.SearchStrategy[bytes]:
    return st.tuples(*contents).map(lambda fields: b"".join(field.ljust(64) for field in fields))


def streams(anything: st.SearchStrategy[bytes]) -> st.SearchStrategy[bytes]:
    """Commands and what is nearly one, with anything in between."""
    titles = anything.map(lambda title: title[:64])
    publish = padded_fields(st.just(b"Publish"), titles, numbers)
    subscribe = padded_fields(st.just(b"Subscribe"), titles)
    return st.lists(publish | subscribe | padded_fields(words) | anything, max_size=8).map(b"".join)


def decoder() -> Decoder:
    return Decoder(MAX_PAYLOAD)


def publish(title: bytes, length: int, message: bytes) -> bytes:
    return b"".join(field.ljust(64) for field in (b"Publish", title, b"%d" % length)) + message


@pytest.mark.parametrize("case", cases("padded", "stream"), ids=lambda case: case.name)
def test_stream(case: Case) -> None:
    check_stream(case, decoder, *cases("padded", "tail"))


@pytest.mark.parametrize("case", cases("padded", "client"), ids=lambda case: case.name)
def test_client_stream(case: Case) -> None:
    check_stream(case, ClientDecoder, *cases("padded", "client_tail"), show=repr)


@pytest.mark.parametrize("case", cases("padded", "frame"), ids=lambda case: case.name)
def test_frame(case: Case) -> None:
    check_frame(case, padded.framer)


@pytest.mark.parametrize("case", cases("padded", "encode"), ids=lambda case: case.name)
def test_encode(case: Case) -> None:
    check_encode(case, padded)


def test_a_frame_has_only_the_rows_asked_for() -> None:
    columns = Columns(0, [b"t"] * 4, [b"0", b"1", b"2", b"3"], [Kind.BYTES] * 4, [Origin(Dialect.PIPE)] * 4)
    frames = padded.framer(b"t")(columns, 1, 3, [])
    assert [frame[192:] for frame in frames] == [b"1", b"2"]


@given(streams(st.binary(max_size=100)), places)
def test_any_bytes_cut_anywhere_give_commands_or_an_error(data: bytes, places: list[int]) -> None:
    for one in (decoder(), ClientDecoder()):
        pieces = cut(data, places)
        _, error = decoded(one, pieces)
        assert error is not None or one.held < 200 + 2 * MAX_PAYLOAD


@given(streams(no_text), places)
def test_the_cuts_do_not_matter(data: bytes, places: list[int]) -> None:
    """Without multi-byte text, that is: the characters here are all incomplete."""
    whole = decoded(decoder(), [data])
    assert decoded(decoder(), cut(data, places)) == whole
    assert decoded(decoder(), one_by_one(data)) == whole


@given(streams(st.binary(max_size=100)), places)
def test_the_cuts_never_matter_to_clients(data: bytes, places: list[int]) -> None:
    assert decoded(ClientDecoder(), cut(data, places)) == decoded(ClientDecoder(), [data])


@given(texts, places)
def test_text_with_its_length_in_bytes_is_understood_when_alone(text: str, places: list[int]) -> None:
    """Our own clients wait for the PubAck: nothing follows, and the cuts do not matter."""
    message = text.encode()
    one = decoder()
    for data in (publish(b"t", len(message), message), b"Pong".ljust(64)):
        commands, error = decoded(one, cut(data, places))
        assert error is None
        assert commands == [(b"t", message, Kind.BYTES, padded.PUBACK)] or commands == [Alive()]


@given(texts, st.integers(0, 20))
def test_text_with_its_length_in_bytes_is_understood_when_more_is_glued_to_it(text: str, after: int) -> None:
    message = text.encode()
    missing = len(message) - len(text)
    assume(after == 0 or after != missing)  # cut there, the command's first letters could be the end of the text
    data = publish(b"t", len(message), message) + publish(b"t", 1, b"x")
    place = 192 + len(message) + after
    expected = [(b"t", message, Kind.BYTES, padded.PUBACK), (b"t", b"x", Kind.BYTES, padded.PUBACK)]
    assert decoded(decoder(), [data[:place], data[place:]]) == (expected, None)


@given(texts)
def test_text_with_its_length_in_characters_is_understood_when_it_comes_in_one_piece(text: str) -> None:
    message = text.encode()
    rest = message[len(text) :]
    assume(not rest or rest.strip(b" "))  # spaces and a known command: taken for spaces before the command
    publication = [(b"t", message, Kind.BYTES, padded.PUBACK)]
    data = publish(b"t", len(text), message)
    assert decoded(decoder(), [data]) == (publication, None)
    assert decoded(decoder(), [data + b"Pong".ljust(64)]) == ([*publication, Alive()], None)


@given(texts)
def test_what_a_client_encodes_the_broker_understands(text: str) -> None:
    commands, error = decoded(
        decoder(), [padded.encode_publish(b"a/b", text.encode()) + padded.encode_subscribe(b"a/b")]
    )
    assert error is None
    assert commands[0] == (b"a/b", text.encode(), Kind.BYTES, padded.PUBACK)
    assert shown(commands[1]).startswith("subscribe a/b reply 'SubAck")


@given(st.binary(max_size=100), places)
def test_what_the_broker_frames_a_client_understands(payload: bytes, places: list[int]) -> None:
    columns = Columns(0, [b"a/b"], [payload], [Kind.BYTES], [Origin(Dialect.PIPE)])
    [frame] = padded.framer(b"a/b")(columns, 0, 1, [])
    assert decoded(ClientDecoder(), cut(frame, places)) == ([Message(b"a/b", payload)], None)


def test_what_is_used_is_not_held() -> None:
    one = decoder()
    one.feed(publish(b"t", 500, b"x" * 500) + b"Po")
    assert one.held == 694
    commands: list[Command | None] = [one.next(), one.next()]
    assert commands[1] is None
    assert one.held == 2


def test_a_promised_length_reserves_nothing() -> None:
    one = Decoder(2**40)
    one.feed(publish(b"t", 2**40, b"x"))
    assert one.next() is None
    assert one.held == 1


def story(alive: KeepAlive, until: int) -> list[tuple[int, Due]]:
    """What falls due, second by second, to the given one."""
    return [(now, due) for now in range(until + 1) if now >= alive.deadline and (due := alive.due(now))]


def test_a_client_that_never_answers_is_given_up_after_40_seconds() -> None:
    assert story(KeepAlive(0), 40) == [
        (10, Due(ping=True)),
        (20, Due(ping=True, unanswered=1)),
        (30, Due(ping=True, unanswered=2)),
        (40, Due(unanswered=3, lost=True)),
    ]


def test_nothing_is_due_before_the_deadline() -> None:
    alive = KeepAlive(0)
    assert alive.deadline == 10
    assert alive.due(9.99) == Due(False, 0, False)
    assert alive.due(10) == Due(True, 0, False)
    assert alive.deadline == 20
    assert alive.due(10) == Due(False, 0, False)


def test_a_late_call_gives_the_client_its_whole_interval() -> None:
    alive = KeepAlive(0)
    assert alive.due(13) == Due(ping=True)
    assert alive.deadline == 23


def test_any_data_restarts_the_interval() -> None:
    alive = KeepAlive(0)
    alive.heard(7)
    assert alive.deadline == 17
    assert alive.due(10) == Due()


def test_a_pong_resets_the_count() -> None:
    alive = KeepAlive(0)
    alive.due(10)
    alive.due(20)
    alive.heard(21)
    alive.answered()
    assert [alive.due(now) for now in (31, 41, 51, 61)] == [
        Due(ping=True),
        Due(ping=True, unanswered=1),
        Due(ping=True, unanswered=2),
        Due(unanswered=3, lost=True),
    ]


def test_other_data_does_not_reset_the_count() -> None:
    alive = KeepAlive(0)
    alive.due(10)
    alive.heard(15)
    assert alive.due(25) == Due(ping=True, unanswered=1)


def test_interval_and_limit_can_be_set() -> None:
    alive = KeepAlive(100, interval=1, limit=1)
    assert alive.deadline == 101
    assert alive.due(101) == Due(ping=True)
    assert alive.due(102) == Due(unanswered=1, lost=True)
