import errno
import socket

import pytest

from client.brokers import tcp_broker, udp_broker, unused
from smbroker.client.address import Address
from smbroker.client.datagrams import BATCH, Datagrams, send_once
from smbroker.client.errors import ClientError


def test_an_address_is_shown_as_people_write_it() -> None:
    assert str(Address("127.0.0.1", 80)) == "127.0.0.1:80"
    assert str(Address("::1", 80)) == "[::1]:80"


def test_a_name_with_several_addresses_means_ipv4_first(monkeypatch: pytest.MonkeyPatch) -> None:
    with tcp_broker() as (broker, address):
        found = [
            (socket.AF_INET6, socket.SOCK_STREAM, 6, "", ("::1", address.port, 0, 0)),
            (socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", address.port)),
        ]
        monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: found)
        with Address("both", address.port).connected(socket.SOCK_STREAM) as made:
            assert made.family == socket.AF_INET
            assert broker.accept()[1] == made.getsockname()


@pytest.mark.parametrize(
    ("number", "code"),
    [
        (errno.ECONNREFUSED, "nobody_listens"),
        (errno.ETIMEDOUT, "no_answer"),
        (errno.ECONNRESET, "closed"),
        (errno.EPIPE, "closed"),
        (errno.ENETUNREACH, "network"),
    ],
)
def test_each_trouble_has_a_code_and_names_the_address(number: int, code: str) -> None:
    error = Address("host", 80).trouble(OSError(number, "text"))
    assert error.code == code
    assert "host:80" in error.text


def test_a_datagram_that_nobody_takes_is_noticed() -> None:
    with pytest.raises(ClientError) as caught:
        send_once(unused(socket.SOCK_DGRAM), b"x")
    assert caught.value.code == "nobody_listens"


def test_datagrams_come_in_batches_of_what_is_there() -> None:
    with udp_broker() as (broker, address):
        datagrams = Datagrams(address)
        datagrams.send(b"hello")
        _, client = broker.recvfrom(100)
        sent = [b"%d" % number for number in range(BATCH + 3)]
        for datagram in sent:
            broker.sendto(datagram, client)
        assert [datagrams.receive(), datagrams.receive()] == [sent[:BATCH], sent[BATCH:]]
        assert datagrams.receive(timeout=0) == []
        datagrams.close()


def test_a_datagram_from_somebody_else_is_not_heard() -> None:
    with udp_broker() as (broker, address), udp_broker() as (stranger, _):
        datagrams = Datagrams(address)
        datagrams.send(b"hello")
        _, client = broker.recvfrom(100)
        stranger.sendto(b"from a stranger", client)
        broker.sendto(b"from the broker", client)
        assert datagrams.receive() == [b"from the broker"]
        datagrams.close()
