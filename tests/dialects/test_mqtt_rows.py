"""Long rows of MQTT packets: whatever stands among them, they are the packets that one at a time would be."""

import pytest

from dialects.packets import plain
from smbroker.dialects.mqtt import Decoder, Mixed, One, Run
from smbroker.dialects.mqtt import fields as f
from smbroker.dialects.mqtt.packets import Ack, Publish
from smbroker.dialects.mqtt.reasons import Malformed

ROW = 120
ODD = {
    "another topic": Publish(b"a/c", b"....", 1, packet_id=7),
    "another length": Publish(b"a/b", b".....", 1, packet_id=7),
    "sent again": Publish(b"a/b", b"....", 1, dup=True, packet_id=7),
    "QoS 0": Publish(b"a/b", b"......"),
    "an acknowledgement": Ack(f.PUBACK, 9),
    "retained": Publish(b"a/b", b"....", 1, retain=True, packet_id=7),
    "a property": Publish(b"a/b", b"....", 1, packet_id=7, properties={f.PAYLOAD_FORMAT: 1}),
}


def packet(kind: str, number: int) -> Publish | Ack:
    if kind == "acks":
        return Ack(f.PUBACK, number)
    return (
        Publish(b"a/b", b"%06d" % number) if kind == "plain" else Publish(b"a/b", b"%04d" % number, 1, packet_id=number)
    )


def row(kind: str, version: int, count: int = ROW) -> list[bytes]:
    return [packet(kind, number + 1).encode(version) for number in range(count)]


@pytest.mark.parametrize("version", [4, 5])
@pytest.mark.parametrize("odd", ODD)
@pytest.mark.parametrize("kind", ["plain", "numbered", "acks"])
def test_a_row_with_an_odd_one_in_it(version: int, odd: str, kind: str) -> None:
    packets = row(kind, version)
    stranger = ODD[odd]
    for at in range(0, ROW + 1, 7):
        mixed = [*packets[:at], stranger.encode(version), *packets[at:]]
        singly = [found for one in mixed for found in plain(Decoder(1_000, version).feed(one))]
        assert plain(Decoder(1_000, version).feed(b"".join(mixed))) == singly
        assert len(singly) == ROW + 1


@pytest.mark.parametrize("version", [4, 5])
@pytest.mark.parametrize(("kind", "where"), [("numbered", 7), ("acks", 2)])  # where the identifier is
def test_an_identifier_of_zero_ends_the_row_it_stands_in(version: int, kind: str, where: int) -> None:
    packets = row(kind, version)
    for at in range(0, ROW, 13):
        broken = packets[at][:where] + b"\0\0" + packets[at][where + 2 :]
        with pytest.raises(Malformed) as caught:
            Decoder(1_000, version).feed(b"".join([*packets[:at], broken, *packets[at + 1 :]]))
        before = [found for one in packets[:at] for found in plain(Decoder(1_000, version).feed(one))]
        assert plain(caught.value.items) == before


@pytest.mark.parametrize("version", [4, 5])
def test_a_row_cut_anywhere(version: int) -> None:
    data = b"".join(row("numbered", version, 40))
    whole = plain(Decoder(1_000, version).feed(data))
    for cut in range(len(data)):
        decoder = Decoder(1_000, version)
        assert plain(decoder.feed(data[:cut])) + plain(decoder.feed(data[cut:])) == whole


@pytest.mark.parametrize("version", [4, 5])
def test_short_publishes_of_changing_topics_are_gathered(version: int) -> None:
    """Rows, long ones, an empty payload, a property and what is not whole stand among them."""
    sent = [Publish(b"t/%d" % (number % 7), b"%d" % number) for number in range(100)]
    sent[20] = Publish(b"t/6", b"x" * 200)
    sent[30] = Publish(b"t/1")
    sent[40:40] = [Publish(b"row", b"%d" % number) for number in range(10, 40)]
    sent[90] = Publish(b"t/1", b"1", properties={f.PAYLOAD_FORMAT: 1} if version == 5 else {})
    wires = [packet.encode(version) for packet in sent]
    data = b"".join(wires)
    whole = Decoder(1_000, version).feed(data)
    assert plain(whole) == sent
    assert sum(isinstance(item, Mixed) for item in whole) < 10
    assert next(len(item.payloads) for item in whole if isinstance(item, Run) and item.topic == b"row") >= 29
    for cut in range(0, len(data), 5):
        decoder = Decoder(1_000, version)
        assert plain(decoder.feed(data[:cut])) + plain(decoder.feed(data[cut:])) == sent
    few = Decoder(1_000, version, most=10)
    found = plain(few.feed(data))
    while few.more:
        some = plain(few.feed(b""))
        assert len(some) <= 40
        found += some
    assert found == sent


@pytest.mark.parametrize("version", [4, 5])
def test_a_bad_topic_among_changing_ones_is_told_after_those_before_it(version: int) -> None:
    sent = [Publish(b"t/%d" % number, b"1") for number in range(20)]
    data = b"".join(packet.encode(version) for packet in [*sent, Publish(b"a/+", b"1"), *sent])
    with pytest.raises(Malformed) as caught:
        Decoder(1_000, version).feed(data)
    assert plain(caught.value.items) == sent


@pytest.mark.parametrize("version", [3, 4, 5])
def test_a_read_that_is_one_plain_publish_tells_what_another_like_it_is(version: int) -> None:
    first, second = (Publish(b"a/b", payload).encode(version) for payload in (b"0\xff", b"12"))
    decoder = Decoder(1_000, version)
    assert plain(decoder.feed(first)) == [Publish(b"a/b", b"0\xff")]
    assert decoder.again == One(first[:-2], len(first), b"a/b", max(version, 4))
    decoder.feed(second + second)
    assert decoder.again is None, "two of them"
    for cut in range(1, len(first)):
        decoder.feed(first)
        decoder.feed(second[:cut])
        assert decoder.again is None, "something is left"
        decoder.feed(second[cut:])
        decoder.feed(first[:cut])
        assert decoder.again is None, "something is left"
        decoder.feed(first[cut:])
        assert not decoder.held
    for odd in ODD.values():
        if odd != ODD["QoS 0"]:
            decoder.feed(odd.encode(version))
            assert decoder.again is None, odd
    for broken in (b"\x30\x01\0", b"\x30\x05\0\x03a/+"):
        decoder.feed(first)
        with pytest.raises(Malformed):
            decoder.feed(broken)
        assert decoder.again is None
