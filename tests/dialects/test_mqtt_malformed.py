"""Malformed forms of every field of every MQTT packet, made from well-formed ones, in both versions."""

import pytest

from dialects.packets import plain
from smbroker.dialects.mqtt import Decoder, Malformed
from smbroker.dialects.mqtt import fields as f
from smbroker.dialects.mqtt.fields import encode_length, encode_properties
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

LIMIT = 1 << 20
MALFORMED, PROTOCOL_ERROR = 0x81, 0x82
ENTRIES = [Topics(b"a/+", 1), Topics(b"b/#", 2)]
WILL = Will(b"will", b"payload", 1, True)
PACKETS: dict[str, Packet] = {
    "CONNECT": Connect(5, "client", True, 60, WILL, "user", b"password"),
    "CONNACK": Connack(True, 0),
    "PUBLISH 0": Publish(b"a/b", b"payload"),
    "PUBLISH 1": Publish(b"a/b", b"payload", 1, packet_id=7),
    "PUBLISH 2": Publish(b"a/b", b"payload", 2, packet_id=7),
    "PUBACK": Ack(f.PUBACK, 7, 0x10),
    "PUBREC": Ack(f.PUBREC, 7, 0x10),
    "PUBREL": Ack(f.PUBREL, 7, 0x92),
    "PUBCOMP": Ack(f.PUBCOMP, 7, 0x92),
    "SUBSCRIBE": Subscribe(7, ENTRIES),
    "SUBACK": Results(f.SUBACK, 7, [0, 1]),
    "UNSUBSCRIBE": Unsubscribe(7, [b"a/+", b"b/#"]),
    "UNSUBACK": Results(f.UNSUBACK, 7, [0, 0x11]),
    "PINGREQ": Ping(f.PINGREQ),
    "PINGRESP": Ping(f.PINGRESP),
    "DISCONNECT": Disconnect(0x04),
    "AUTH": Auth(0x18),
}
VERSIONS = [4, 5]
NUMBERED = [name for name, packet in PACKETS.items() if getattr(packet, "packet_id", 0)]
KINDS: dict[str, int] = {
    "CONNECT": f.CONNECT,
    "CONNACK": f.CONNACK,
    "PUBLISH 1": f.PUBLISH,
    "PUBACK": f.PUBACK,
    "PUBREC": f.PUBREC,
    "PUBREL": f.PUBREL,
    "PUBCOMP": f.PUBCOMP,
    "SUBSCRIBE": f.SUBSCRIBE,
    "SUBACK": f.SUBACK,
    "UNSUBSCRIBE": f.UNSUBSCRIBE,
    "UNSUBACK": f.UNSUBACK,
    "DISCONNECT": f.DISCONNECT,
    "AUTH": f.AUTH,
    "WILL": f.WILL,
}
VALUES: dict[str, bytes] = {
    "flag": b"\x01",
    "two": b"\x00\x01",
    "four": b"\x00\x00\x00\x01",
    "length": b"\x01",
    "string": b"\x00\x01x",
    "binary": b"\x00\x01x",
    "pair": b"\x00\x01x\x00\x01y",
}


def encoded(name: str, version: int) -> bytes:
    packet = PACKETS[name]
    if isinstance(packet, Connect):
        return Connect(version, "client", True, 60, WILL, "user", b"password").encode()
    return packet.encode(version)


def body_of(data: bytes) -> bytes:
    """Of a packet shorter than 128 bytes."""
    assert data[1] == len(data) - 2
    return data[2:]


def framed(first: int, body: bytes) -> bytes:
    return bytes((first,)) + encode_length(len(body)) + body


def decode(data: bytes, version: int) -> list[Packet]:
    return plain(Decoder(LIMIT, 0 if data[0] == 0x10 else version).feed(data))


def reason_of(data: bytes, version: int) -> int:
    with pytest.raises(Malformed) as caught:
        decode(data, version)
    return caught.value.reason


def outcome(data: bytes, version: int) -> Packet | int:
    """The packet, or the reason why there is none."""
    try:
        (packet,) = decode(data, version)
    except Malformed as error:
        return error.reason
    return packet


def there(version: int) -> list[str]:
    return [name for name in PACKETS if version == 5 or name != "AUTH"]


CASES = [(version, name) for version in VERSIONS for name in there(version)]


@pytest.mark.parametrize(("version", "name"), CASES)
def test_the_packets_are_well_formed(version: int, name: str) -> None:
    assert len(decode(encoded(name, version), version)) == 1


@pytest.mark.parametrize(("version", "name"), [case for case in CASES if not case[1].startswith("PUBLISH")])
def test_reserved_flags_must_be_as_they_are_listed(version: int, name: str) -> None:
    data = encoded(name, version)
    for flags in range(16):
        if flags != data[0] & 15:
            other = bytes((data[0] & 0xF0 | flags,)) + data[1:]
            wanted = PROTOCOL_ERROR if name == "CONNECT" else MALFORMED  # not CONNECT, so not the first packet
            assert reason_of(other, 0 if name == "CONNECT" else version) == wanted


@pytest.mark.parametrize(("version", "name"), CASES)
def test_a_packet_that_ends_early_is_malformed_or_a_whole_shorter_one(version: int, name: str) -> None:
    data = encoded(name, version)
    body = body_of(data)
    for size in range(len(body)):
        packet = outcome(framed(data[0], body[:size]), version)
        if isinstance(packet, int):
            assert packet in (MALFORMED, PROTOCOL_ERROR)
        else:
            assert name not in ("CONNECT", "CONNACK"), "these have no shorter form"
            assert decode(packet.encode(version), version) == [packet]


ENDING = [case for case in CASES if "PUBLISH " not in case[1] and case[1] not in ("SUBACK", "UNSUBACK")]


@pytest.mark.parametrize(("version", "name"), ENDING)
def test_a_packet_that_goes_on_after_its_end_is_malformed(version: int, name: str) -> None:
    data = encoded(name, version)
    more = b"\x00" if "SUBSCRIBE" in name else b"\x00\x00"  # one alone may be an empty list of properties
    assert reason_of(framed(data[0], body_of(data) + more), version) == MALFORMED


@pytest.mark.parametrize(("version", "name"), [case for case in CASES if case[1] in NUMBERED])
def test_a_packet_identifier_is_not_0(version: int, name: str) -> None:
    data = encoded(name, version)
    at = data.index(b"\x00\x07")
    assert reason_of(data[:at] + b"\x00\x00" + data[at + 2 :], version) == PROTOCOL_ERROR


@pytest.mark.parametrize("reason", range(256))
def test_reasons_that_a_packet_does_not_have(reason: int) -> None:
    allowed = {
        f.PUBACK: {0x00, 0x10, 0x80, 0x83, 0x87, 0x90, 0x91, 0x97, 0x99},
        f.PUBREC: {0x00, 0x10, 0x80, 0x83, 0x87, 0x90, 0x91, 0x97, 0x99},
        f.PUBREL: {0x00, 0x92},
        f.PUBCOMP: {0x00, 0x92},
        f.AUTH: {0x00, 0x18, 0x19},
    }
    for kind, reasons in allowed.items():
        body = b"\x00\x07" if kind != f.AUTH else b""
        data = framed(kind << 4 | (2 if kind == f.PUBREL else 0), body + bytes((reason,)))
        if reason in reasons:
            assert len(decode(data, 5)) == 1
        else:
            assert reason_of(data, 5) == PROTOCOL_ERROR


# --- MQTT 5's properties ---


def with_properties(name: str, properties: bytes) -> bytes:
    """The packet with these bytes as its properties."""
    length = encode_length(len(properties)) + properties
    if name in ("CONNECT", "WILL"):
        flags = 0x06 if name == "WILL" else 0x02
        head = b"\x00\x04MQTT\x05" + bytes((flags,)) + b"\x00\x3c"
        rest = b"\x00\x00\x01c" if name == "WILL" else length + b"\x00\x01c"
        return framed(0x10, head + rest + (length + b"\x00\x01w\x00\x01p" if name == "WILL" else b""))
    bodies = {
        "CONNACK": b"\x00\x00" + length,
        "PUBLISH 1": b"\x00\x01t\x00\x07" + length,
        "SUBSCRIBE": b"\x00\x07" + length + b"\x00\x01t\x00",
        "UNSUBSCRIBE": b"\x00\x07" + length + b"\x00\x01t",
        "SUBACK": b"\x00\x07" + length + b"\x00",
        "UNSUBACK": b"\x00\x07" + length + b"\x00",
        "DISCONNECT": b"\x00" + length,
        "AUTH": b"\x18" + length,
    }
    kind = KINDS[name]
    flags = 2 if kind in (f.PUBREL, f.SUBSCRIBE, f.UNSUBSCRIBE, f.PUBLISH) else 0
    return framed(kind << 4 | flags, bodies.get(name, b"\x00\x07\x00" + length))


def one(identifier: int, value: bytes | None = None) -> bytes:
    return bytes((identifier,)) + (VALUES[f.TABLE[identifier][0]] if value is None else value)


PAIRS = [(name, identifier) for name in KINDS for identifier in f.TABLE]
MAY = [(name, identifier) for name, identifier in PAIRS if KINDS[name] in f.TABLE[identifier][1]]
MAY_NOT = [case for case in PAIRS if case not in MAY]


def companion(identifier: int) -> bytes:
    """What must be there too."""
    return one(f.AUTHENTICATION_METHOD) if identifier == f.AUTHENTICATION_DATA else b""


@pytest.mark.parametrize(("name", "identifier"), MAY)
def test_a_property_where_it_may_be(name: str, identifier: int) -> None:
    assert decode(with_properties(name, companion(identifier) + one(identifier)), 5)


@pytest.mark.parametrize(("name", "identifier"), MAY_NOT)
def test_a_property_where_it_may_not_be(name: str, identifier: int) -> None:
    assert reason_of(with_properties(name, one(identifier)), 5) == MALFORMED


@pytest.mark.parametrize(("name", "identifier"), MAY)
def test_a_property_that_is_there_twice(name: str, identifier: int) -> None:
    data = with_properties(name, companion(identifier) + one(identifier) * 2)
    if identifier == f.USER or (identifier, name) == (f.SUBSCRIPTION_ID, "PUBLISH 1"):
        assert decode(data, 5)
    else:
        assert reason_of(data, 5) == PROTOCOL_ERROR


@pytest.mark.parametrize(("name", "identifier"), MAY)
def test_a_property_that_ends_early(name: str, identifier: int) -> None:
    whole = one(identifier)
    for size in range(1, len(whole)):
        assert reason_of(with_properties(name, whole[:size]), 5) == MALFORMED


@pytest.mark.parametrize(("name", "identifier"), MAY)
def test_values_that_a_property_does_not_have(name: str, identifier: int) -> None:
    form = f.TABLE[identifier][0]
    bad: dict[str, list[tuple[bytes, int]]] = {
        "flag": [(b"\x02", PROTOCOL_ERROR), (b"\xff", PROTOCOL_ERROR)],
        "string": [(b"\x00\x01\xff", MALFORMED), (b"\x00\x01\x00", MALFORMED), (b"\x00\x03\xed\xa0\x80", MALFORMED)],
        "pair": [(b"\x00\x01\xff\x00\x00", MALFORMED), (b"\x00\x00\x00\x01\x00", MALFORMED)],
        "length": [(b"\xff\xff\xff\xff\x01", MALFORMED), (b"\x81\x00", MALFORMED)],
    }
    for value, reason in bad.get(form, []):
        assert reason_of(with_properties(name, one(identifier, value)), 5) == reason
    if identifier in (f.RECEIVE_MAXIMUM, f.MAXIMUM_PACKET_SIZE, f.SUBSCRIPTION_ID):
        zero = bytes(len(VALUES[form]))
        assert reason_of(with_properties(name, one(identifier, zero)), 5) == PROTOCOL_ERROR


@pytest.mark.parametrize("name", KINDS)
def test_properties_whose_length_is_wrong(name: str) -> None:
    data = with_properties(name, one(f.USER))
    at = data.rindex(encode_properties({f.USER: [("x", "y")]}))
    for length in (0, 1, len(one(f.USER)) - 1, 0x7F):
        wrong = data[:at] + bytes((length,)) + data[at + 1 :]
        found = outcome(wrong, 5)
        if isinstance(found, int):
            assert found in (MALFORMED, PROTOCOL_ERROR, 0x90)
        else:
            assert name in ("PUBLISH 1", "SUBACK", "UNSUBACK"), "it is then a payload, or a list of codes"


@pytest.mark.parametrize("identifier", [0, 4, 5, 6, 7, 10, 12, 16, 20, 27, 29, 30, 32, 43, 99, 127])
def test_identifiers_of_no_property(identifier: int) -> None:
    for name in KINDS:
        assert reason_of(with_properties(name, bytes((identifier, 0))), 5) == MALFORMED
