"""padded from end to end: every rule of its section in DIALECTS.md, with a real broker and plain sockets.

Keep-alive is in test_padded_alive.py, limits in test_padded_limits.py.
"""

import socket
import threading
from collections.abc import Callable, Iterator

import pytest

from flow.house import Broker
from flow.wires import (
    DISCONNECT,
    PING,
    PONG,
    PUBACK,
    SUBACK,
    alive,
    delivery,
    ended,
    fresh,
    gets_all,
    padded,
    padded_publish,
    padded_subscriber,
    publication,
    segments,
)


@pytest.fixture(scope="module", params=["log", "no log"])
def broker(request: pytest.FixtureRequest) -> Iterator[Broker]:
    with Broker(*(["--no-log"] if request.param == "no log" else [])) as broker:
        yield broker


# --- publish, subscribe, message ---


def test_a_publish_is_answered_by_the_command_alone(broker: Broker) -> None:
    client = broker.tcp("padded")
    client.send(publication(b"p/ack", b"hello"))
    assert client.receive(64) == b"PubAck" + b" " * 58
    assert alive(client)


def test_a_subscribe_is_answered_by_the_command_alone(broker: Broker) -> None:
    client = broker.tcp("padded")
    client.send(padded(b"Subscribe", b"p/sub"))
    assert client.receive(64) == b"SubAck" + b" " * 58
    assert alive(client)


def test_a_message_has_its_title_and_length(broker: Broker) -> None:
    subscriber = padded_subscriber(broker, b"p/message")
    padded_publish(broker.tcp("padded"), b"p/message", b"hello")
    expected = b"Message".ljust(64) + b"p/message".ljust(64) + b"5".ljust(64) + b"hello"
    assert subscriber.receive(197) == expected
    assert alive(subscriber)


@pytest.mark.parametrize("message", [b"", b"  spaces around  ", bytes(range(256)), b"Disconnect".ljust(64), b"\0"])
def test_a_message_is_taken_exactly(broker: Broker, message: bytes) -> None:
    title = fresh()
    client = padded_subscriber(broker, title)
    client.send(publication(title, message) + PING)
    assert gets_all(client, delivery(title, message), PUBACK, PONG)


@pytest.mark.parametrize("change", [bytes.lower, bytes.upper, bytes.swapcase, bytes.title], ids=lambda f: f.__name__)
def test_words_are_known_in_any_case_and_said_in_one(broker: Broker, change: Callable[[bytes], bytes]) -> None:
    client = broker.tcp("padded")
    title = b"p/case/" + change.__name__.encode()
    words = [b"Subscribe", b"Ping", b"Pong", b"Publish", b"Disconnect"]
    subscribe, ping, pong, publish, disconnect = (change(word).ljust(64) for word in words)
    client.send(subscribe + padded(title))
    assert client.receive(64) == SUBACK
    client.send(ping)
    assert client.receive(64) == PONG
    client.send(pong + publish + padded(title, b"1") + b"x")
    assert gets_all(client, PUBACK, delivery(title, b"x"))
    client.send(disconnect)
    assert client.closed()


def test_every_topic_has_its_own_acknowledgement_and_repeating_one_changes_nothing(broker: Broker) -> None:
    client = broker.tcp("padded")
    titles = (b"p/one", b"p/two", b"p/one", b"p/one")
    client.send(b"".join(padded(b"Subscribe", title) for title in titles))
    assert client.receive(4 * 64) == SUBACK * 4
    assert alive(client)
    publisher = broker.tcp("padded")
    for title in (b"p/one", b"p/two", b"p/three", b"p/one"):
        padded_publish(publisher, title, b"x")
    expected = delivery(b"p/one", b"x") + delivery(b"p/two", b"x") + delivery(b"p/one", b"x")
    assert client.receive(len(expected)) == expected
    assert alive(client)


def test_the_acknowledgement_comes_before_any_message(broker: Broker) -> None:
    title, publisher = fresh(), broker.tcp("padded")
    publishing = threading.Thread(target=publisher.send, args=(publication(title, b"x") * 5_000,))
    publishing.start()
    for _ in range(20):
        subscriber = broker.tcp("padded")
        subscriber.send(padded(b"Subscribe", title))
        assert subscriber.receive(64) == SUBACK
        padded_publish(broker.tcp("padded"), title, b"x")
        assert subscriber.receive(193) == delivery(title, b"x")
        subscriber.sock.close()
    publishing.join()
    assert publisher.receive(5_000 * 64) == PUBACK * 5_000


def test_a_message_comes_in_one_write(broker: Broker) -> None:
    subscriber = padded_subscriber(broker, b"p/write")
    publisher = broker.tcp("padded")
    for size in (0, 1, 1_000, 30_000):
        before = segments(subscriber.sock)
        padded_publish(publisher, b"p/write", b"x" * size)
        assert subscriber.receive(192 + size) == delivery(b"p/write", b"x" * size)
        assert segments(subscriber.sock) == before + 1


def test_a_publisher_that_subscribed_gets_its_own_message(broker: Broker) -> None:
    client = padded_subscriber(broker, b"p/own")
    client.send(publication(b"p/own", b"x"))
    assert gets_all(client, PUBACK, delivery(b"p/own", b"x"))


def test_wildcards_are_ordinary_characters(broker: Broker) -> None:
    client = padded_subscriber(broker, b"p/wild/#", b"p/wild/+", b"#")
    publisher = broker.tcp("padded")
    for title in (b"p/wild/x", b"p/wild", b"p/wild/#", b"p/wild/+", b"#"):
        padded_publish(publisher, title, b"x")
    expected = delivery(b"p/wild/#", b"x") + delivery(b"p/wild/+", b"x") + delivery(b"#", b"x")
    assert client.receive(len(expected)) == expected
    assert alive(client)


def test_what_no_title_can_say_does_not_reach_a_shorter_one(broker: Broker) -> None:
    long = b"p/" + b"t" * 62
    client = padded_subscriber(broker, long, b"p/space")
    other = broker.udp()
    assert other.ask(b"S|#") == b"Hello Subscriber!"
    for topic in (long + b"t", b"p/space ", b" p/space", long):
        other.send(b"P|%b|x" % topic)
        heard = {other.receive(), other.receive()}
        assert heard == {b"Hello Publisher!", b"TOPIC: %b - MESSAGE: x" % topic}, "others still get it"
    assert client.receive(193) == delivery(long, b"x")
    assert alive(client)


def test_what_was_published_just_before_closing_is_delivered(broker: Broker) -> None:
    subscriber = padded_subscriber(broker, b"p/bye")
    for number in range(20):
        publisher = broker.tcp("padded")
        publisher.send(publication(b"p/bye", b"%02d" % number))
        publisher.sock.close()
        assert subscriber.receive(194) == delivery(b"p/bye", b"%02d" % number)


def test_a_publisher_that_is_done_speaking_still_gets_its_answer(broker: Broker) -> None:
    for _ in range(10):
        publisher = broker.tcp("padded")
        publisher.send(publication(b"p/half", b"x"))
        publisher.sock.shutdown(socket.SHUT_WR)
        assert publisher.receive(64) == PUBACK
        assert publisher.closed()


# --- Disconnect ---


def test_disconnect_closes_without_a_reply_subscribers_and_publishers_alike(broker: Broker) -> None:
    staying = padded_subscriber(broker, b"p/leave")
    leaving = padded_subscriber(broker, b"p/leave")
    publisher = broker.tcp("padded")
    padded_publish(publisher, b"p/leave", b"1")
    for client in (staying, leaving):
        assert client.receive(193) == delivery(b"p/leave", b"1")
    leaving.send(DISCONNECT)
    assert leaving.closed()
    publisher.send(DISCONNECT)
    assert publisher.closed()
    padded_publish(broker.tcp("padded"), b"p/leave", b"2")
    assert staying.receive(193) == delivery(b"p/leave", b"2")


def test_what_came_before_a_disconnect_counts_and_what_came_after_does_not(broker: Broker) -> None:
    subscriber = padded_subscriber(broker, b"p/last")
    client = broker.tcp("padded")
    client.send(publication(b"p/last", b"1") + DISCONNECT + publication(b"p/last", b"2"))
    assert ended(client)
    padded_publish(broker.tcp("padded"), b"p/last", b"3")
    assert subscriber.receive(2 * 193) == delivery(b"p/last", b"1") + delivery(b"p/last", b"3")


def test_what_came_before_a_disconnect_is_acknowledged(broker: Broker) -> None:
    client = broker.tcp("padded")
    client.send(publication(b"p/acknowledged", b"1") + DISCONNECT)
    assert client.receive(64) == PUBACK
    assert client.closed()


# --- fields as the existing clients make them ---


def test_a_subscribe_of_66_bytes_is_understood(broker: Broker) -> None:
    client = broker.tcp("padded")
    client.send(b"Subscribe".ljust(66) + padded(b"p/66"))
    assert client.receive(64) == SUBACK
    client.send((b"Subscribe".ljust(66) + padded(b"p/67")) * 2)
    assert client.receive(128) == SUBACK * 2
    publisher = broker.tcp("padded")
    for title in (b"p/66", b"p/67"):
        padded_publish(publisher, title, b"x")
        assert client.receive(193) == delivery(title, b"x")


def test_fields_padded_to_64_characters_are_understood(broker: Broker) -> None:
    title = "p/größe €"
    field = title.ljust(64).encode()
    assert len(field) == 68
    client = broker.tcp("padded")
    client.send(b"Subscribe".ljust(66) + field)
    assert client.receive(64) == SUBACK
    publisher = broker.tcp("padded")
    for message in (b"x", b" y"):
        publisher.send(b"Publish".ljust(64) + field + b"%-64d" % len(message) + message)
        assert publisher.receive(64) == PUBACK
        expected = delivery(title.encode(), message)
        assert client.receive(len(expected)) == expected


def test_spaces_before_a_field_are_skipped(broker: Broker) -> None:
    client = broker.tcp("padded")
    client.send(b"  " + padded(b"Subscribe") + b"   " + padded(b"p/skip"))
    assert client.receive(64) == SUBACK
    client.send(b" " * 200 + padded(b"Publish") + b" " + padded(b"p/skip") + b" " * 65 + padded(b"3") + b" x ")
    assert gets_all(client, PUBACK, delivery(b"p/skip", b" x "))


def test_titles_of_64_bytes_and_with_spaces_within_are_kept_whole(broker: Broker) -> None:
    titles = (b"p/" + b"w" * 62, b"p/a  b")
    client = padded_subscriber(broker, *titles)
    publisher = broker.tcp("padded")
    for title in titles:
        padded_publish(publisher, title, b"x")
        assert client.receive(193) == delivery(title, b"x")


def test_commands_may_come_glued_together(broker: Broker) -> None:
    client = padded_subscriber(broker, b"p/glued")
    publisher = broker.tcp("padded")
    messages = [b"%d" % number * (number % 50) for number in range(500)]
    publisher.send(b"".join(publication(b"p/glued", message) + PING for message in messages))
    assert sorted(publisher.receive(64) for _ in range(1_000)) == [PONG] * 500 + [PUBACK] * 500
    expected = b"".join(delivery(b"p/glued", message) for message in messages)
    assert client.receive(len(expected)) == expected
    assert alive(client)


def test_commands_may_come_split_anywhere(broker: Broker) -> None:
    client = broker.tcp("padded")
    data = b"Subscribe".ljust(66) + padded(b"p/split") + publication(b"p/split", b"hello") + PING
    for position in range(len(data)):
        client.send(data[position : position + 1])
    assert client.receive(64) == SUBACK
    assert gets_all(client, PUBACK, PONG, delivery(b"p/split", b"hello"))
    for place in range(1, 197, 7):
        client.send(publication(b"p/split", b"hello")[:place])
        assert alive(broker.tcp("padded"))
        client.send(publication(b"p/split", b"hello")[place:])
        assert gets_all(client, PUBACK, delivery(b"p/split", b"hello"))


# --- lengths ---


LENGTHS = [
    ("characters, alone", 3, ["für"], "für"),
    ("characters, a known command glued to it", 3, ["für", PING], "für"),
    ("characters, of several bytes each", 4, ["€😀ü."], "€😀ü."),
    ("bytes, alone", 4, ["für"], "für"),
    ("bytes, a known command glued to it", 4, ["für", PING], "für"),
    ("bytes, a known command in other letters", 4, ["für", b"ping".ljust(64)], "für"),
    ("bytes, spaces and a known command", 4, ["für", b"  " + PING], "für"),
    ("bytes, and nothing after them", 3, ["fü"], "fü"),
    ("bytes that are no text", 3, [b"\xff\xfe\xfd", PING], b"\xff\xfe\xfd"),
]


@pytest.mark.parametrize(("length", "pieces", "expected"), [case[1:] for case in LENGTHS], ids=[c[0] for c in LENGTHS])
def test_a_length_is_bytes_or_characters(
    broker: Broker, length: int, pieces: list[str | bytes], expected: str | bytes
) -> None:
    title = fresh()
    subscriber = padded_subscriber(broker, title)
    client = broker.tcp("padded")
    message = b"".join(piece.encode() if isinstance(piece, str) else piece for piece in pieces)
    client.send(publication(title, message, length))
    payload = expected.encode() if isinstance(expected, str) else expected
    assert subscriber.receive(192 + len(payload)) == delivery(title, payload), "its own length is in bytes"
    assert gets_all(client, PUBACK, PONG) if len(pieces) == 2 else client.receive(64) == PUBACK
    assert alive(client)


def test_a_length_that_ends_within_a_character_waits_for_its_rest(broker: Broker) -> None:
    subscriber = padded_subscriber(broker, b"p/within")
    client = broker.tcp("padded")
    client.send(publication(b"p/within", "aé".encode()[:2], 2))
    assert alive(broker.tcp("padded"))
    client.send("é".encode()[1:])
    assert client.receive(64) == PUBACK
    assert subscriber.receive(195) == delivery(b"p/within", "aé".encode())


BAD_LENGTHS = [b"x", b"-1", b"1.5", b"+1", b"1 2", b"0x10", "٣".encode(), b"16777217", b"9" * 64]


@pytest.mark.parametrize("length", BAD_LENGTHS, ids=lambda length: ascii(length)[:20])
def test_a_bad_length_closes_the_connection_and_no_other(broker: Broker, length: bytes) -> None:
    title = fresh()
    other = padded_subscriber(broker, title)
    client = padded_subscriber(broker, title)
    client.send(padded(b"Publish", title, length))
    assert client.closed()
    padded_publish(broker.tcp("padded"), title, b"x")
    assert other.receive(193) == delivery(title, b"x")


@pytest.mark.parametrize("word", [b"Hello", b"Unsubscribe", b"PingPong", b"Ping me", b"\xff\0", b"x" * 64, b"Ping\n"])
def test_an_unknown_command_is_ignored(broker: Broker, word: bytes) -> None:
    title = fresh()
    client = padded_subscriber(broker, title)
    client.send(padded(word))
    assert alive(client)
    padded_publish(broker.tcp("padded"), title, b"x")
    assert client.receive(193) == delivery(title, b"x")


def test_a_title_that_is_no_topic_is_refused_warned_of_and_counted_and_the_connection_lives() -> None:
    with Broker() as broker:
        client = broker.tcp("padded")
        for title in (b"a\xff", b"a\0b"):
            client.send(padded(b"Subscribe", title))
            assert alive(client), "no SubAck"
            client.send(publication(title, DISCONNECT))
            assert alive(client), "no PubAck, and the message is no command"
        broker.err.wait(f"padded 127.0.0.1:{client.address[1]}: the topic is not UTF-8")
        broker.stop()
        assert broker.err.has("topic_not_utf8 2")
        assert broker.err.has("topic_nul 2")
