"""Many at once, and what the idle ones cost: the two figures here are requirements, so they are asserted."""

import os
import resource
import time
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path

import pytest

from flow.house import Broker, Tcp, Udp, wait_for
from flow.mqtt import Mqtt
from flow.wires import (
    FRAME,
    SUBACK,
    alive,
    answers,
    datagram,
    delivery,
    frame,
    fresh,
    identity,
    padded,
    padded_publish,
    subscription,
)
from smbroker.dialects.mqtt.packets import Connack, Connect, Results, Subscribe, Topics

TCP_SUBSCRIBERS = 1_000  # of each dialect
UDP_SUBSCRIBERS = 10_000
MEMORY_PER_CONNECTION = 20_000  # bytes
IDLE_CPU = 0.01  # of one processor
IDLE_SECONDS = 5.0  # at least; the longer the better

_numbers = count()


@pytest.fixture(scope="module", autouse=True)
def _many_descriptors() -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard < UDP_SUBSCRIBERS + 3_000:
        pytest.skip(f"this process may open {hard} files only")
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def silent(broker: Broker, kind: str) -> list[Tcp]:
    """Connections that say nothing; all accepted."""
    clients = [broker.tcp(kind) for _ in range(TCP_SUBSCRIBERS)]
    last = broker.tcp(kind)
    if kind == "typed":
        last.send(b"\0" * 11)
        assert last.closed()
    else:
        assert alive(last)
    last.sock.close()
    return clients


def padded_subscribers(broker: Broker, title: bytes) -> list[Tcp]:
    clients = [broker.tcp("padded") for _ in range(TCP_SUBSCRIBERS)]
    for client in clients:
        client.send(padded(b"Subscribe", title))
    for client in clients:
        assert client.receive(64) == SUBACK
    return clients


def typed_subscribers(broker: Broker, topic: bytes) -> list[Tcp]:
    """Each answered by its line on the console."""
    clients = {f"S{next(_numbers)}": broker.tcp("typed") for _ in range(TCP_SUBSCRIBERS)}
    for name, client in clients.items():
        client.send(identity(name.encode()) + subscription(topic))
    wait_for(lambda: clients.keys() <= connected(broker), "all to be connected")
    return list(clients.values())


def connected(broker: Broker) -> set[str]:
    return {line.split()[2] for line in broker.out.all if line.startswith("New client ")}


class Crowd:
    """A broker with a thousand idle connections of each dialect, all subscribed."""

    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        self.clients = padded_subscribers(broker, b"crowd/padded") + typed_subscribers(broker, b"crowd/typed")
        self.before = processor_seconds(broker)
        self.since = time.monotonic()


def processor_seconds(broker: Broker) -> float:
    fields = Path(f"/proc/{broker.process.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@pytest.fixture(scope="module", autouse=True)
def crowd(_many_descriptors: None) -> Iterator[Crowd]:
    """Begins to idle before the other tests, so that there is much to measure after them."""
    with Broker() as broker:
        yield Crowd(broker)


# --- everyone gets the message ---


@pytest.mark.parametrize("options", [(), ("--no-log",)], ids=["log", "no log"])
def test_a_thousand_tcp_subscribers_of_each_dialect_get_a_message(options: tuple[str, ...]) -> None:
    with Broker(*options) as broker:
        topic = fresh()
        padded_clients, typed_clients = padded_subscribers(broker, topic), typed_subscribers(broker, topic)
        publisher = broker.udp("typed")
        for content in (b"first", b"second"):
            publisher.send(datagram(topic, content))
            for client in padded_clients:
                assert client.receive(192 + len(content)) == delivery(topic, content)
            for client in typed_clients:
                assert client.receive(FRAME) == frame(topic, content, publisher.address)


SPOKEN = [  # subscribe, answer, message
    (b"Smany/x", b"Amany/x", b"\x01many/x\x02hello"),
    (b"S|many/x", b"Hello Subscriber!", b"TOPIC: many/x - MESSAGE: hello"),
    (b"smany/x", b"", b"many/x;hello"),
]


def test_ten_thousand_udp_subscribers_get_a_message() -> None:
    with Broker("-s", str(UDP_SUBSCRIBERS)) as broker:
        clients = [broker.udp() for _ in range(UDP_SUBSCRIBERS)]
        publisher = broker.udp()
        spoken = [SPOKEN[number % 3] for number in range(UDP_SUBSCRIBERS)]
        for number, (client, (subscribe, _, _)) in enumerate(zip(clients, spoken, strict=True)):
            client.send(subscribe)
            if number % 500 == 499:  # so that none is lost
                answers(publisher)
        answers(publisher)
        for client, (_, answer, _) in zip(clients, spoken, strict=True):
            assert not answer or client.receive() == answer
        start = time.monotonic()
        padded_publish(broker.tcp("padded"), b"many/x", b"hello")
        for client, (_, _, message) in zip(clients, spoken, strict=True):
            assert client.receive() == message
        print(f"{UDP_SUBSCRIBERS} subscribers had it after {time.monotonic() - start:.2f} s")
        assert nothing_more(clients)


def nothing_more(clients: list[Udp]) -> bool:
    for client in clients:
        client.sock.setblocking(False)
        try:
            client.sock.recv(1)
        except BlockingIOError:
            continue
        return False
    return True


# --- what idle connections cost ---

COSTS: list[tuple[str, Callable[[Broker], list[Tcp]]]] = [
    ("padded, silent", lambda broker: silent(broker, "padded")),
    ("typed, silent", lambda broker: silent(broker, "typed")),
    ("tcp, silent", lambda broker: silent(broker, "tcp")),
    ("padded, subscribed", lambda broker: padded_subscribers(broker, fresh())),
    ("typed, subscribed", lambda broker: typed_subscribers(broker, fresh())),
]


def test_an_idle_connection_costs_less_than_20_kb() -> None:
    with Broker() as broker:
        padded_publish(broker.tcp("padded"), fresh(), b"x")
        for name, connect in COSTS:
            before = broker.memory()
            connect(broker)
            cost = (broker.memory() - before) / TCP_SUBSCRIBERS
            print(f"{name}: {cost:,.0f} bytes per connection")
            assert cost < MEMORY_PER_CONNECTION, name


@pytest.mark.parametrize(("qos", "lasting"), [(0, False), (1, True)], ids=["QoS 0", "a session"])
def test_an_mqtt_client_costs_less_than_20_kb(qos: int, lasting: bool) -> None:
    """Connected, with a subscription."""
    with Broker(kinds=("mqtt",)) as broker:
        Mqtt(broker, "first", clean=not lasting).subscribe("a/+", qos=qos)
        before = broker.memory()
        clients = [Mqtt(broker, connect=False) for _ in range(TCP_SUBSCRIBERS)]
        for number, client in enumerate(clients):
            client.send(Connect(4, f"client{number}", not lasting))
            client.send(Subscribe(1, [Topics(b"a/+", qos)]))
        for client in clients:
            assert client.expect(Connack).code == 0
            assert client.expect(Results).codes == [qos]
        cost = (broker.memory() - before) / TCP_SUBSCRIBERS
        print(f"{cost:,.0f} bytes per client")
        assert cost < MEMORY_PER_CONNECTION
        Mqtt(broker, "publisher").publish("a/b", b"x", 1)
        assert all(client.get().payload == b"x" for client in clients)


def test_idle_costs_less_than_a_percent_of_a_processor(crowd: Crowd) -> None:
    """Over all that has passed since; after 10 s that includes asking every padded client whether it is there."""
    wait_for(lambda: time.monotonic() - crowd.since > IDLE_SECONDS)
    seconds = time.monotonic() - crowd.since
    share = (processor_seconds(crowd.broker) - crowd.before) / seconds
    print(f"{len(crowd.clients)} idle connections: {share:.2%} of a processor over {seconds:.0f} s")
    assert share < IDLE_CPU


@pytest.mark.parametrize("qos", [0, 1])
def test_a_client_has_as_many_subscriptions_as_it_may(qos: int) -> None:
    """Each costs the same: if it cost more the more there are, this would take hours."""
    with Broker(kinds=("mqtt",)) as broker:
        client = Mqtt(broker)
        for first in range(0, 20_000, 1_000):
            filters = (
                f"many/{number}/+" if number % 10 else f"many/{number}" for number in range(first, first + 1_000)
            )
            assert client.subscribe(*filters, qos=qos) == [qos] * 1_000
        Mqtt(broker, "another").publish("many/19999/x", b"here")
        assert client.get().payload == b"here"
