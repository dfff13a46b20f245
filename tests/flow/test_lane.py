"""Messages that come one at a time and alike: they take the short way through the broker, and nobody can tell."""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from flow.house import Broker, wait_for
from flow.lasting import Home
from flow.mqtt import KINDS, VERSIONS, Mqtt, topic
from flow.wires import config
from smbroker.dialects.mqtt import fields as f
from smbroker.dialects.mqtt.packets import Publish
from web.calls import get

SIZE = 100  # of each payload: a number and blanks


@pytest.fixture(scope="module", params=[(), ("--no-log",)], ids=["logged", "relaying"])
def broker(request: pytest.FixtureRequest) -> Iterator[Broker]:
    with Broker(*request.param, kinds=(*KINDS, "web")) as made:
        yield made


def sent(publisher: Mqtt, name: str, number: int) -> None:
    publisher.publish(name, (b"%d" % number).ljust(SIZE))


def got(subscriber: Mqtt) -> int:
    return int(subscriber.get().payload)


def exchange(publisher: Mqtt, name: str, numbers: range, *subscribers: Mqtt) -> None:
    """Each arrives before the next one leaves."""
    for number in numbers:
        sent(publisher, name, number)
        for subscriber in subscribers:
            assert got(subscriber) == number


@pytest.mark.parametrize("version", VERSIONS)
def test_subscribers_come_and_go(broker: Broker, version: int) -> None:
    name = topic()
    publisher, first, second = (Mqtt(broker, version=version) for _ in range(3))
    first.subscribe(name)
    exchange(publisher, name, range(150), first)
    second.subscribe(name)
    exchange(publisher, name, range(150, 300), first, second)
    other = Mqtt(broker, version=9 - version)
    other.subscribe(name)
    exchange(publisher, name, range(300, 320), first, second, other)
    other.unsubscribe(name)
    first.disconnect()
    exchange(publisher, name, range(320, 400), second)
    second.drop()
    last = Mqtt(broker, version=version)
    last.subscribe(name, qos=1)
    exchange(publisher, name, range(400, 420), last)
    assert last.quiet()
    last.disconnect()  # as long as it is there, nothing takes the short way


def test_other_publishers_in_between_keep_the_order(broker: Broker) -> None:
    name = topic()
    publisher, other, subscriber = Mqtt(broker), Mqtt(broker), Mqtt(broker)
    subscriber.subscribe(name)
    for number in range(0, 400, 4):
        exchange(publisher, name, range(number, number + 2), subscriber)
        exchange(other, name, range(number + 2, number + 3), subscriber)
        broker.udp().ask(f"P|{name}|{number + 3}".encode())
        assert got(subscriber) == number + 3


def test_what_looks_like_a_message_within_another_is_not_one(broker: Broker) -> None:
    name = topic()
    publisher, subscriber = Mqtt(broker), Mqtt(broker)
    subscriber.subscribe(name)
    exchange(publisher, name, range(5), subscriber)
    inner = Publish(name.encode(), b"x" * SIZE).encode(4)
    outer = Publish(name.encode(), inner + b"end").encode(4)
    publisher.tcp.send(outer[: -len(inner) - 3])
    time.sleep(0.05)  # so that the rest comes in a read of its own; what comes is the same either way
    publisher.tcp.send(inner)
    time.sleep(0.05)  # again
    publisher.tcp.send(b"end")
    assert subscriber.get().payload == inner + b"end"


def test_all_are_counted_when_asked(broker: Broker) -> None:
    name = topic()
    publisher, subscriber = Mqtt(broker), Mqtt(broker)
    subscriber.subscribe(name)
    before = get(broker, "/v1/stats").json
    exchange(publisher, name, range(50), subscriber)
    after = get(broker, "/v1/stats").json
    for key in ("received", "delivered"):
        assert after[key]["mqtt"] - before[key].get("mqtt", 0) == 50
    assert after["bytes_in"] - before["bytes_in"] == 50 * SIZE
    assert after["bytes_out"] - before["bytes_out"] >= 50 * SIZE


@pytest.mark.parametrize("end", ["stopped", "idle"])
def test_all_are_in_the_log_in_order_with_their_times(tmp_path: Path, end: str) -> None:
    home = Home(tmp_path, kinds=("mqtt",))
    with home.broker() as broker:
        name = topic()
        publisher, subscriber = Mqtt(broker), Mqtt(broker)
        subscriber.subscribe(name)
        began = time.time()
        exchange(publisher, name, range(250), subscriber)
        ended = time.time()
        if end == "idle":
            wait_for(lambda: len(home.rows("offset")) == 250, "all rows")
    rows = home.rows("topic", "payload", "ts", "dialect", "qos")
    assert [int(payload) for _, payload, *_ in rows] == list(range(250))  # type: ignore[call-overload]
    times = [ts.timestamp() for _, _, ts, *_ in rows]  # type: ignore[attr-defined]
    assert times == sorted(times)
    assert began - 0.001 <= times[0] < times[-1] <= ended + 0.001
    assert {(row[0], *row[3:]) for row in rows} == {(name, "mqtt", 0)}


def test_who_is_heard_by_a_lane_is_alive_and_who_falls_silent_is_not(broker: Broker) -> None:
    name = topic()
    publisher, subscriber = Mqtt(broker, keep_alive=1), Mqtt(broker)
    subscriber.subscribe(name)
    for number in range(10):
        exchange(publisher, name, range(number, number + 1), subscriber)
        time.sleep(0.3)  # ten times, so that it would have been ended by now
    assert publisher.closed()


def test_a_subscriber_that_does_not_read_is_left_behind(tmp_path: Path) -> None:
    settings = config(tmp_path, "[tcp]\noutbox_bytes = 100000\n")
    with Broker("--no-log", *settings, kinds=("mqtt", "web")) as broker:
        name = topic()
        publisher, reader, lazy = Mqtt(broker), Mqtt(broker), Mqtt(broker)
        reader.subscribe(name)
        lazy.tcp.sock.setsockopt(1, 8, 4_096)  # SOL_SOCKET, SO_RCVBUF
        lazy.subscribe(name)
        for number in range(3_000):
            publisher.publish(name, (b"%d" % number).ljust(4_000))
            assert got(reader) == number
        assert any(one["reason"] == "outbox_full" for one in get(broker, "/v1/stats").json["undeliverable"])
        numbers = [got(lazy) for _ in range(20)]
        assert numbers == list(range(20))


def test_an_alias_is_no_topic(broker: Broker) -> None:
    """MQTT 5: what follows has a property, and each is taken for what it says."""
    name = topic()
    publisher, subscriber = Mqtt(broker, version=5), Mqtt(broker, version=5)
    subscriber.subscribe(f"{name}/+")
    exchange(publisher, f"{name}/a", range(5), subscriber)
    publisher.send(Publish(f"{name}/b".encode(), b"5", properties={f.TOPIC_ALIAS: 1}))
    publisher.send(Publish(b"", b"6", properties={f.TOPIC_ALIAS: 1}))
    found = [subscriber.get() for _ in range(2)]
    assert [(one.topic, one.payload) for one in found] == [(f"{name}/b".encode(), b"5"), (f"{name}/b".encode(), b"6")]
