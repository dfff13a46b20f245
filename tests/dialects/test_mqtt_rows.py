"""Long rows of MQTT packets: whatever stands among them, they are the packets that one at a time would be."""

import pytest

from dialects.packets import plain
from smbroker.dialects.mqtt import Decoder
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
