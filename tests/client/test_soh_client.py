import inspect
from collections.abc import Iterator
from contextlib import closing
from socket import SOCK_DGRAM, socket

import pytest

from client.brokers import SHORT, udp_broker, unused
from smbroker.client import soh
from smbroker.client.errors import ClientError
from smbroker.client.soh import Ack, Event, Message, Note, Subscriber
from smbroker.model.errors import Refused


def told(events: Iterator[list[Event]]) -> Event:
    """The next event that is no Note."""
    return next(event for batch in events for event in batch if not isinstance(event, Note))


def client_that_sent(wanted: bytes, broker: socket) -> tuple[str, int] | None:
    """Who sent this to the broker, if it has come yet."""
    try:
        while True:
            datagram, client = broker.recvfrom(100)
            if datagram == wanted:
                return str(client[0]), int(client[1])
    except BlockingIOError:
        return None


def test_it_asks_again_until_the_ack_comes_and_then_no_more() -> None:
    with udp_broker() as (broker, address), closing(Subscriber(address, [b"a/b"], ack_timeout=SHORT)) as subscriber:
        events = subscriber.events()
        for _ in range(3):
            assert next(events) == [Note(f"no answer from {address} in 0.05 s; asking again")]
            datagram, client = broker.recvfrom(100)
            assert datagram == b"Sa/b"
        broker.sendto(b"Aa/b", client)
        assert told(events) == Ack(b"a/b")
        broker.sendto(b"\x01a/b\x02m", client)
        assert told(events) == Message(b"a/b", b"m")
        assert not subscriber._pending


def test_only_what_is_not_acknowledged_is_asked_for_again() -> None:
    topics = [b"a/b", b"c/d"]
    with udp_broker() as (broker, address), closing(Subscriber(address, topics, ack_timeout=SHORT)) as subscriber:
        broker.sendto(b"Aa/b", subscriber._datagrams._socket.getsockname())
        events = subscriber.events()
        assert next(events) == [Ack(b"a/b")]
        assert [type(next(events)[0]) for _ in range(2)] == [Note, Note]
        assert [broker.recv(100) for _ in range(3)] == [b"Sa/b", b"Sc/d", b"Sc/d"]


def test_a_second_ack_of_the_same_topic_is_no_news() -> None:
    with udp_broker() as (broker, address), closing(Subscriber(address, [b"a/b", b"c/d"])) as subscriber:
        client = subscriber._datagrams._socket.getsockname()
        for datagram in (b"Aa/b", b"Aa/b", b"Ac/d", b"Ac/d", b"\x01a/b\x02m"):
            broker.sendto(datagram, client)
        events = subscriber.events()
        assert [told(events) for _ in range(3)] == [Ack(b"a/b"), Ack(b"c/d"), Message(b"a/b", b"m")]


@pytest.mark.parametrize(
    ("subscription", "topic"), [(b"a/#", b"a/x/y"), (b"#/b", b"x/b"), (b"#/#", b"x/y"), (b"a", b"a/x"), (b"#", b"x/y")]
)
def test_a_message_that_a_wildcard_matches_counts_as_its_ack(subscription: bytes, topic: bytes) -> None:
    with udp_broker() as (broker, address), closing(Subscriber(address, [subscription])) as subscriber:
        broker.sendto(b"\x01" + topic + b"\x02m", subscriber._datagrams._socket.getsockname())
        events = subscriber.events()
        assert next(events) == [Ack(subscription), Message(topic, b"m")]


def test_what_is_good_gets_out_before_what_is_not_ends_it() -> None:
    with udp_broker() as (broker, address), closing(Subscriber(address, [b"a/b", b"c/d"])) as subscriber:
        for datagram in (b"\x01a/b\x02m", b"\x01x/y\x02m"):
            broker.sendto(datagram, subscriber._datagrams._socket.getsockname())
        events = subscriber.events()
        assert next(events) == [Ack(b"a/b"), Message(b"a/b", b"m")]
        with pytest.raises(ClientError) as caught:
            next(events)
        assert caught.value.code == "mismatch"


def test_a_datagram_that_is_no_soh_is_no_ack() -> None:
    with udp_broker() as (broker, address), closing(Subscriber(address, [b"a/b"])) as subscriber:
        broker.sendto(b"nonsense", subscriber._datagrams._socket.getsockname())
        with pytest.raises(ClientError) as caught:
            next(subscriber.events())
        assert caught.value.code == "mismatch"


def test_once_subscribed_a_datagram_that_is_no_soh_is_noted_and_ignored() -> None:
    with udp_broker() as (broker, address), closing(Subscriber(address, [b"a/b"])) as subscriber:
        events = subscriber.events()
        client = subscriber._datagrams._socket.getsockname()
        broker.sendto(b"Aa/b", client)
        assert next(events) == [Ack(b"a/b")]
        for datagram in (b"nonsense", b"", b"\x01a/b\x02m"):
            broker.sendto(datagram, client)
        got: list[Event] = []
        while len(got) < 3:
            got += next(events)
        assert [type(event) for event in got] == [Note, Note, Message]


def test_it_finds_a_broker_that_starts_later() -> None:
    address = unused(SOCK_DGRAM)
    with closing(Subscriber(address, [b"a/b", b"c/d"], ack_timeout=SHORT)) as subscriber:
        events = subscriber.events()
        [note] = next(events)
        assert isinstance(note, Note)
        assert note.text.startswith(f"nobody listens on {address}")
        with udp_broker(address.port) as (broker, _):
            broker.setblocking(False)
            while (client := client_that_sent(b"Sc/d", broker)) is None:
                next(events)  # comes at the latest when it is time to ask again
            broker.sendto(b"Ac/d", client)
            assert told(events) == Ack(b"c/d")


def test_a_topic_that_soh_cannot_say_is_refused() -> None:
    with udp_broker() as (_, address), pytest.raises(Refused):
        Subscriber(address, [b"a/"])


def test_the_default_is_15_seconds() -> None:
    assert inspect.signature(Subscriber).parameters["ack_timeout"].default == 15
    assert soh.ACK_TIMEOUT == 15
