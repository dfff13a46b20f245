"""What is kept for typed clients with `sf` = 1 while they are away, across restarts and kills.

Much of it is in test_kept_much.py, UDP peers in test_kept_peers.py.
"""

from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path

import pytest

from flow.house import Broker, Udp, wait_for
from flow.keeping import HOW, KEPT, NOT_KEPT, Client, ended, subscribed
from flow.lasting import Home, PipePublisher, TypedReader, killed, numbered, send_all, wait_idle
from flow.peers import frozen, settled
from flow.test_pairs import NUMBERS, publish
from flow.wires import (
    datagram,
    fresh,
    identity,
    padded_publish,
    subscription,
    unsubscription,
)


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Home, Broker]]:
    home = Home(tmp_path_factory.mktemp("kept"), "[log]\nrecent_bytes = 1000000\n")
    with home.broker() as broker:
        yield home, broker


@pytest.fixture
def client(shared: tuple[Home, Broker]) -> Client:
    return Client(*shared)


# --- away and back ---


def test_what_is_published_while_away_comes_once_and_in_order(client: Client) -> None:
    topic = fresh()
    first = client.subscribed(topic)
    client.publish(topic, numbered(range(5)))
    first.wait(5)
    assert first.leave() == numbered(range(5))
    client.publish(topic, numbered(range(5, 10)))
    second = client.reader()
    second.wait(5)
    client.publish(topic, numbered(range(10, 15)))
    second.wait(10)
    assert second.leave() == numbered(range(5, 15))
    third = client.reader()
    client.publish(topic, [b"last"])
    assert third.wait(1) == [b"last"], "nothing comes again"


def test_the_order_across_topics_is_the_order_of_publishing(client: Client) -> None:
    topics = [fresh() for _ in range(4)]
    client.subscribed(*topics[:3]).leave()
    expected = []
    with PipePublisher(client.broker.ports["udp"]) as publisher:
        for number in range(3_000):
            topic = topics[number * number % 4]
            publisher.publish(topic, b"%d" % number)
            if topic in topics[:3]:
                expected.append((topic, b"%d" % number))
    back = client.reader()
    back.wait(len(expected))
    assert [(topic, content) for topic, _, content, _ in back.got] == expected


def test_what_comes_at_the_moment_of_leaving_is_not_lost(client: Client) -> None:
    """The client closes and others publish at once: the broker may hear of the message first."""
    broker, topic, name = client.broker, fresh(), client.name.decode()
    client.subscribed(topic).leave()
    publisher = broker.udp()
    for number in range(60):
        leaving = broker.tcp("typed")
        leaving.send(identity(client.name))
        broker.out.wait(f"New client {name} connected from 127.0.0.1:{leaving.address[1]}.")
        with frozen(broker) if number % 2 else nullcontext():
            leaving.sock.close()
            publisher.send(b"p%b;%d" % (topic, number))
        settled(broker)
        wait_for(lambda: broker.out.all[-1] == f"Client {name} disconnected.", "the end of the connection")
        back = client.reader()
        assert back.wait(1) == [b"%d" % number]
        assert back.leave() == [b"%d" % number]


def test_messages_of_every_dialect_come_with_their_type_and_source(tmp_path: Path) -> None:
    home = Home(tmp_path)
    with home.broker() as broker:
        subscribed(home, broker, b"v/t").leave()
        expected = []
        for dialect in ("soh", "pipe", "semicolon", "padded", "typed"):
            address = publish(broker, dialect, b"v/t", dialect.encode())
            expected.append((b"v/t", 3, dialect.encode(), address))
            settled(broker)
        publisher = broker.udp("typed")
        for kind, content, text in NUMBERS:
            publisher.send(datagram(b"v/t", content, kind))
            positive = b"\0" + content[1:] if text == b"0" else content
            expected.append((b"v/t", kind, positive.rstrip(b"\0"), publisher.address))
        wait_for(lambda: len(home.rows("offset")) >= len(expected), "the log")
        broker.stop()
    with home.broker() as broker:
        back = TypedReader(broker, b"C1")
        back.wait(len(expected))
        assert sorted(back.got) == sorted(expected)
        assert back.got[-len(NUMBERS) :] == expected[-len(NUMBERS) :]


def test_what_does_not_fit_typed_is_left_out_of_what_was_kept(tmp_path: Path) -> None:
    home = Home(tmp_path)
    with home.broker() as broker:
        subscribed(home, broker, b"t").leave()
        publisher = broker.tcp("padded")
        for payload in (b"a", b"with\0nul", b"x" * 1_501, b"y" * 1_500, b""):
            padded_publish(publisher, b"t", payload)
        assert TypedReader(broker, b"C1").wait(3) == [b"a", b"y" * 1_500, b""]
        broker.stop()
        assert broker.err.has("typed payload_nul 1")
        assert broker.err.has("typed too_long 1")


# --- sf ---


def test_without_sf_what_is_published_while_away_is_missed(client: Client) -> None:
    missed, kept = fresh(), fresh()
    first = client.reader(subscription(missed, 0), subscription(kept, 1))
    client.wait_saved(NOT_KEPT, 1)
    client.wait_saved(KEPT, 1)
    first.leave()
    for topic in (missed, kept):
        client.publish(topic, numbered(range(3), topic))
    back = client.reader()
    assert back.wait(3) == numbered(range(3), kept)
    for topic in (missed, kept):
        client.publish(topic, [b"live " + topic])
    assert sorted(back.wait(5)[3:]) == sorted([b"live " + kept, b"live " + missed]), "still subscribed to both"


def test_subscribing_again_updates_sf_and_delivers_once(client: Client) -> None:
    topic = fresh()
    for sf, kept in ((0, 0), (1, 1), (1, 1), (0, 0), (1, 1)):
        reader = client.reader(subscription(topic, sf))
        client.wait_saved(KEPT if sf else NOT_KEPT, 1)
        client.publish(topic, [b"live"])
        assert reader.wait(1) == [b"live"]
        reader.leave()
        client.publish(topic, [b"away"])
        back = client.reader()
        client.publish(topic, [b"back"])
        assert back.wait(kept + 1) == [b"away"] * kept + [b"back"]
        back.leave()


def test_changing_sf_under_load_delivers_each_message_once(client: Client) -> None:
    topic = fresh()
    reader = client.reader(subscription(topic, 0))
    client.wait_saved(NOT_KEPT, 1)
    payloads = numbered(range(6_000))
    with PipePublisher(client.broker.ports["udp"]) as publisher:
        for number, payload in enumerate(payloads):
            publisher.publish(topic, payload)
            if number % 50 == 0:
                reader.client.send(subscription(topic, number // 50 % 2))
    assert reader.wait(len(payloads)) == payloads


def test_sf_changed_while_much_is_still_to_come_loses_nothing(client: Client) -> None:
    topic, payloads = fresh(), numbered(range(25_000))
    client.subscribed(topic).leave()
    client.publish(topic, payloads)
    back = client.reader(subscription(topic, 0))
    assert back.wait(len(payloads)) == payloads
    client.publish(topic, [b"live"])
    assert back.wait(len(payloads) + 1)[-1] == b"live"
    client.wait_saved(NOT_KEPT, 1)
    back.leave()
    client.publish(topic, [b"missed"])
    again = client.reader()
    client.publish(topic, [b"last"])
    assert again.wait(1) == [b"last"]


def test_what_was_unsubscribed_does_not_come(client: Client) -> None:
    one, other, last = fresh(), fresh(), fresh()
    reader = client.subscribed(one, other)
    reader.client.send(unsubscription(one))
    client.wait_saved(KEPT, 1)
    reader.leave()
    for topic in (one, other):
        client.publish(topic, [topic])
    back = client.reader()
    assert back.wait(1) == [other]
    back.client.send(unsubscription(other))
    client.wait_saved(KEPT, 0)
    back.leave()
    for topic in (one, other):
        client.publish(topic, [topic])
    again = client.reader(subscription(last, 1))
    client.wait_saved(KEPT, 1)
    client.publish(last, [b"last"])
    assert again.wait(1) == [b"last"]


def test_a_topic_begins_with_its_subscription_and_not_before(client: Client) -> None:
    one, other = fresh(), fresh()
    for topic in (one, other):
        client.publish(topic, [b"before"])
    client.subscribed(one).leave()
    client.publish(one, [b"a"])
    client.publish(other, [b"before"])
    second = client.reader(subscription(other, 1))
    client.wait_saved(KEPT, 2)
    assert second.wait(1) == [b"a"]
    second.leave()
    client.publish(other, [b"b"])
    assert client.reader().wait(1) == [b"b"]


# --- restarts ---


@HOW
def test_what_is_kept_outlives_the_broker(tmp_path: Path, how: str) -> None:
    home = Home(tmp_path)
    broker = home.broker()
    client = TypedReader(broker, b"C1", subscription(b"t", 1), subscription(b"u", 1), subscription(b"missed", 0))
    home.wait_saved(KEPT, 2)
    home.wait_saved(NOT_KEPT, 1)
    send_all(broker, b"t", [b"0"])
    client.wait(1)
    client.leave()
    cursor = "SELECT * FROM sessions WHERE name = 'C1' AND cursor = 1"
    home.wait_saved(cursor, 1)
    expected = []
    for number in range(2):
        for topic in (b"t", b"missed", b"u"):
            send_all(broker, topic, [payload := b"%b %d" % (topic, number)])
            expected += [payload] if topic != b"missed" else []
        ended(broker, how)
        broker = home.broker()
    back = TypedReader(broker, b"C1")
    assert back.wait(len(expected)) == expected
    send_all(broker, b"missed", [b"live"])
    assert back.wait(len(expected) + 1)[-1] == b"live", "not kept, but still subscribed"
    back.leave()
    ended(broker, "stop")
    with home.broker() as broker:
        again = TypedReader(broker, b"C1")
        send_all(broker, b"t", [b"last"])
        assert again.wait(1) == [b"last"]


def test_what_nobody_acknowledges_does_not_gather_while_the_one_who_must_have_it_is_away(tmp_path: Path) -> None:
    """Also after a restart, and in a dialect without acknowledgements: a kill would cost what has gathered."""
    home = Home(tmp_path, "[log]\nlinger = 3600\n")
    with killed(home.broker()) as broker:
        assert subscribed(home, broker, b"t").leave() == []
        broker.udp().send(b"pt;first")
        wait_for(lambda: home.rows("payload") == [(b"first",)], "the first on disk")
    with killed(home.broker()) as broker:
        broker.udp().send(b"pt;second")
        wait_for(lambda: home.rows("payload") == [(b"first",), (b"second",)], "the second on disk")
    with home.broker() as broker:
        assert TypedReader(broker, b"C1").wait(2) == [b"first", b"second"]


@HOW
def test_a_client_that_is_connected_when_the_broker_ends_misses_nothing(tmp_path: Path, how: str) -> None:
    """After a kill some may come twice; after a stop none."""
    home = Home(tmp_path)
    got: list[list[int]] = []
    sent = 0
    broker = home.broker()
    subscribed(home, broker, b"t").leave()
    for _ in range(2):
        client = TypedReader(broker, b"C1")
        send_all(broker, b"t", [b"%d" % number for number in range(sent, sent + 5_000)])
        sent += 5_000
        ended(broker, how)
        wait_for(lambda client=client: client.error, "the end of the connection")
        got.append([int(content) for content in client.contents])
        broker = home.broker()
    client = TypedReader(broker, b"C1")
    send_all(broker, b"t", [b"%d" % sent])
    wait_for(lambda: client.contents and int(client.contents[-1]) == sent, "the last")
    got.append([int(content) for content in client.contents])
    ended(broker, "stop")
    reached = 0
    for numbers in got:
        if not numbers:
            continue
        assert numbers == list(range(numbers[0], numbers[-1] + 1)), "in order, within a connection"
        assert numbers[0] <= reached, f"{reached} to {numbers[0]} are missing"
        assert how == "kill" or numbers[0] == reached, f"{numbers[0]} to {reached} came twice"
        reached = numbers[-1] + 1
    assert reached == sent + 1


def test_a_client_that_does_not_read_while_the_broker_stops_gets_the_rest_afterwards(tmp_path: Path) -> None:
    """The broker waits for it for a while; then the last frame may be cut off, and comes again."""
    home = Home(tmp_path)
    payloads = numbered(range(10_000))
    with home.broker() as broker:
        subscribed(home, broker, b"t").leave()
        send_all(broker, b"t", payloads)
        client = TypedReader(broker, b"C1", reading=False)
        wait_idle(broker.process.pid)
        ended(broker, "stop")
        client.go_on()
        wait_for(lambda: client.error, "the end of the connection")
        assert 0 < len(client.got) < len(payloads)
    with home.broker() as broker:
        back = TypedReader(broker, b"C1")
        assert client.contents + back.wait(len(payloads) - len(client.got)) == payloads


def test_restarts_in_quick_succession_keep_the_cursor(tmp_path: Path) -> None:
    """A kill right after the start, before anything was saved anew."""
    home = Home(tmp_path)
    broker = home.broker()
    client = TypedReader(broker, b"C1", subscription(b"a", 0), subscription(b"t", 1))
    home.wait_saved(KEPT, 1)
    client.leave()
    send_all(broker, b"t", numbered(range(10)))
    for _ in range(2):
        broker.kill()
        broker = home.broker()
        Udp(broker.ports["udp"]).send(b"pnudge;x")
    broker.kill()
    with home.broker() as broker:
        assert TypedReader(broker, b"C1").wait(10) == numbered(range(10))
