"""MQTT clients that misbehave: each is bounded, refused or ended, and the broker goes on serving the others."""

import os
import socket
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from secrets import token_hex

import pytest

from flow.house import Broker, wait_for
from flow.mqtt import VERSIONS, Mqtt, topic
from flow.wires import SmallTcp, config
from smbroker.dialects.mqtt import fields as f
from smbroker.dialects.mqtt.packets import Ack, Connack, Connect, Publish, Results, Subscribe, Topics
from web.calls import get

LONG = bool(os.environ.get("SMB_LONG"))
KINDS = ("mqtt", "web", "udp")
MIB = 1 << 20


@pytest.fixture(scope="module", params=["log", "no-log"])
def broker(request: pytest.FixtureRequest) -> Iterator[Broker]:
    with Broker(*(["--no-log"] if request.param == "no-log" else []), kinds=KINDS) as broker:
        yield broker


def undelivered(broker: Broker, reason: str) -> int:
    counts = get(broker, "/v1/stats").json["undeliverable"]
    return sum(one["count"] for one in counts if (one["dialect"], one["reason"]) == ("mqtt", reason))


def standing(broker: Broker) -> tuple[int, int]:
    """Connections and subscriptions."""
    stats = get(broker, "/v1/stats").json
    return stats["connections"], stats["subscriptions"].get("mqtt", 0)


def alive(broker: Broker) -> bool:
    """Whether others are served: connect, subscribe, publish, receive."""
    name, client = topic(), Mqtt(broker)
    client.subscribe(name, qos=1)
    client.send(Publish(name.encode(), b"alive", 1, packet_id=9))
    got = {type(client.next()), type(client.next())}
    return got == {Ack, Publish}


# --- lengths ---


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("first", [0x30, 0x32, 0x82, 0xE0], ids=hex)
def test_the_longest_length_then_silence(broker: Broker, version: int, first: int) -> None:
    client = Mqtt(broker, version=version)
    client.tcp.send(bytes((first, 0xFF, 0xFF, 0xFF, 0x7F)))
    assert client.ended(0x95)
    assert alive(broker)


def test_the_longest_length_of_a_first_packet(broker: Broker) -> None:
    client = Mqtt(broker, connect=False)
    client.tcp.send(b"\x10\xff\xff\xff\x7f")
    assert client.closed()


def test_lengths_that_are_allowed_and_then_silence_cost_nothing(broker: Broker) -> None:
    before = broker.memory()
    clients = [Mqtt(broker) for _ in range(100)]
    for client in clients:
        client.tcp.send(b"\x30\x80\x80\x80\x04\x00\x01")  # 8 MiB
    assert alive(broker)
    assert broker.memory() - before < 50 * MIB


@pytest.mark.parametrize("version", VERSIONS)
def test_a_length_of_five_bytes(broker: Broker, version: int) -> None:
    client = Mqtt(broker, version=version)
    client.tcp.send(b"\x30\xff\xff\xff\xff\x01")
    assert client.ended(0x81)


def test_a_length_of_five_bytes_in_the_first_packet(broker: Broker) -> None:
    client = Mqtt(broker, connect=False)
    client.tcp.send(b"\x10\xff\xff\xff\xff\x01")
    assert client.closed()


# --- fields ---

MANY: f.Properties = {f.USER: [("a", "b")] * 5_000}


def test_five_thousand_user_properties(broker: Broker) -> None:
    for packet in (
        Publish(b"t", properties=MANY),
        Subscribe(1, [Topics(b"t")], MANY),
        Ack(f.PUBACK, 1, properties=MANY),
    ):
        client = Mqtt(broker, version=5)
        client.send(packet)
        assert client.ended(0x97)
    client = Mqtt(broker, version=5, connect=False)
    client.tcp.send(Connect(5, "many", properties=MANY).encode())
    assert client.expect(Connack).code == 0x97
    assert client.closed()
    assert alive(broker)


def test_a_thousand_of_them_are_passed_on(broker: Broker) -> None:
    name = topic()
    client = Mqtt(broker, version=5)
    client.subscribe(name, qos=1)
    properties: f.Properties = {f.USER: [(str(number), "x") for number in range(1_000)]}
    Mqtt(broker, version=5).publish(name, b"", 1, properties=properties)
    assert client.get().properties == properties


BAD_NAMES = {
    "bad UTF-8": (b"a/\xff", 0x81),
    "a surrogate": (b"a/\xed\xa0\x80", 0x81),
    "overlong UTF-8": (b"a/\xc0\xaf", 0x81),
    "NUL": (b"a/\0", 0x81),
    "#": (b"a/#", 0x90),
    "+": (b"+/a", 0x90),
    "+ within a level": (b"a+b", 0x90),
    "empty": (b"", 0),
}


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("qos", [0, 1, 2])
@pytest.mark.parametrize("name", BAD_NAMES)
def test_topics_that_cannot_be_published_to(broker: Broker, version: int, qos: int, name: str) -> None:
    raw, reason = BAD_NAMES[name]
    client = Mqtt(broker, version=version)
    client.send(Publish(raw, b"x", qos, packet_id=1 if qos else 0))
    assert client.ended(reason or 0x82)


@pytest.mark.parametrize("version", VERSIONS)
def test_filters_that_are_not_utf_8_end_the_connection(broker: Broker, version: int) -> None:
    client = Mqtt(broker, version=version)
    client.send(Subscribe(1, [Topics(b"a/\xff")]))
    assert client.ended(0x81)


def test_topics_as_deep_as_they_can_be(broker: Broker) -> None:
    deep = "/" * 65_535
    client = Mqtt(broker, version=5)
    client.subscribe("#", qos=1)
    client.send(Publish(deep.encode(), b"x", 1, packet_id=1))
    found = [client.next(), client.next()]
    assert Publish in map(type, found)
    assert client.subscribe("/".join(["x"] * 201)) == [0x8F]
    assert client.subscribe("/".join(["+"] * 200)) == [0]
    client.disconnect()
    assert alive(broker)


# --- states ---


@pytest.mark.parametrize(
    "data", [b"GET / HTTP/1.1\r\n", b"\x00\x00", b"\x30\x03\x00\x01t", b"\xf0\x00", b"\x20\x02\0\0"]
)
def test_a_first_packet_that_is_not_connect(broker: Broker, data: bytes) -> None:
    client = Mqtt(broker, connect=False)
    client.tcp.send(data)
    assert client.closed()


@pytest.mark.parametrize("version", VERSIONS)
def test_qos_2_that_is_never_released(broker: Broker, version: int) -> None:
    """One more than mqtt.receive_maximum ends it; what it began is forgotten with its session."""
    client = Mqtt(broker, version=version)
    for start in range(1, 1_001, 100):
        numbers = range(start, start + 100)
        client.tcp.send(b"".join(Publish(b"t", b"", 2, packet_id=number).encode(version) for number in numbers))
        assert [client.expect(Ack) for _ in numbers] == [Ack(f.PUBREC, number) for number in numbers]
    client.send(Publish(b"t", b"", 2, packet_id=1_001))
    assert client.ended(0x93)
    assert alive(broker)


def test_a_client_that_never_acknowledges_gets_no_more_than_its_window(tmp_path: Path) -> None:
    with Broker(*config(tmp_path, "[mqtt]\nmax_inflight = 5\n"), kinds=KINDS) as broker:
        client, publisher = Mqtt(broker), Mqtt(broker)
        client.subscribe("t", qos=2)
        for number in range(20):
            publisher.publish("t", b"%d" % number, 1 + number % 2)
        messages = [client.expect(Publish) for _ in range(5)]
        assert client.quiet()
        for message in messages:
            client.accept(message)
        assert [int(client.get().payload) for _ in range(15)] == list(range(5, 20))


def test_subscriptions_are_limited(tmp_path: Path) -> None:
    with Broker("--no-log", *config(tmp_path, "[tcp]\nmax_subscriptions = 3\n"), kinds=KINDS) as broker:
        for version, code in ((4, 0x80), (5, 0x97)):
            client = Mqtt(broker, version=version)
            assert client.subscribe("a", "b", "c", "d", "e") == [0, 0, 0, code, code]
            assert client.subscribe("a", qos=1) == [1]
            client.unsubscribe("b")
            assert client.subscribe("d", "e") == [0, code]


def test_a_subscribe_with_more_filters_than_there_may_be() -> None:
    with Broker(kinds=KINDS) as broker:
        client = Mqtt(broker, version=5)
        codes = client.subscribe(*(f"many/{number}" for number in range(20_005)))
        assert codes == [0] * 20_000 + [0x97] * 5
        assert alive(broker)


def test_retained_messages_are_limited(tmp_path: Path) -> None:
    with Broker("--no-log", *config(tmp_path, "[mqtt]\nmax_retained = 3\nsys_interval = 0\n"), kinds=KINDS) as broker:
        client = Mqtt(broker)
        for number in range(6):
            client.publish(f"r/{number}", b"x", 1, retain=True)
        client.subscribe("r/#")
        assert {client.get().topic for _ in range(3)} == {b"r/0", b"r/1", b"r/2"}
        assert client.quiet()


def test_many_retained_messages_all_come_and_hold_nobody_up(tmp_path: Path) -> None:
    """As many as may be kept, and more than may wait for a client in memory; those beyond are counted."""
    most = 1_000_000 if LONG else 11_000
    settings = f"[mqtt]\nmax_retained = {most}\nmax_retained_bytes = 1000000000\nsys_interval = 0\n"
    with Broker("--no-log", *config(tmp_path, settings), kinds=KINDS) as broker:
        before, publisher = broker.memory(), Mqtt(broker)
        for start in range(0, most + 1_000, 1_000):
            frames = [Publish(b"r/%d" % number, b"x", 0, retain=True) for number in range(start, start + 1_000)]
            publisher.tcp.send(b"".join(frame.encode(4) for frame in frames))
            assert publisher.quiet()
        assert get(broker, "/v1/stats").json["dropped"]["retained_full"] == 1_000
        client = Mqtt(broker)
        client.subscribe(*(f"r/{number}/#" for number in range(200)), "#", qos=1)
        assert alive(broker)
        got = [client.get() for _ in range(most + 201)]  # that of `alive` too
        retained = [message.topic for message in got if message.retain]
        assert (len(retained), len(set(retained))) == (most + 200, most)
        assert client.quiet()
        assert broker.memory() - before < 60 * MIB + most * 1_000


def test_connections_that_come_and_go_leave_nothing(broker: Broker) -> None:
    before = standing(broker)
    for _ in range(3):
        for _ in range(200):
            sock = socket.create_connection(("127.0.0.1", broker.ports["mqtt"]))
            sock.sendall(Connect(4, "same").encode() + Subscribe(1, [Topics(b"come/+", 1)]).encode(4))
            sock.close()
    assert alive(broker)

    def as_before() -> bool:
        """But for the client of `alive`."""
        return all(now <= then + 1 for now, then in zip(standing(broker), before, strict=True))

    wait_for(as_before, "what they left is gone")


def test_very_many_small_packets_of_one_client_do_not_keep_others_waiting(broker: Broker) -> None:
    """Megabytes of them wait in its socket; each of them is answered, in order."""
    name = topic()
    client = Mqtt(broker, version=5)
    frames = [Subscribe(number % 65_535 + 1, [Topics(f"{name}/{number % 10}".encode())]) for number in range(8_000)]
    sender = threading.Thread(target=client.tcp.send, args=(b"".join(frame.encode(5) for frame in frames),))
    sender.start()
    for _ in range(3):
        assert alive(broker)
    for frame in frames:
        assert client.expect(Results).packet_id == frame.packet_id
    sender.join()
    assert client.quiet()


# --- never reading ---


@pytest.mark.parametrize("version", VERSIONS)
def test_qos_0_is_left_out_for_a_subscriber_that_does_not_read(broker: Broker, version: int) -> None:
    """It stays, and gets what comes when it reads again."""
    name = topic()
    deaf, client, publisher = (Mqtt(broker, version=version) for _ in range(3))
    deaf.subscribe(name)
    client.subscribe(name)
    before, count = undelivered(broker, "outbox_full"), 0
    payload = b"x" * 500_000
    while undelivered(broker, "outbox_full") - before < 10:
        assert count < 200, "nothing was left out"
        for _ in range(10):
            count += 1
            publisher.publish(name, payload)
            assert client.get().payload == payload
    missing = undelivered(broker, "outbox_full") - before
    for _ in range(count - missing):
        assert deaf.get().payload == payload
    publisher.publish(name, b"again")
    assert deaf.get().payload == b"again"
    assert deaf.quiet()
    assert alive(broker)


def test_messages_that_are_left_out_are_counted_one_by_one(broker: Broker) -> None:
    name = topic()
    deaf, publisher = Mqtt(broker), Mqtt(broker)
    deaf.subscribe(name)
    before, sent = undelivered(broker, "outbox_full"), 0
    frames = Publish(name.encode(), b"x" * 1_000).encode(4) * 1_000
    while undelivered(broker, "outbox_full") - before < 1_000:
        publisher.tcp.send(frames)
        assert publisher.quiet()
        sent += 1_000
        assert sent < 100_000, "nothing was left out"
    missing = undelivered(broker, "outbox_full") - before
    for _ in range(sent - missing):
        assert len(deaf.get().payload) == 1_000
    assert deaf.quiet()


def test_a_session_that_does_not_read_waits_in_the_log() -> None:
    with Broker(kinds=KINDS) as broker:
        deaf, publisher = Mqtt(broker, "deaf", clean=False), Mqtt(broker)
        deaf.subscribe("t", qos=1)
        for number in range(30):
            publisher.publish("t", b"%06d" % number + b"x" * MIB, 1)
        assert get(broker, "/v1/stats").json["outbox_bytes"] < 10 * MIB
        assert [int(deaf.get().payload[:6]) for _ in range(30)] == list(range(30))


def test_answers_that_are_not_read_end_the_connection(tmp_path: Path) -> None:
    settings = config(tmp_path, "[tcp]\noutbox_bytes = 100000\n")
    with Broker("--no-log", *settings, kinds=KINDS) as broker:
        client = Mqtt(broker, version=5, over=SmallTcp(broker.ports["mqtt"]))
        client.tcp.sock.settimeout(30.0)
        refused = Subscribe(1, [Topics(b"x" * 900 + b"/#/b")]).encode(5) * 100  # each answer says why, at length
        with suppress(ConnectionError):
            for _ in range(500):
                client.tcp.send(refused)
            pytest.fail("50 MB of answers waited")
        assert alive(broker)


# --- sessions ---


def test_sessions_with_random_ids(tmp_path: Path) -> None:
    """As many as there may be, then no more; the broker stays small and serves those that it knows."""
    most = 100_000 if LONG else 500
    with Broker(*config(tmp_path, f"[mqtt]\nmax_sessions = {most}\n"), kinds=KINDS, data=tmp_path / "data") as broker:
        before = broker.memory()
        known = Mqtt(broker, "known", clean=False)
        accepted, refused = 1, 0
        for _ in range(most // 100 + 1):
            clients = [Mqtt(broker, connect=False) for _ in range(100)]
            for client in clients:
                client.tcp.send(Connect(4, token_hex(16), clean=False).encode())
            for client in clients:
                code = client.expect(Connack).code
                assert code in (0, 3)
                accepted += code == 0
                refused += code == 3
                client.tcp.sock.close()
        assert (accepted, refused) == (most, 101)
        assert known.quiet()
        assert broker.memory() - before < 50 * MIB + most * 5_000
        known.disconnect()
        assert Mqtt(broker, "known", clean=False).connack.present
