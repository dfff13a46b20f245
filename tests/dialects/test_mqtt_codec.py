"""The MQTT codec: every packet there and back, malformed forms of every field, runs of plain publishes."""

import re
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dialects.packets import plain
from dialects.streams import cut, one_by_one
from dialects.wire import Case, cases
from smbroker.dialects.mqtt import (
    Acks,
    Decoder,
    Malformed,
    Mixed,
    Numbered,
    Run,
    decode_filter,
    framer_of,
    to_pairs,
    to_properties,
)
from smbroker.dialects.mqtt import fields as f
from smbroker.dialects.mqtt.packets import (
    Ack,
    Auth,
    Connack,
    Connect,
    Disconnect,
    Packet,
    Ping,
    Publish,
    Results,
    Subscribe,
    Topics,
    Unsubscribe,
    Will,
)
from smbroker.model.errors import Unfit
from smbroker.model.filter import ANY, REST
from smbroker.model.message import Columns, Dialect, Extra, Kind, Origin, Wire
from smbroker.model.moments import as_seconds, as_text

HERE = Origin(Dialect.MQTT, "10.0.0.1", 1)
LIMIT = 1 << 20


def raw(text: str) -> bytes:
    parts = re.findall(r"'[^']*'|[0-9a-f]{2}", text)
    return b"".join(part[1:-1].encode() if part[0] == "'" else bytes.fromhex(part) for part in parts)


def decoded(pieces: list[bytes], version: int) -> list[Packet]:
    decoder = Decoder(LIMIT, version)
    found = [item for piece in pieces for item in decoder.feed(piece)]
    assert decoder.held == 0
    return plain(found)


def feed_all(decoder: Decoder, pieces: list[bytes]) -> None:
    for piece in pieces:
        decoder.feed(piece)


@pytest.mark.parametrize("case", cases("mqtt", "bad"), ids=lambda case: case.name)
def test_a_malformed_packet_is_told_by_its_reason(case: Case) -> None:
    data = raw(case.data["bytes"])
    for pieces in ([data], one_by_one(data), [data + b"\xc0\x00"]):
        decoder = Decoder(LIMIT, case.data["version"])
        with pytest.raises(Malformed) as caught:
            feed_all(decoder, pieces)
        assert caught.value.reason == case.data["reason"]


strings = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=10)
names = strings.filter(lambda text: text and not set("+#") & set(text)).map(str.encode)
ids = st.integers(1, 65_535)
u32s = st.integers(0, 2**32 - 1)
VALUES: dict[str, st.SearchStrategy[Any]] = {
    "flag": st.integers(0, 1),
    "two": ids,
    "four": st.integers(1, 2**32 - 1),
    "length": st.integers(1, f.MAX_LENGTH),
    "string": names.map(bytes.decode),
    "binary": st.binary(max_size=10),
    "pair": st.tuples(strings, strings),
}
MANY = {f.USER, f.SUBSCRIPTION_ID}


def properties(kind: int) -> st.SearchStrategy[f.Properties]:
    def value(identifier: int, form: str) -> st.SearchStrategy[Any]:
        several = identifier == f.USER or (identifier == f.SUBSCRIPTION_ID and kind == f.PUBLISH)
        return st.lists(VALUES[form], min_size=1, max_size=3) if several else VALUES[form]

    optional = {
        identifier: value(identifier, form)
        for identifier, (form, kinds) in f.TABLE.items()
        if kind in kinds and identifier not in (f.PAYLOAD_FORMAT, f.AUTHENTICATION_DATA)
    }
    return st.fixed_dictionaries({}, optional=optional)


def packets(version: int) -> st.SearchStrategy[Packet]:
    def some(kind: int) -> st.SearchStrategy[f.Properties]:
        return properties(kind) if version == 5 else st.just({})

    filters = strings.filter(bool).map(str.encode)
    five = st.booleans() if version == 5 else st.just(False)
    entries = st.builds(Topics, filters, st.integers(0, 2), five, five, st.integers(0, 2 if version == 5 else 0))
    payloads = st.binary(max_size=300)
    acks = st.sampled_from([f.PUBACK, f.PUBREC, f.PUBREL, f.PUBCOMP])
    choices: list[st.SearchStrategy[Packet]] = [
        st.builds(Connack, st.booleans(), st.integers(0, 5), some(f.CONNACK)),
        st.builds(Publish, names, payloads, st.just(0), st.booleans(), st.just(False), st.just(0), some(f.PUBLISH)),
        st.builds(Publish, names, payloads, st.integers(1, 2), st.booleans(), st.booleans(), ids, some(f.PUBLISH)),
        acks.flatmap(lambda kind: st.builds(Ack, st.just(kind), ids, st.just(0), some(kind))),
        st.builds(Subscribe, ids, st.lists(entries, min_size=1, max_size=4), some(f.SUBSCRIBE)),
        st.builds(Unsubscribe, ids, st.lists(filters, min_size=1, max_size=4), some(f.UNSUBSCRIBE)),
        st.builds(Results, st.just(f.SUBACK), ids, st.lists(st.integers(0, 2), max_size=4), some(f.SUBACK)),
        st.sampled_from([Ping(f.PINGREQ), Ping(f.PINGRESP)]),
        st.builds(Disconnect, st.just(0), some(f.DISCONNECT)),
    ]
    if version == 5:
        choices.append(st.builds(Auth, st.sampled_from([0, 0x18, 0x19]), some(f.AUTH)))
        choices.append(st.builds(Ack, st.just(f.PUBREC), ids, st.sampled_from([0x10, 0x80, 0x97])))
    return st.one_of(choices)


@pytest.mark.parametrize("version", [4, 5])
@given(data=st.data())
def test_every_packet_comes_back_as_it_was(version: int, data: st.DataObject) -> None:
    wanted = data.draw(st.lists(packets(version), max_size=5))
    stream = b"".join(packet.encode(version) for packet in wanted)
    places = data.draw(st.lists(st.integers(0, 10_000), max_size=5))
    assert decoded([stream], version) == wanted
    assert decoded(cut(stream, places), version) == wanted


@given(
    version=st.sampled_from([3, 4, 5]),
    client=strings,
    clean=st.booleans(),
    keep=st.integers(0, 65_535),
    will=st.none() | st.builds(Will, names, st.binary(max_size=20), st.integers(0, 2), st.booleans()),
    user=st.none() | strings,
    password=st.none() | st.binary(max_size=10),
    data=st.data(),
)
def test_connect_comes_back_as_it_was(
    version: int,
    client: str,
    clean: bool,
    keep: int,
    will: Will | None,
    user: str | None,
    password: bytes | None,
    data: st.DataObject,
) -> None:
    if version < 5 and user is None:
        password = None
    packet = Connect(version, client, clean, keep, will, user, password)
    if version == 5:
        packet.properties = data.draw(properties(f.CONNECT))
        if will:
            will.properties = data.draw(properties(f.WILL))
    decoder = Decoder(LIMIT)
    assert decoder.feed(packet.encode()) == [packet]
    assert decoder.version == version


@given(st.sampled_from([0, 4, 5]), st.binary(max_size=200), st.lists(st.integers(0, 200), max_size=3))
def test_any_bytes_give_packets_or_an_error(version: int, data: bytes, places: list[int]) -> None:
    decoder = Decoder(LIMIT, version)
    try:
        for piece in cut(data, places):
            decoder.feed(piece)
    except Malformed:
        pass
    assert decoder.held <= len(data)


@pytest.mark.parametrize("version", [4, 5])
def test_plain_publishes_of_one_topic_are_one_run(version: int) -> None:
    frames = [Publish(b"a/b", b"%d" % number).encode(version) for number in range(5)]
    items = Decoder(LIMIT, version).feed(b"".join(frames) + frames[0][:3])
    assert items == [Run(b"a/b", 5, 1, b"".join(frames), version)]
    assert items[0].payloads == [b"0", b"1", b"2", b"3", b"4"]


def test_a_run_ends_where_topic_length_or_flags_change() -> None:
    wanted = [Publish(b"a", b"1"), Publish(b"b", b"2"), Publish(b"b", b"33"), Publish(b"b", b"4", retain=True)]
    items = Decoder(LIMIT, 4).feed(b"".join(packet.encode(4) for packet in wanted))
    assert [type(item) for item in items] == [Mixed, Publish]
    assert plain(items) == wanted


@pytest.mark.parametrize("version", [4, 5])
def test_publishes_with_qos_1_and_their_acks_come_in_rows(version: int) -> None:
    wanted = [Publish(b"a/b", b"%d" % number, 1, packet_id=number + 255) for number in range(5)]
    acks = [Ack(f.PUBACK, number + 255) for number in range(5)]
    items = Decoder(LIMIT, version).feed(b"".join(packet.encode(version) for packet in (*wanted, *acks)))
    assert [type(item) for item in items] == [Numbered, Acks]
    assert plain(items) == [*wanted, *acks]


@pytest.mark.parametrize("version", [4, 5])
@pytest.mark.parametrize("numbers", [range(65_526, 65_536), (*range(65_531, 65_536), *range(1, 6)), (5, 4, 4, 9)])
def test_identifiers_of_a_row_may_be_in_any_order(version: int, numbers: Sequence[int]) -> None:
    wanted = [Publish(b"a/b", b"x", 1, packet_id=number) for number in numbers]
    acks = [Ack(f.PUBACK, number) for number in numbers]
    items = Decoder(LIMIT, version).feed(b"".join(packet.encode(version) for packet in (*wanted, *acks)))
    assert [type(item) for item in items] == [Numbered, Acks]
    assert plain(items) == [*wanted, *acks]
    assert items[0].acks == b"".join(ack.encode(version) for ack in acks)


@pytest.mark.parametrize("row", [[Publish(b"a/b", b"x", 1, packet_id=one) for one in (1, 2)], [Ack(f.PUBACK, 1)] * 2])
def test_a_row_ends_before_an_identifier_that_is_0(row: list[Any]) -> None:
    bad = replace(row[0], packet_id=0)
    with pytest.raises(Malformed) as caught:
        Decoder(LIMIT, 4).feed(b"".join(packet.encode(4) for packet in (*row, bad)))
    assert plain(caught.value.items) == row


def test_a_row_ends_before_a_packet_with_properties() -> None:
    """Though it has the same length and beginning."""
    wanted = []
    for number in range(1, 100):
        about = {f.PAYLOAD_FORMAT: 0} if number in (1, 40, 41, 99) else {}
        wanted.append(Publish(b"a/b", b"x" if about else b"xyz", 1, packet_id=number, properties=about))
    items = Decoder(LIMIT, 5).feed(b"".join(packet.encode(5) for packet in wanted))
    assert len({len(packet.encode(5)) for packet in wanted}) == 1
    assert [type(item) for item in items] == [Publish, Numbered, Publish, Publish, Numbered, Publish]
    assert plain(items) == wanted


def test_very_many_packets_are_decoded_in_several_calls() -> None:
    wanted = [Publish(b"%d" % number, b"x", 1, packet_id=1) for number in range(2_500)]
    decoder = Decoder(LIMIT, 4, most=1_000)
    first = decoder.feed(b"".join(packet.encode(4) for packet in wanted) + b"\x32")
    assert len(first) == 1_000
    found = first + decoder.feed(b"") + decoder.feed(b"")
    assert plain(found) == wanted
    assert decoder.feed(wanted[0].encode(4)[1:]) == decoder.feed(wanted[0].encode(4))


def test_what_came_before_a_fault_is_told() -> None:
    with pytest.raises(Malformed) as caught:
        Decoder(LIMIT, 4).feed(Publish(b"a", b"1").encode(4) + b"\x00\x00")
    assert plain(caught.value.items) == [Publish(b"a", b"1")]


def test_a_packet_that_is_too_long_is_refused_before_it_has_arrived() -> None:
    decoder = Decoder(100, 4)
    with pytest.raises(Malformed) as caught:
        decoder.feed(b"\x30\x65")
    assert caught.value.reason == 0x95


def test_so_are_too_many_properties() -> None:
    packet = Publish(b"t", b"", properties={f.USER: [("a", "b")] * 5_000})
    with pytest.raises(Malformed) as caught:
        Decoder(LIMIT, 5).feed(packet.encode(5))
    assert caught.value.code == "mqtt_too_many_properties"


@pytest.mark.parametrize(
    ("text", "group", "levels"),
    [
        (b"a/b", "", (b"a", b"b")),
        (b"+/b/#", "", (ANY, b"b", REST)),
        (b"/", "", (b"", b"")),
        (b"$share/g/a/+", "g", (b"a", ANY)),
        (b"$SYS/#", "", (b"$SYS", REST)),
    ],
)
def test_filters(text: bytes, group: str, levels: object) -> None:
    assert decode_filter(text) == (group, levels)


@pytest.mark.parametrize(
    "text",
    [b"", b"a/#/b", b"a#", b"a+/b", b"$share/g", b"$share//a", b"$share/g/", b"$share/+/a", b"/".join([b"x"] * 201)],
)
def test_filters_that_are_none(text: bytes) -> None:
    with pytest.raises(Malformed) as caught:
        decode_filter(text)
    assert caught.value.reason == (0x82 if text.startswith(b"$share") else 0x8F)


def columns(payload: bytes, extra: Extra | None = None, received: int = 0) -> Columns:
    return Columns(received, [b"t"], [payload], [Kind.BYTES], [HERE], {0: extra} if extra else {})


@pytest.mark.parametrize("version", [4, 5])
@given(payload=st.binary(max_size=200))
def test_a_subscriber_gets_a_plain_publish(version: int, payload: bytes) -> None:
    unfit: list[str] = []
    (frame,) = framer_of(version)(b"t")(columns(payload), 0, 1, unfit)
    assert frame == Publish(b"t", payload).encode(version)
    assert unfit == []


def test_bytes_of_the_same_version_are_passed_on() -> None:
    sent = columns(b"1")
    sent.wires.append(Wire(0, 1, 5, b"as it came", 1))
    assert framer_of(5)(b"t")(sent, 0, 1, []) == [b"as it came"]
    assert framer_of(4)(b"t")(sent, 0, 1, []) == [Publish(b"t", b"1").encode(4)]


def test_what_has_expired_is_not_delivered() -> None:
    extra = Extra(properties=to_pairs({f.MESSAGE_EXPIRY: 10}, 1000.0))
    for version in (4, 5):
        unfit: list[str] = []
        assert framer_of(version)(b"t")(columns(b"x", extra, 1_010_000_000), 0, 1, unfit) == []
        assert unfit == ["expired"]
    (frame,) = framer_of(5)(b"t")(columns(b"x", extra, 1_004_000_000), 0, 1, [])
    assert decoded([frame], 5) == [Publish(b"t", b"x", properties={f.MESSAGE_EXPIRY: 6})]


@pytest.mark.parametrize("topic", [b"a/+", b"a/#", b"a#b"])
def test_topics_with_wildcard_characters_do_not_fit(topic: bytes) -> None:
    with pytest.raises(Unfit):
        framer_of(5)(topic)


@given(properties(f.PUBLISH))
def test_properties_of_a_message_come_through_the_log(wanted: f.Properties) -> None:
    carried = {
        key: value for key, value in wanted.items() if key not in (f.SUBSCRIPTION_ID, f.TOPIC_ALIAS, f.PAYLOAD_FORMAT)
    }
    expiry = carried.get(f.MESSAGE_EXPIRY)
    if expiry is not None:
        carried[f.MESSAGE_EXPIRY] = expiry % 1_000_000 + 1
    assert to_properties(to_pairs(carried, 1e9), 1e9) == carried


@given(st.floats(0, 2.5e11))
def test_moments_are_those_of_the_calendar(seconds: float) -> None:
    text = as_text(seconds)
    assert datetime.fromisoformat(text).timestamp() == pytest.approx(seconds, abs=0.002)
    assert as_seconds(text) == pytest.approx(seconds, abs=0.002)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("1970-01-02", None),
        ("1970-01-02T00:00", 86_400.0),
        ("1970-01-02T00:00:01.5Z", 86_401.5),
        ("1970-01-02 02:00:00+02:00", 86_400.0),
        ("1970-01-01T22:30-0130", 86_400.0),
        ("soon", None),
    ],
)
def test_moments_are_read_in_the_usual_forms(text: str, seconds: float | None) -> None:
    assert as_seconds(text) == seconds


@pytest.mark.parametrize(
    "pair", [("$correlation-data", "x"), ("$correlation-data", "ä"), ("k" * 65_536, "v"), ("k", "v" * 65_536)]
)
def test_properties_that_cannot_be_said_are_left_out(pair: tuple[str, str]) -> None:
    """They may be in a log."""
    assert to_properties((pair, ("k", "v")), 0.0) == {f.USER: [("k", "v")]}
