"""What is kept for typed clients with `sf` = 1 while they are away, across restarts and kills.

Much of it is in test_kept_much.py, UDP peers in test_kept_peers.py.
"""

from contextlib import nullcontext
from pathlib import Path

from flow.house import Udp, wait_for
from flow.keeping import HOW, KEPT, NOT_KEPT, ended, subscribed
from flow.lasting import Home, PipePublisher, TypedReader, numbered, send_all, wait_idle
from flow.peers import frozen, settled
from flow.test_pairs import NUMBERS, publish
from flow.wires import (
    datagram,
    identity,
    padded_publish,
    subscription,
    unsubscription,
)

# --- away and back ---


def test_what_is_published_while_away_comes_once_and_in_order(tmp_path: Path) -> None:
    home = Home(tmp_path)
    with home.broker() as broker:
        first = subscribed(home, broker, b"t")
        send_all(broker, b"t", numbered(range(5)))
        first.wait(5)
        assert first.leave() == numbered(range(5))
        send_all(broker, b"t", numbered(range(5, 10)))
        second = TypedReader(broker, b"C1")
        second.wait(5)
        send_all(broker, b"t", numbered(range(10, 15)))
        second.wait(10)
        assert second.leave() == numbered(range(5, 15))
        third = TypedReader(broker, b"C1")
        send_all(broker, b"t", [b"last"])
        assert third.wait(1) == [b"last"], "nothing comes again"


def test_the_order_across_topics_is_the_order_of_publishing(tmp_path: Path) -> None:
    home = Home(tmp_path)
    topics = [b"a", b"b/b", b"c", b"not/mine"]
    with home.broker() as broker:
        subscribed(home, broker, *topics[:3]).leave()
        expected = []
        with PipePublisher(broker.ports["udp"]) as publisher:
            for number in range(3_000):
                topic = topics[number * number % 4]
                publisher.publish(topic, b"%d" % number)
                if topic in topics[:3]:
                    expected.append((topic, b"%d" % number))
        back = TypedReader(broker, b"C1")
        back.wait(len(expected))
        assert [(topic, content) for topic, _, content, _ in back.got] == expected


def test_what_comes_at_the_moment_of_leaving_is_not_lost(tmp_path: Path) -> None:
    """The client closes and others publish at once: the broker may hear of the message first."""
    home = Home(tmp_path)
    with home.broker() as broker:
        subscribed(home, broker, b"t").leave()
        publisher = broker.udp()
        for number in range(60):
            client = broker.tcp("typed")
            client.send(identity(b"C1"))
            broker.out.wait(f"New client C1 connected from 127.0.0.1:{client.address[1]}.")
            with frozen(broker) if number % 2 else nullcontext():
                client.sock.close()
                publisher.send(b"pt;%d" % number)
            settled(broker)
            wait_for(lambda: broker.out.all[-1] == "Client C1 disconnected.", "the end of the connection")
            back = TypedReader(broker, b"C1")
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


def test_without_sf_what_is_published_while_away_is_missed(tmp_path: Path) -> None:
    home = Home(tmp_path)
    with home.broker() as broker:
        client = TypedReader(broker, b"C1", subscription(b"missed", 0), subscription(b"kept", 1))
        home.wait_saved(NOT_KEPT, 1)
        home.wait_saved(KEPT, 1)
        client.leave()
        for topic in (b"missed", b"kept"):
            send_all(broker, topic, numbered(range(3), topic))
        back = TypedReader(broker, b"C1")
        assert back.wait(3) == numbered(range(3), b"kept")
        for topic in (b"missed", b"kept"):
            send_all(broker, topic, [b"live " + topic])
        assert sorted(back.wait(5)[3:]) == [b"live kept", b"live missed"], "still subscribed to both"


def test_subscribing_again_updates_sf_and_delivers_once(tmp_path: Path) -> None:
    home = Home(tmp_path)
    with home.broker() as broker:
        for sf, kept in ((0, 0), (1, 1), (1, 1), (0, 0), (1, 1)):
            client = TypedReader(broker, b"C1", subscription(b"t", sf))
            home.wait_saved(KEPT if sf else NOT_KEPT, 1)
            send_all(broker, b"t", [b"live"])
            assert client.wait(1) == [b"live"]
            client.leave()
            send_all(broker, b"t", [b"away"])
            back = TypedReader(broker, b"C1")
            send_all(broker, b"t", [b"back"])
            assert back.wait(kept + 1) == [b"away"] * kept + [b"back"]
            back.leave()


def test_changing_sf_under_load_delivers_each_message_once(tmp_path: Path) -> None:
    home = Home(tmp_path)
    with home.broker() as broker:
        client = TypedReader(broker, b"C1", subscription(b"t", 0))
        home.wait_saved(NOT_KEPT, 1)
        payloads = numbered(range(6_000))
        with PipePublisher(broker.ports["udp"]) as publisher:
            for number, payload in enumerate(payloads):
                publisher.publish(b"t", payload)
                if number % 50 == 0:
                    client.client.send(subscription(b"t", number // 50 % 2))
        assert client.wait(len(payloads)) == payloads


def test_sf_changed_while_much_is_still_to_come_loses_nothing(tmp_path: Path) -> None:
    home = Home(tmp_path)
    payloads = numbered(range(25_000))
    with home.broker() as broker:
        subscribed(home, broker, b"t").leave()
        send_all(broker, b"t", payloads)
        back = TypedReader(broker, b"C1", subscription(b"t", 0))
        assert back.wait(len(payloads)) == payloads
        send_all(broker, b"t", [b"live"])
        assert back.wait(len(payloads) + 1)[-1] == b"live"
        home.wait_saved(NOT_KEPT, 1)
        back.leave()
        send_all(broker, b"t", [b"missed"])
        again = TypedReader(broker, b"C1")
        send_all(broker, b"t", [b"last"])
        assert again.wait(1) == [b"last"]


def test_what_was_unsubscribed_does_not_come(tmp_path: Path) -> None:
    home = Home(tmp_path)
    with home.broker() as broker:
        client = subscribed(home, broker, b"t", b"u")
        client.client.send(unsubscription(b"t"))
        home.wait_saved(KEPT, 1)
        client.leave()
        for topic in (b"t", b"u"):
            send_all(broker, topic, [topic])
        back = TypedReader(broker, b"C1")
        assert back.wait(1) == [b"u"]
        back.client.send(unsubscription(b"u"))
        home.wait_saved(KEPT, 0)
        back.leave()
        for topic in (b"t", b"u"):
            send_all(broker, topic, [topic])
        again = TypedReader(broker, b"C1", subscription(b"last", 1))
        home.wait_saved(KEPT, 1)
        send_all(broker, b"last", [b"last"])
        assert again.wait(1) == [b"last"]


def test_a_topic_begins_with_its_subscription_and_not_before(tmp_path: Path) -> None:
    home = Home(tmp_path)
    with home.broker() as broker:
        send_all(broker, b"a", [b"before"])
        send_all(broker, b"b", [b"before"])
        subscribed(home, broker, b"a").leave()
        send_all(broker, b"a", [b"a"])
        send_all(broker, b"b", [b"before"])
        second = TypedReader(broker, b"C1", subscription(b"b", 1))
        home.wait_saved(KEPT, 2)
        assert second.wait(1) == [b"a"]
        second.leave()
        send_all(broker, b"b", [b"b"])
        assert TypedReader(broker, b"C1").wait(1) == [b"b"]


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
