"""Listeners: `KIND://HOST:PORT` to sockets, and what is said where that cannot be."""

import socket
from contextlib import closing

import pytest

from smbroker.model.errors import UsageError
from smbroker.model.message import Dialect
from smbroker.server.config import Config, SemicolonConfig
from smbroker.server.listeners import SERVICE_KINDS, TCP_KINDS, UDP_KINDS, Bound, Endpoint, bind, decoders, endpoint


def bound(text: str) -> Bound:
    return bind(endpoint(text), Config())


def close(one: Bound) -> None:
    for sock in (one.stream, one.datagram):
        if sock:
            sock.close()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("udp://127.0.0.1:8080", Endpoint("udp", "127.0.0.1", 8080)),
        ("typed://localhost:0", Endpoint("typed", "localhost", 0)),
        ("tcp://[::1]:65535", Endpoint("tcp", "::1", 65_535)),
        ("soh://0.0.0.0:1/", Endpoint("soh", "0.0.0.0", 1)),
    ],
)
def test_an_endpoint_is_kind_host_and_port(text: str, expected: Endpoint) -> None:
    assert endpoint(text) == expected
    assert str(expected) == text.rstrip("/")


NOT_ENDPOINTS = [
    "udp",
    "udp://",
    "udp://h",
    "udp://h:",
    "udp://h:x",
    "udp://h:-1",
    "udp://h:65536",
    "udp://:1",
    "udp:h:1",
    "udp://::1:1",
    "udp://[::1:1",
    "udp://a/b:1",
    "udp://h:1/x",
    "UDP://h:1",
]


@pytest.mark.parametrize("text", ["", " udp://h:1", "udp://h:1\n", *" ".join(NOT_ENDPOINTS).split()])
def test_what_is_no_endpoint_is_repeated_with_an_example(text: str) -> None:
    with pytest.raises(UsageError) as raised:
        endpoint(text)
    assert raised.value.text.startswith(f"--listen {text}: not of the form KIND://HOST:PORT")


def test_an_unknown_kind_is_told_with_those_there_are() -> None:
    with pytest.raises(UsageError) as raised:
        endpoint("morse://127.0.0.1:0")
    for kind in ("morse", "udp", "soh", "pipe", "semicolon", "padded", "typed", "tcp", "web"):
        assert kind in raised.value.text


@pytest.mark.parametrize("kind", [*UDP_KINDS, *TCP_KINDS, *SERVICE_KINDS])
def test_port_0_takes_a_free_one_and_each_kind_has_its_sockets(kind: str) -> None:
    one = bound(f"{kind}://127.0.0.1:0")
    try:
        assert one.endpoint.port > 0
        assert (one.datagram is not None, one.stream is not None) == (
            kind in UDP_KINDS,
            kind in TCP_KINDS or kind in SERVICE_KINDS,
        )
        for sock in (one.datagram, one.stream):
            if sock:
                assert sock.getsockname() == ("127.0.0.1", one.endpoint.port)
                assert not sock.getblocking()
    finally:
        close(one)


def test_a_port_that_is_taken_is_named_with_what_to_do() -> None:
    for kind in ("udp", "soh", "padded", "typed", "tcp"):
        one = bound(f"{kind}://127.0.0.1:0")
        port = one.endpoint.port
        try:
            with pytest.raises(UsageError) as raised:
                bound(f"{kind}://127.0.0.1:{port}")
        finally:
            close(one)
        assert raised.value.code == "bind"
        assert f"port {port}" in raised.value.text
        assert "--listen" in raised.value.text
        assert ("-p PORT" in raised.value.text) == (kind == "udp")


def test_typed_needs_its_number_on_both_transports() -> None:
    for kind in (socket.SOCK_DGRAM, socket.SOCK_STREAM):
        with closing(socket.socket(socket.AF_INET, kind)) as other:
            other.bind(("127.0.0.1", 0))
            if kind == socket.SOCK_STREAM:
                other.listen()
            port = other.getsockname()[1]
            with pytest.raises(UsageError, match=f"port {port}"):
                bound(f"typed://127.0.0.1:{port}")


@pytest.mark.parametrize("host", ["no-such-host.invalid", "x" * 70, "a..b", "nul\0nul", "ü" * 80])
def test_a_host_that_is_none_is_named(host: str) -> None:
    with pytest.raises(UsageError) as raised:
        bound(f"udp://{host}:0")
    assert raised.value.text == f"--listen udp://{host}:0: unknown host {host}"


def test_an_address_that_is_not_ours_is_named() -> None:
    with pytest.raises(UsageError, match=r"192\.0\.2\.77.*assign"):
        bound("udp://192.0.2.77:0")


def test_a_name_prefers_ipv4_and_is_shown_as_its_address() -> None:
    one = bound("udp://localhost:0")
    close(one)
    assert one.endpoint.host == "127.0.0.1"


@pytest.mark.parametrize(
    ("kind", "dialects"),
    [
        ("udp", {Dialect.SOH, Dialect.PIPE, Dialect.SEMICOLON}),
        ("soh", {Dialect.SOH}),
        ("pipe", {Dialect.PIPE}),
        ("semicolon", {Dialect.SEMICOLON}),
        ("typed", {Dialect.TYPED}),
    ],
)
def test_a_socket_speaks_the_dialects_of_its_kind(kind: str, dialects: set[Dialect]) -> None:
    assert decoders(kind, SemicolonConfig()).keys() == dialects


def test_connections_are_kept_alive_by_the_system_as_the_listening_socket_is() -> None:
    one = bound("mqtt://127.0.0.1:0")
    assert one.stream
    one.stream.setblocking(True)
    with closing(one.stream), socket.create_connection(one.stream.getsockname()):
        accepted, _ = one.stream.accept()
        with closing(accepted):
            assert accepted.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
            assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) == 60
