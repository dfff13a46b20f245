"""Publishers that write faster than a subscriber reads: they wait for who keeps reading, and for nobody else."""

import threading
import time

import pytest

from flow.house import Broker
from flow.mqtt import Mqtt, topic
from smbroker.dialects.mqtt.packets import Publish
from smbroker.server.throttle import FAST, SLOW
from web.websocket import WebSocket

MIB = 1 << 20
FLOODS = 4  # a machine that stands still for a moment makes any subscriber look as if it did not read
SIZE = 80  # of a flood: MiB, five times as much as may wait for a subscriber
PAUSE = MIB / (1.6 * FAST)  # seconds after each MiB


def frames(payload: int, name: str) -> bytes:
    """A MiB."""
    one = Publish(name.encode(), b"x" * payload).encode(4)
    return one * (MIB // len(one))


def read(subscriber: Mqtt, most: int, pause: float = 0) -> int:
    """So many bytes, or what comes until nothing does; a pause after every MiB."""
    came = since = 0
    subscriber.tcp.sock.settimeout(2)
    while came < most:
        try:
            data = subscriber.tcp.sock.recv(MIB)
        except TimeoutError:
            break
        came, since = came + len(data), since + len(data)
        if since >= MIB:
            since = 0
            time.sleep(pause)
    return came


@pytest.mark.parametrize("payload", [20, 1_000])
def test_nothing_is_left_out_for_a_subscriber_that_is_only_a_moment_behind(payload: int) -> None:
    with Broker("--no-log", kinds=("mqtt",)) as broker:
        name = topic()
        publisher, subscriber = Mqtt(broker), Mqtt(broker)
        subscriber.subscribe(name)
        flood = frames(payload, name)
        for _ in range(FLOODS):
            sender = threading.Thread(target=publisher.tcp.send, args=(flood * SIZE,))
            sender.start()
            came = read(subscriber, SIZE * len(flood), PAUSE)
            sender.join()
            if came == SIZE * len(flood):
                return
            time.sleep(2 * SLOW)
        pytest.fail("something was left out each time")


@pytest.mark.parametrize("kind", ["mqtt", "web"])
def test_who_does_not_read_holds_up_nobody_for_long(kind: str) -> None:
    """Some of the floods go to it, a second subscriber has them all; and then it goes."""
    with Broker("--no-log", kinds=("mqtt", "web")) as broker:
        name, other = topic(), topic()
        publisher, second, reader = Mqtt(broker), Mqtt(broker), Mqtt(broker)
        sock = WebSocket(broker) if kind == "web" else broker.tcp(kind)
        deaf: Mqtt = Mqtt(broker, over=sock)
        deaf.subscribe(name)
        reader.subscribe(name, other)
        flood, beside = frames(1_000, name), frames(1_000, other)
        for _ in range(40):
            publisher.tcp.send(flood)
            assert read(reader, len(flood)) == len(flood)
            second.tcp.send(beside)
            assert read(reader, len(beside)) == len(beside)
        publisher.tcp.send(flood)
        sock.sock.close()
        assert read(reader, len(flood)) == len(flood)
        publisher.tcp.send(flood)
        assert read(reader, len(flood)) == len(flood)
