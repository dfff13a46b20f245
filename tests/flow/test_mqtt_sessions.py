"""MQTT sessions: clients that go and come back, restarts and kills of the broker, history."""

import random
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from flow.house import Broker
from flow.mqtt import KINDS, VERSIONS, Mqtt, topic
from smbroker.dialects.mqtt import fields as f
from smbroker.dialects.mqtt.packets import Ack, Connect, Disconnect, Publish, Results, Subscribe, Topics

KEEP: f.Properties = {f.SESSION_EXPIRY: 1_000}
LARGE = b" " * 1_500  # after a number: many of these are more than the broker has in memory


@pytest.fixture(scope="module")
def logged() -> Iterator[Broker]:
    with Broker(kinds=KINDS) as broker:
        yield broker


@pytest.fixture(scope="module")
def relaying() -> Iterator[Broker]:
    with Broker("--no-log", kinds=KINDS) as broker:
        yield broker


@pytest.fixture(params=["logged", "relaying"])
def broker(request: pytest.FixtureRequest) -> Broker:
    """With a log and without."""
    made: Broker = request.getfixturevalue(request.param)
    return made


def lasting(broker: Broker, client: str, version: int, **more: object) -> Mqtt:
    """Comes back to its session, or begins one."""
    properties = KEEP if version == 5 else {}
    return Mqtt(broker, client, version=version, clean=False, properties=properties, **more)  # type: ignore[arg-type]


def numbers(client: Mqtt, count: int) -> list[int]:
    return [int(client.get().payload) for _ in range(count)]


@pytest.mark.parametrize("version", VERSIONS)
def test_a_session_gets_what_came_while_it_was_away(broker: Broker, version: int) -> None:
    name = topic()
    client = lasting(broker, name, version)
    assert not client.connack.present
    client.subscribe(f"{name}/+", qos=2)
    client.disconnect()
    publisher = Mqtt(broker)
    for number in range(50):
        publisher.publish(f"{name}/x", b"%d" % number, 1 + number % 2)
    publisher.publish(f"{name}/x", b"not kept", 0)
    broker.udp().ask(f"P|{name}/x|50".encode())
    client = lasting(broker, name, version)
    assert client.connack.present
    assert numbers(client, 51) == list(range(51))
    assert client.quiet()
    client.disconnect()
    assert Mqtt(broker, name, version=version).connack.present is False
    assert lasting(broker, name, version).connack.present is False


@pytest.mark.parametrize("qos", [1, 2])
def test_what_was_not_acknowledged_comes_again(broker: Broker, qos: int) -> None:
    name = topic()
    client = lasting(broker, name, 4)
    client.subscribe(name, qos=qos)
    publisher = Mqtt(broker)
    for number in range(3):
        publisher.publish(name, b"%d" % number, qos)
    first = [client.expect(Publish) for _ in range(3)]
    client.accept(first[1])
    client.drop()
    publisher.publish(name, b"3", qos)
    client = lasting(broker, name, 4)
    again = [client.expect(Publish) for _ in range(3)]
    assert [one.payload for one in again] == [b"0", b"2", b"3"]
    assert [one.dup for one in again[:2]] == [True, True]
    assert [one.packet_id for one in again[:2]] == [first[0].packet_id, first[2].packet_id]
    for one in again:
        client.accept(one)
    assert client.quiet()


@pytest.mark.parametrize("retain", [False, True])
def test_what_comes_again_keeps_to_a_smaller_receive_maximum(broker: Broker, retain: bool) -> None:
    name = topic()
    client, publisher = lasting(broker, name, 5), Mqtt(broker)
    if not retain:
        client.subscribe(f"{name}/+", qos=2)
    for number in range(6):
        publisher.publish(f"{name}/{number}", b"%d" % number, 1 + number % 2, retain=retain)
    if retain:
        client.subscribe(f"{name}/+", qos=2)
    sent = [client.expect(Publish) for _ in range(6)]
    client.drop()
    client = Mqtt(broker, name, version=5, clean=False, properties={**KEEP, f.RECEIVE_MAXIMUM: 2})
    publisher.publish(f"{name}/new", b"6", 1)
    again = [client.expect(Publish) for _ in range(2)]
    assert client.quiet()
    client.accept(again[0])
    again += [client.expect(Publish)]
    assert client.quiet()
    for one in again[1:]:
        client.accept(one)
    again += [client.get() for _ in range(3)]
    found = [(one.packet_id, one.payload, one.dup) for one in again]
    assert found == [(one.packet_id, one.payload, True) for one in sent]
    assert client.get().payload == b"6"
    assert client.quiet()


def test_a_release_is_repeated_instead_of_the_message(broker: Broker) -> None:
    name = topic()
    client = lasting(broker, name, 4)
    client.subscribe(name, qos=2)
    Mqtt(broker).publish(name, b"x", 2)
    message = client.expect(Publish)
    client.send(Ack(f.PUBREC, message.packet_id))
    assert client.expect(Ack).kind == f.PUBREL
    client.drop()
    client = lasting(broker, name, 4)
    assert client.expect(Ack) == Ack(f.PUBREL, message.packet_id)
    client.send(Ack(f.PUBCOMP, message.packet_id))
    assert client.quiet()


def test_a_session_expires(logged: Broker) -> None:
    Mqtt(logged, "brief", version=5, properties=KEEP).disconnect()
    client = Mqtt(logged, "brief", version=5, clean=False, properties={f.SESSION_EXPIRY: 1})
    assert client.connack.present
    client.disconnect()
    time.sleep(1.3)
    assert not Mqtt(logged, "brief", version=5, clean=False).connack.present


def test_a_disconnect_may_change_the_expiry(logged: Broker) -> None:
    Mqtt(logged, "ends", version=5, properties=KEEP).disconnect(properties={f.SESSION_EXPIRY: 0})
    assert not Mqtt(logged, "ends", version=5, clean=False).connack.present
    client = Mqtt(logged, "cannot", version=5)
    client.send(Disconnect(0, {f.SESSION_EXPIRY: 5}))
    assert client.ended(0x82)


@pytest.mark.parametrize("kill", [False, True], ids=["stop", "kill"])
def test_sessions_survive_the_broker(tmp_path: Path, kill: bool) -> None:
    with Broker(kinds=KINDS, data=tmp_path) as broker:
        client = lasting(broker, "long", 5)
        client.subscribe("s/#", qos=1, properties={f.SUBSCRIPTION_ID: 9})
        client.disconnect()
        publisher = Mqtt(broker)
        for number in range(200):
            publisher.publish("s/x", b"%d" % number, 1)
        publisher.publish("r", b"retained", 1, retain=True)
        if kill:
            broker.kill()
            broker.process.returncode = 0
    with Broker(kinds=KINDS, data=tmp_path) as broker:
        client = lasting(broker, "long", 5)
        assert client.connack.present
        got = [client.get() for _ in range(200)]
        assert [int(one.payload) for one in got] == list(range(200))
        assert got[0].properties == {f.SUBSCRIPTION_ID: [9]}
        assert client.quiet()
        client.subscribe("r")
        assert client.get().payload == b"retained"


def test_qos_2_is_exactly_once_across_a_kill(tmp_path: Path) -> None:
    with Broker(kinds=KINDS, data=tmp_path) as broker:
        client = lasting(broker, "reads", 4)
        client.subscribe("t", qos=2)
        publisher = lasting(broker, "writes", 4)
        publisher.send(Publish(b"t", b"once", 2, packet_id=5))
        assert publisher.expect(Ack) == Ack(f.PUBREC, 5)
        message = client.expect(Publish)
        client.send(Ack(f.PUBREC, message.packet_id))
        assert client.expect(Ack).kind == f.PUBREL
        broker.kill()
        broker.process.returncode = 0
    with Broker(kinds=KINDS, data=tmp_path) as broker:
        publisher = lasting(broker, "writes", 4)
        publisher.send(Publish(b"t", b"once", 2, dup=True, packet_id=5))
        assert publisher.expect(Ack) == Ack(f.PUBREC, 5)
        publisher.send(Ack(f.PUBREL, 5))
        assert publisher.expect(Ack) == Ack(f.PUBCOMP, 5)
        client = lasting(broker, "reads", 4)
        assert client.expect(Ack) == Ack(f.PUBREL, message.packet_id)
        client.send(Ack(f.PUBCOMP, message.packet_id))
        publisher.publish("t", b"next", 2)
        assert client.get().payload == b"next"
        assert client.quiet()


def test_a_session_far_behind_reads_from_the_log(logged: Broker) -> None:
    """More than is in memory: it comes from the reading process."""
    client = lasting(logged, "far", 4)
    client.subscribe("far/#", qos=1)
    client.disconnect()
    publisher = Mqtt(logged)
    frames = [Publish(b"far/x", b"%d" % number + LARGE, 1, packet_id=number % 900 + 1) for number in range(25_000)]
    for begin in range(0, len(frames), 500):
        publisher.tcp.send(b"".join(frame.encode(4) for frame in frames[begin : begin + 500]))
        for _ in range(500):
            publisher.expect(Ack)
    client = lasting(logged, "far", 4)
    assert numbers(client, 25_000) == list(range(25_000))
    assert client.quiet()


def test_a_session_far_behind_gets_topics_and_qualities_in_their_order(logged: Broker) -> None:
    """Rows that can leave together, and others between them, from the log and then from memory."""
    client = lasting(logged, "mixed", 4)
    client.subscribe("mixed/#", qos=2)
    client.disconnect()
    chance = random.Random(5)
    frames = []
    while len(frames) < 22_000:
        name, qos = b"mixed/%d" % chance.randint(0, 2), chance.choice((1, 1, 1, 2))
        frames += [(name, qos)] * chance.choice((1, 2) if qos == 2 else (1, 2, 30, 700))
    publisher = Mqtt(logged)
    for begin in range(0, len(frames), 500):
        part = list(enumerate(frames[begin : begin + 500]))
        packets = [Publish(name, b"%d" % (begin + at) + LARGE, qos, packet_id=at + 1) for at, (name, qos) in part]
        publisher.tcp.send(b"".join(packet.encode(4) for packet in packets))
        for _ in part:
            ack = publisher.expect(Ack)
            if ack.kind == f.PUBREC:
                publisher.send(Ack(f.PUBREL, ack.packet_id))
        for _, (_, qos) in part:
            if qos == 2:
                assert publisher.expect(Ack).kind == f.PUBCOMP
    client = lasting(logged, "mixed", 4)
    got = [client.get() for _ in frames]
    assert [(message.topic, message.qos) for message in got] == frames
    assert [int(message.payload) for message in got] == list(range(len(frames)))
    assert not any(message.dup for message in got)


def test_who_does_not_acknowledge_still_gets_the_history_of_other_topics(logged: Broker) -> None:
    """As many as may be in flight, more of which than one piece is not for it in between, then messages with QoS 0."""
    publisher = Mqtt(logged)
    for begin in range(0, 12_000, 500):
        name, payload = (b"stuck/kept", b"") if begin < 1_000 else (b"stuck/other", LARGE)
        frames = [Publish(name, payload, 1, packet_id=at + 1) for at in range(500)]
        publisher.tcp.send(b"".join(frame.encode(4) for frame in frames))
        for _ in frames:
            publisher.expect(Ack)
    for number in range(10):
        publisher.publish("stuck/light", b"%d" % number)
    publisher.publish("stuck/end", b"", 1)
    client = Mqtt(logged, version=5)
    topics = [Topics(b"stuck/kept", 1), Topics(b"stuck/light", 0)]
    client.send(Subscribe(1, topics, {f.USER: [("smb-replay", "all")]}))
    assert list(client.expect(Results).codes) == [1, 0]
    got = [client.expect(Publish).topic for _ in range(1_010)]  # none is acknowledged
    assert got == [b"stuck/kept"] * 1_000 + [b"stuck/light"] * 10


def test_a_second_history_while_the_first_is_on_its_way(logged: Broker) -> None:
    publisher = Mqtt(logged)
    for begin in range(0, 24_000, 500):
        rows = enumerate(range(begin, begin + 500), 1)
        frames = [Publish(b"two/%d" % (row % 2), b"%d" % row + LARGE, 1, packet_id=at) for at, row in rows]
        publisher.tcp.send(b"".join(frame.encode(4) for frame in frames))
        for _ in frames:
            publisher.expect(Ack)
    client = Mqtt(logged, version=5)
    got: dict[bytes, list[int]] = {b"two/0": [], b"two/1": []}
    for number, until in enumerate((3_000, 24_000)):
        client.send(Subscribe(number + 1, [Topics(b"two/%d" % number, 1)], {f.USER: [("smb-replay", "all")]}))
        while sum(map(len, got.values())) < until:
            packet = client.next()
            if isinstance(packet, Publish):
                client.accept(packet)
                got[packet.topic].append(int(packet.payload))
    assert got == {b"two/0": list(range(0, 24_000, 2)), b"two/1": list(range(1, 24_000, 2))}


def test_smb_replay() -> None:
    with Broker(kinds=KINDS) as broker:
        publisher = Mqtt(broker)
        for number in range(10):
            publisher.publish("h/x", b"%d" % number, 1)
        publisher.publish("other", b"", 1)
        for wanted, first in (("all", 0), ("last=3", 7), ("from=4", 4), ("since=2000-01-01T00:00:00", 0)):
            client = Mqtt(broker, version=5)
            assert client.subscribe("h/#", qos=1, properties={f.USER: [("smb-replay", wanted)]}) == [1]
            assert numbers(client, 10 - first) == list(range(first, 10))
            assert client.quiet()
        client = Mqtt(broker, version=5)
        assert client.subscribe("h/#", properties={f.USER: [("smb-replay", "all")]}) == [0]
        assert numbers(client, 10) == list(range(10))
        publisher.publish("h/x", b"10")
        assert numbers(client, 1) == [10]
        assert client.subscribe("h/#", properties={f.USER: [("smb-replay", "tomorrow")]}) == [0x83]


@pytest.fixture
def lingering(tmp_path: Path) -> Iterator[Broker]:
    """What nobody waits for is committed much later."""
    config = tmp_path / "smb.toml"
    config.write_text("[log]\nlinger = 3600\n")
    with Broker("--config", str(config), kinds=KINDS) as broker:
        yield broker


def test_the_last_messages_are_those_before_the_subscription(lingering: Broker) -> None:
    publisher = Mqtt(lingering)
    for number in range(3):
        publisher.publish("h", b"%d" % number)
    assert publisher.quiet()
    client = Mqtt(lingering, version=5)
    assert client.subscribe("h", qos=1, properties={f.USER: [("smb-replay", "last=1")]}) == [1]
    assert numbers(client, 1) == [2]
    publisher.publish("h", b"3", 1)
    assert numbers(client, 1) == [3]
    assert client.quiet()


@pytest.mark.parametrize("together", [False, True])
def test_a_subscription_that_is_replaced_at_once_begins_where_the_first_did(lingering: Broker, together: bool) -> None:
    publisher = Mqtt(lingering)
    publisher.publish("other")
    assert publisher.quiet(), "there is something to be committed"
    client = Mqtt(lingering)
    topics = [Topics(b"t", 1), Topics(b"t", 2)]
    packets = [Subscribe(1, topics)] if together else [Subscribe(at, [one]) for at, one in enumerate(topics, 1)]
    client.tcp.send(b"".join(packet.encode(4) for packet in packets))
    for _ in packets:
        client.expect(Results)
    for number, qos in enumerate((0, 1, 2)):
        publisher.publish("t", b"%d" % number, qos)
    assert numbers(client, 3) == [0, 1, 2]


def test_the_last_messages_of_a_long_log(logged: Broker) -> None:
    """They may be far from its end, or fewer than are wanted."""
    publisher = Mqtt(logged)
    name = topic()
    for number in range(2):
        publisher.publish(name, b"%d" % number, 1)
    for _ in range(20):
        frames = [Publish(b"long/other", b"", 1, packet_id=at + 1) for at in range(500)]
        publisher.tcp.send(b"".join(frame.encode(4) for frame in frames))
        for _ in frames:
            publisher.expect(Ack)
    for wanted, first in (("last=1", 1), ("last=2", 0), ("last=1000000000", 0)):
        client = Mqtt(logged, version=5)
        assert client.subscribe(name, qos=1, properties={f.USER: [("smb-replay", wanted)]}) == [1]
        assert numbers(client, 2 - first) == list(range(first, 2))
        assert client.quiet()


@pytest.mark.parametrize("wanted", ["last=5", "since=2000-01-01T00:00:00", "all"])
def test_history_comes_before_what_is_new_and_nothing_twice(logged: Broker, wanted: str) -> None:
    name, enough = topic(), threading.Event()

    def publish() -> None:
        publisher, number = Mqtt(logged), 0
        while not enough.is_set():
            publisher.publish(name, b"%d" % number, 1)
            number += 1

    publishing = threading.Thread(target=publish)
    publishing.start()
    try:
        for _ in range(5):
            client = Mqtt(logged, version=5)
            assert client.subscribe(name, qos=1, properties={f.USER: [("smb-replay", wanted)]}) == [1]
            got = numbers(client, 100)
            assert got == list(range(got[0], got[0] + 100))
            client.drop()
    finally:
        enough.set()
        publishing.join()


def test_a_history_that_is_refused_leaves_the_subscription_as_it_was(broker: Broker) -> None:
    name = topic()
    client = lasting(broker, name, 5)
    assert client.subscribe(name, qos=1, properties={f.SUBSCRIPTION_ID: 7}) == [1]
    assert client.subscribe(name, "$share/g/x", properties={f.USER: [("smb-replay", "never")]}) == [0x83, 0x83]
    Mqtt(broker).publish(name, b"x", 1)
    message = client.get()
    assert (message.qos, message.payload, message.properties) == (1, b"x", {f.SUBSCRIPTION_ID: [7]})
    assert client.unsubscribe(name, "$share/g/x") == [0, 0x11]


def test_there_is_no_replay_without_a_log(relaying: Broker) -> None:
    client = Mqtt(relaying, version=5)
    assert client.subscribe("h", properties={f.USER: [("smb-replay", "all")]}) == [0x83]


def test_a_session_that_is_away_is_bounded_without_a_log(tmp_path: Path) -> None:
    config = tmp_path / "smb.toml"
    config.write_text("[mqtt]\nmax_queued = 10\n")
    with Broker("--no-log", "--config", str(config), kinds=KINDS) as broker:
        client = lasting(broker, "away", 4)
        client.subscribe("t", qos=1)
        client.disconnect()
        publisher = Mqtt(broker)
        for number in range(20):
            publisher.publish("t", b"%d" % number, 1)
        client = lasting(broker, "away", 4)
        assert numbers(client, 10) == list(range(10))
        assert client.quiet()


def test_messages_that_come_before_connack_keep_their_order(logged: Broker) -> None:
    """A session that lasts is written first; what comes meanwhile waits for that, also in reads of one message each."""
    watcher, name = Mqtt(logged), topic()
    watcher.subscribe(name)
    for _ in range(10):
        client = Mqtt(logged, connect=False)
        client.send(Connect(4, topic(), clean=False))
        for number in range(5):
            time.sleep(0.0005)  # so that most come in a read of their own; they are in order either way
            client.send(Publish(name.encode(), b"%d" % number))
        assert [int(watcher.get().payload) for _ in range(5)] == list(range(5))


def test_many_histories_at_once(logged: Broker) -> None:
    """One SUBSCRIBE with many filters, of a session that lasts."""
    name = topic()
    publisher = Mqtt(logged)
    for number in range(10):
        publisher.publish(f"{name}/{number}", b"%d" % number, 1)
    client = lasting(logged, name, 5)
    topics = [Topics(f"{name}/{number}".encode(), 1) for number in range(1_000)]
    client.send(Subscribe(1, topics, {f.USER: [("smb-replay", "all")]}))
    seen: set[int] = set()
    while len(seen) < 10:
        packet = client.next()
        if isinstance(packet, Publish):
            client.accept(packet)
            seen.add(int(packet.payload))
