from contextlib import closing

import pytest

from client.brokers import tcp_broker, udp_broker
from smbroker.client import typed
from smbroker.client.errors import ClientError
from smbroker.client.typed import Received, Subscriber
from smbroker.model.errors import ProtocolError, Refused
from smbroker.model.message import Kind

FRAME = b"t".ljust(50, b"\0") + b"\x03" + b"x".ljust(1500, b"\0") + b"10.0.0.7".ljust(16, b"\0") + b"\x00\x50\r"


def test_a_publish_is_one_datagram() -> None:
    with udp_broker() as (broker, address):
        typed.publish(address, b"t", b"7\n", Kind.INT)
        assert broker.recv(2_000) == b"t".ljust(50, b"\0") + b"\x00\x00\x00\x00\x00\x07"
        typed.publish(address, b"t", b"7\n")
        assert broker.recv(2_000) == b"t".ljust(50, b"\0") + b"\x037\n"


def test_messages_are_put_together_however_they_are_cut() -> None:
    with tcp_broker() as (broker, address), closing(Subscriber(address, "C1")) as subscriber:
        connection, _ = broker.accept()
        connection.sendall(FRAME + FRAME[:-1])
        got = []
        while not got:
            got += subscriber.receive()
        assert got == [Received("10.0.0.7", 80, b"t", Kind.STRING, "x")]
        connection.sendall(FRAME[-1:])
        while len(got) < 2:
            got += subscriber.receive()
        connection.close()
        with pytest.raises(ClientError) as caught:
            subscriber.receive()
        assert caught.value.code == "closed"


def test_what_is_no_message_is_an_error() -> None:
    with tcp_broker() as (broker, address), closing(Subscriber(address, "C1")) as subscriber:
        broker.accept()[0].sendall(b"x" * len(FRAME))
        with pytest.raises(ProtocolError):
            list(iter(subscriber.receive, None))


@pytest.mark.parametrize("client", ["", "12345678901"])
def test_an_id_that_typed_cannot_say_is_refused(client: str) -> None:
    with tcp_broker() as (_, address), pytest.raises(Refused):
        Subscriber(address, client)
