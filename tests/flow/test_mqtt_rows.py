"""Messages of QoS 1 that come in rows: they stay rows on their way, and nobody can tell."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from flow.house import Broker
from flow.mqtt import KINDS, VERSIONS, Mqtt, topic
from flow.wires import config
from smbroker.dialects.mqtt import fields as f
from smbroker.dialects.mqtt.packets import Ack, Publish
from smbroker.log.reader import LogReader

WAYS = {"log": (), "no-log": ("--no-log",)}
IDS = {"log": 49_152, "no-log": 65_535}  # that messages have, in turn


@pytest.fixture(scope="module", params=WAYS)
def way(request: pytest.FixtureRequest) -> str:
    found: str = request.param
    return found


@pytest.fixture(scope="module")
def broker(way: str) -> Iterator[Broker]:
    with Broker(*WAYS[way], kinds=KINDS) as made:
        yield made


def payload(number: int) -> bytes:
    return b"%06d" % number


def send(publisher: Mqtt, name: str, numbers: range, qos: int = 1) -> None:
    """In one write; identifiers in an order of their own."""
    some = [
        Publish(name.encode(), payload(number), qos, packet_id=(7 * number) % 65_535 + 1 if qos else 0)
        for number in numbers
    ]
    publisher.tcp.send(b"".join(packet.encode(publisher.version) for packet in some))
    for packet in some if qos else ():
        assert publisher.expect(Ack) == Ack(f.PUBACK, packet.packet_id)


def take(subscriber: Mqtt, count: int) -> list[Publish]:
    return [subscriber.expect(Publish) for _ in range(count)]


def accept(subscriber: Mqtt, packets: list[Publish]) -> None:
    """In one write."""
    subscriber.tcp.send(b"".join(Ack(f.PUBACK, one.packet_id).encode(subscriber.version) for one in packets))


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("other", VERSIONS)
def test_whatever_version_each_side_speaks(broker: Broker, version: int, other: int) -> None:
    name = topic()
    publisher, subscriber, plain = Mqtt(broker, version=version), Mqtt(broker, version=other), Mqtt(broker)
    subscriber.subscribe(name, qos=1)
    plain.subscribe(name)
    for start in range(0, 500, 100):
        send(publisher, name, range(start, start + 100))
        found = take(subscriber, 100)
        assert [(one.topic, one.payload, one.qos, one.retain, one.dup) for one in found] == [
            (name.encode(), payload(number), 1, False, False) for number in range(start, start + 100)
        ]
        assert len({one.packet_id for one in found}) == 100
        accept(subscriber, found)
        assert [(one.payload, one.qos) for one in take(plain, 100)] == [
            (payload(number), 0) for number in range(start, start + 100)
        ]
    assert subscriber.quiet()
    assert plain.quiet()


def test_the_window_is_kept_and_filled_again_in_whatever_order_they_are_acknowledged(way: str, tmp_path: Path) -> None:
    with Broker(*WAYS[way], *config(tmp_path, "[mqtt]\nmax_inflight = 50\n"), kinds=KINDS) as broker:
        name = topic()
        publisher, subscriber = Mqtt(broker), Mqtt(broker)
        subscriber.subscribe(name, qos=1)
        send(publisher, name, range(1_000))
        found = take(subscriber, 50)
        assert subscriber.quiet()
        accept(subscriber, found[:20])
        found += take(subscriber, 20)
        assert subscriber.quiet()
        accept(subscriber, [*found[:19:-2], found[5]])  # newest first, each second; one that was acknowledged before
        found += take(subscriber, 25)
        assert subscriber.quiet()
        accept(subscriber, found[20:70:2])
        while len(found) < 1_000:
            more = take(subscriber, 1)
            accept(subscriber, more)
            found += more
        assert [one.payload for one in found] == [payload(number) for number in range(1_000)]
        assert subscriber.quiet()


def test_what_was_not_acknowledged_of_a_row_comes_again(broker: Broker) -> None:
    name = topic()
    publisher, subscriber = Mqtt(broker), Mqtt(broker, "rows", clean=False)
    subscriber.subscribe(name, qos=1)
    send(publisher, name, range(100))
    found = take(subscriber, 100)
    accept(subscriber, found[:40])
    accept(subscriber, found[50:60])
    assert subscriber.quiet()
    subscriber.drop()
    send(publisher, name, range(100, 150))
    subscriber = Mqtt(broker, "rows", clean=False)
    again = take(subscriber, 140 - 50)
    left = [*range(40, 50), *range(60, 100)]
    assert [(one.payload, one.dup) for one in again] == [
        *((payload(number), True) for number in left),
        *((payload(number), False) for number in range(100, 150)),
    ][: len(again)]
    before = {one.payload: one.packet_id for one in found}
    assert all(before[one.payload] == one.packet_id for one in again if one.dup)
    accept(subscriber, again)
    more = take(subscriber, 10)
    assert [one.payload for one in more] == [payload(number) for number in range(140, 150)]
    accept(subscriber, more)
    assert subscriber.quiet()
    subscriber.disconnect()


@pytest.mark.parametrize(("size", "row"), [(50_000, 1), (1_000, 50), (2_000, 50)])
def test_what_many_have_not_acknowledged_is_in_memory_once(size: int, row: int) -> None:
    with Broker("--no-log", kinds=KINDS) as broker:
        name, count = topic(), 1_000 if row > 1 else 200
        publisher, subscribers = Mqtt(broker), [Mqtt(broker) for _ in range(20)]
        for subscriber in subscribers:
            subscriber.subscribe(name, qos=1)
        packets = [Publish(name.encode(), bytes(size), 1, packet_id=number) for number in range(1, row + 1)]
        before = broker.memory()
        for _ in range(count // row):
            publisher.tcp.send(b"".join(packet.encode(4) for packet in packets))
            for one in (publisher, *subscribers):
                for _ in packets:
                    one.next()
        assert broker.memory() - before < 6 * size * count


def test_identifiers_go_round(broker: Broker, way: str) -> None:
    name, ids = topic(), IDS[way]
    publisher, subscriber = Mqtt(broker), Mqtt(broker)
    subscriber.subscribe(name, qos=1)
    seen: list[int] = []
    for start in range(0, ids + 5_000, 500):
        send(publisher, name, range(start, start + 500))
        found = take(subscriber, 500)
        assert [one.payload for one in found] == [payload(number) for number in range(start, start + 500)]
        accept(subscriber, found)
        seen += [one.packet_id for one in found]
    assert len(set(seen[:ids])) == ids
    assert seen[ids:] == seen[: len(seen) - ids]


def test_rows_of_both_qualities_and_single_messages_between_them_keep_their_order(tmp_path: Path) -> None:
    with Broker(*config(tmp_path, ""), kinds=KINDS) as broker:
        publisher, subscriber = Mqtt(broker), Mqtt(broker)
        subscriber.subscribe("a/#", qos=1)
        qualities = []
        packets = []
        for number in range(400):
            qos = (number // 30) % 2
            retain = number % 97 == 0
            name = b"a/%d" % (number // 50 % 3)
            packets.append(Publish(name, payload(number), qos, retain, packet_id=number + 1 if qos else 0))
            qualities.append((name, qos))
        publisher.tcp.send(b"".join(packet.encode(4) for packet in packets))
        for packet in packets:
            if packet.qos:
                assert publisher.expect(Ack) == Ack(f.PUBACK, packet.packet_id)
        found = []
        for _ in packets:
            one = subscriber.get()
            found.append((one.topic, one.qos, one.payload))
        assert found == [(name, qos, payload(at)) for at, (name, qos) in enumerate(qualities)]
        rows = [row for batch in LogReader(broker.data / "log").read(0) for row in batch.to_pylist()]
        assert [(row["topic"].encode(), row["qos"], row["payload"], row["retain"]) for row in rows] == [
            (name, qos, payload(at), at % 97 == 0) for at, (name, qos) in enumerate(qualities)
        ]


@pytest.mark.parametrize("published", [0, 1])
@pytest.mark.parametrize("rows", [1, 30])
def test_a_full_window_does_not_hold_back_what_needs_no_acknowledgement(
    broker: Broker, published: int, rows: int
) -> None:
    name = topic()
    publisher = Mqtt(broker, version=5)
    subscriber = Mqtt(broker, version=5, properties={f.RECEIVE_MAXIMUM: 1})
    subscriber.subscribe(f"{name}/command", qos=1)
    subscriber.subscribe(f"{name}/own", qos=1, no_local=True)
    subscriber.subscribe(f"{name}/reply")
    publisher.publish(f"{name}/command", b"", 1)
    command = subscriber.expect(Publish)
    subscriber.send(Publish(f"{name}/own".encode(), b"", 1, packet_id=9))
    assert subscriber.expect(Ack) == Ack(f.PUBACK, 9)
    send(publisher, f"{name}/reply", range(rows), published)
    assert [one.payload for one in take(subscriber, rows)] == [payload(number) for number in range(rows)]
    subscriber.accept(command)
    publisher.publish(f"{name}/command", b"", 1)
    subscriber.accept(subscriber.expect(Publish))
    assert subscriber.quiet()
