import inspect
import socket
from queue import Queue
from threading import Thread

import pytest

from client.brokers import PATIENCE, SHORT, tcp_broker
from smbroker.client import padded
from smbroker.client.errors import ClientError
from smbroker.client.padded import Ended, Event, Message, Subscribed, Subscriber
from smbroker.model.errors import Refused

SUBACK = b"SubAck".ljust(64)


def test_a_publish_without_an_ack_has_failed() -> None:
    with tcp_broker() as (_, address), pytest.raises(ClientError) as caught:
        padded.publish(address, b"t", b"m", ack_timeout=SHORT)
    assert (caught.value.code, caught.value.text) == ("no_answer", "no PubAck within 0.05 s; the publish failed")


def test_pings_do_not_put_off_the_end_of_a_publish() -> None:
    def ping_forever(connection: socket.socket) -> None:
        try:
            while True:
                connection.sendall(b"Ping".ljust(64))
                connection.recv(64)
        except OSError:
            pass

    with tcp_broker() as (broker, address):
        pinging = Thread(target=lambda: ping_forever(broker.accept()[0]), daemon=True)
        pinging.start()
        with pytest.raises(ClientError) as caught:
            padded.publish(address, b"t", b"m", ack_timeout=SHORT)
        assert caught.value.code == "no_answer"
        pinging.join(PATIENCE)


def running(subscriber: Subscriber) -> "Queue[Event]":
    events: Queue[Event] = Queue()
    Thread(target=subscriber.run, args=(events.put,), daemon=True).start()
    return events


def test_a_subscription_without_an_ack_has_failed_and_leaves() -> None:
    with tcp_broker() as (broker, address):
        subscriber = Subscriber(address, b"t", ack_timeout=SHORT)
        connection, _ = broker.accept()
        assert running(subscriber).get(timeout=PATIENCE) == Ended(b"t", "no SubAck within 0.05 s; subscribing failed")
        connection.settimeout(PATIENCE)
        heard = b"".join(iter(lambda: connection.recv(1_000), b""))
        assert heard == b"Subscribe".ljust(64) + b"t".ljust(64) + b"Disconnect".ljust(64)


def test_once_acknowledged_there_is_no_limit() -> None:
    with tcp_broker() as (broker, address):
        subscriber = Subscriber(address, b"t", ack_timeout=PATIENCE)
        subscriber._deadline = 0.0  # long ago
        connection, _ = broker.accept()
        subscriber._replies._decoder.feed(SUBACK)
        events = running(subscriber)
        assert events.get(timeout=PATIENCE) == Subscribed(b"t")
        connection.sendall(b"Message".ljust(64) + b"t".ljust(64) + b"1".ljust(64) + b"m")
        assert events.get(timeout=PATIENCE) == Message(b"t", b"m")
        connection.close()
        assert events.get(timeout=PATIENCE) == Ended(b"t", f"the broker at {address} closed the connection")


def test_closing_ends_the_thread_that_receives() -> None:
    with tcp_broker() as (broker, address):
        subscriber = Subscriber(address, b"t")
        connection, _ = broker.accept()
        connection.sendall(SUBACK)
        events = running(subscriber)
        assert events.get(timeout=PATIENCE) == Subscribed(b"t")
        subscriber.close()
        assert isinstance(events.get(timeout=PATIENCE), Ended)
        subscriber.close()


def test_a_title_that_padded_cannot_say_is_refused_before_anything_is_sent() -> None:
    with tcp_broker() as (broker, address):
        with pytest.raises(Refused):
            Subscriber(address, b"t" * 65)
        with pytest.raises(Refused):
            padded.publish(address, b"t" * 65, b"m")
        broker.setblocking(False)
        with pytest.raises(BlockingIOError):
            broker.accept()


@pytest.mark.parametrize("waiting", [padded.publish, Subscriber])
def test_the_default_is_10_seconds(waiting: object) -> None:
    assert inspect.signature(waiting).parameters["ack_timeout"].default == 10  # type: ignore[arg-type]
    assert padded.ACK_TIMEOUT == 10
