"""Every MQTT packet in every state of a connection."""

from collections.abc import Callable, Iterator

import pytest

from flow.house import Broker
from flow.mqtt import VERSIONS, Mqtt, topic
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
)

NUMBER = 7  # the packet identifier of what the client sends
PACKETS: dict[str, Packet] = {
    "CONNECT": Connect(4, "again"),
    "CONNACK": Connack(),
    "PUBLISH 0": Publish(b"states", b"x"),
    "PUBLISH 1": Publish(b"states", b"x", 1, packet_id=NUMBER),
    "PUBLISH 2": Publish(b"states", b"x", 2, packet_id=NUMBER),
    "PUBACK": Ack(f.PUBACK, NUMBER),
    "PUBREC": Ack(f.PUBREC, NUMBER),
    "PUBREL": Ack(f.PUBREL, NUMBER),
    "PUBCOMP": Ack(f.PUBCOMP, NUMBER),
    "SUBSCRIBE": Subscribe(NUMBER, [Topics(b"elsewhere", 1)]),
    "SUBACK": Results(f.SUBACK, NUMBER, [0]),
    "UNSUBSCRIBE": Unsubscribe(NUMBER, [b"elsewhere"]),
    "UNSUBACK": Results(f.UNSUBACK, NUMBER, [0]),
    "PINGREQ": Ping(f.PINGREQ),
    "PINGRESP": Ping(f.PINGRESP),
    "DISCONNECT": Disconnect(),
    "AUTH": Auth(0x18),
}
CASES = [(version, name) for version in VERSIONS for name in PACKETS]
ENDS = "ends"  # the connection, with a protocol error
LEAVES = "leaves"
UNKNOWN = 0x92

# What comes back from a connection that has nothing under way; the identifier that is not known is told in MQTT 5.
ANSWERS: dict[str, Packet | str | None] = {
    "CONNECT": ENDS,
    "CONNACK": ENDS,
    "PUBLISH 0": None,
    "PUBLISH 1": Ack(f.PUBACK, NUMBER),
    "PUBLISH 2": Ack(f.PUBREC, NUMBER),
    "PUBACK": None,
    "PUBREC": Ack(f.PUBREL, NUMBER, UNKNOWN),
    "PUBREL": Ack(f.PUBCOMP, NUMBER, UNKNOWN),
    "PUBCOMP": None,
    "SUBSCRIBE": Results(f.SUBACK, NUMBER, [1]),
    "SUBACK": ENDS,
    "UNSUBSCRIBE": Results(f.UNSUBACK, NUMBER, [0x11]),
    "UNSUBACK": ENDS,
    "PINGREQ": Ping(f.PINGRESP),
    "PINGRESP": ENDS,
    "DISCONNECT": LEAVES,
    "AUTH": ENDS,
}


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker(kinds=("mqtt",)) as broker:
        yield broker


def expect(client: Mqtt, answer: Packet | str | None) -> None:
    if answer == LEAVES:
        assert client.closed()
    elif answer == ENDS:
        assert client.ended(0x82)
    else:
        if answer is not None:
            if isinstance(answer, Ack) and client.version < 5:
                answer = Ack(answer.kind, answer.packet_id)
            if isinstance(answer, Results) and client.version < 5 and answer.kind == f.UNSUBACK:
                answer = Results(answer.kind, answer.packet_id, [])
            assert client.next() == answer
        assert client.quiet()


def raw(name: str, version: int) -> bytes:
    packet = PACKETS[name]
    return Connect(version, "again").encode() if name == "CONNECT" else packet.encode(version)


@pytest.mark.parametrize(("version", "name"), [case for case in CASES if case[1] != "CONNECT"])
def test_before_connect(broker: Broker, version: int, name: str) -> None:
    """ "the first Packet sent from the Client to the Server MUST be a CONNECT Packet" [MQTT-3.1.0-1]"""
    client = Mqtt(broker, version=version, connect=False)
    client.tcp.send(raw(name, version))
    assert client.closed()


@pytest.mark.parametrize(("version", "name"), CASES)
def test_connected(broker: Broker, version: int, name: str) -> None:
    client = Mqtt(broker, version=version)
    client.tcp.send(raw(name, version))
    expect(client, ANSWERS[name] if (version, name) != (4, "AUTH") else LEAVES)


@pytest.mark.parametrize(("version", "name"), CASES)
def test_after_disconnect(broker: Broker, version: int, name: str) -> None:
    """ "MUST NOT send any more … Packets" [MQTT-3.14.4-2]: what comes all the same is not looked at."""
    watcher, client = Mqtt(broker), Mqtt(broker, version=version)
    watcher.subscribe("states")
    client.tcp.send(Disconnect().encode(version) + raw(name, version))
    assert client.closed()
    assert watcher.quiet()


def with_qos_1_in_flight(client: Mqtt, other: Mqtt) -> int:
    name = topic()
    client.subscribe(name, qos=1)
    other.publish(name, b"x", 1)
    number: int = client.expect(Publish).packet_id
    return number


def with_qos_2_in_flight(client: Mqtt, other: Mqtt) -> int:
    name = topic()
    client.subscribe(name, qos=2)
    other.publish(name, b"x", 2)
    number: int = client.expect(Publish).packet_id
    return number


def with_qos_2_released(client: Mqtt, other: Mqtt) -> int:
    number = with_qos_2_in_flight(client, other)
    client.send(Ack(f.PUBREC, number))
    assert client.expect(Ack) == Ack(f.PUBREL, number)
    return number


STATES: dict[str, tuple[Callable[[Mqtt, Mqtt], int], dict[int, int | str | None]]] = {
    # what an acknowledgement of that message leads to: the next one, nothing, or the end
    "QoS 1 in flight": (with_qos_1_in_flight, {f.PUBACK: None, f.PUBREC: ENDS, f.PUBCOMP: ENDS}),
    "QoS 2 in flight": (with_qos_2_in_flight, {f.PUBACK: ENDS, f.PUBREC: f.PUBREL, f.PUBCOMP: ENDS}),
    "QoS 2 released": (with_qos_2_released, {f.PUBACK: ENDS, f.PUBREC: f.PUBREL, f.PUBCOMP: None}),
}
ACKS = [(version, state, kind) for version in VERSIONS for state, (_, acks) in STATES.items() for kind in acks]


@pytest.mark.parametrize(("version", "state", "kind"), ACKS)
def test_acknowledgements_of_what_is_in_flight(broker: Broker, version: int, state: str, kind: int) -> None:
    begin, answers = STATES[state]
    client, other = Mqtt(broker, version=version), Mqtt(broker)
    number = begin(client, other)
    client.send(Ack(kind, number))
    answer = answers[kind]
    expect(client, Ack(answer, number) if isinstance(answer, int) else answer)


@pytest.mark.parametrize(
    ("version", "name"), [case for case in CASES if case[1] not in ("PUBACK", "PUBREC", "PUBCOMP")]
)
@pytest.mark.parametrize("state", STATES)
def test_other_packets_while_something_is_in_flight(broker: Broker, version: int, state: str, name: str) -> None:
    client = Mqtt(broker, version=version)
    STATES[state][0](client, Mqtt(broker))
    client.tcp.send(raw(name, version))
    expect(client, ANSWERS[name] if (version, name) != (4, "AUTH") else LEAVES)


OPEN = {  # the client has begun a message of QoS 2
    "PUBLISH 2": Ack(f.PUBREC, NUMBER),
    "PUBREL": Ack(f.PUBCOMP, NUMBER),
    "PUBACK": None,
    "PUBREC": Ack(f.PUBREL, NUMBER, UNKNOWN),
    "PUBCOMP": None,
    "PINGREQ": Ping(f.PINGRESP),
    "SUBSCRIBE": Results(f.SUBACK, NUMBER, [1]),
}


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("name", OPEN)
def test_while_a_message_of_the_client_is_not_released(broker: Broker, version: int, name: str) -> None:
    """Each side has identifiers of its own."""
    client = Mqtt(broker, version=version)
    client.send(Publish(b"states", b"x", 2, packet_id=NUMBER))
    assert client.expect(Ack) == Ack(f.PUBREC, NUMBER)
    client.tcp.send(raw(name, version))
    expect(client, OPEN[name])


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("first", [0x00, 0x01, 0x0F], ids=hex)
def test_there_is_no_packet_of_type_0(broker: Broker, version: int, first: int) -> None:
    client = Mqtt(broker, version=version)
    client.tcp.send(bytes((first, 0)))
    assert client.ended(0x82)
