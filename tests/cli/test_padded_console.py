"""smbsubscribe --dialect padded: a connection per title; the test is the broker."""

import signal
from socket import SOCK_STREAM

import pytest

from cli.programs import Program, TcpBroker, TcpPeer, free_port, run, started


def field(text: bytes) -> bytes:
    return text.ljust(64)


def message(title: bytes, text: bytes) -> bytes:
    return field(b"Message") + field(title) + field(b"%d" % len(text)) + text


def subscribed(tcp: TcpBroker, program: Program, *titles: bytes) -> list[TcpPeer]:
    """The connections of these titles, acknowledged one after the other."""
    peers = {}
    for _ in titles:
        peer = tcp.accept()
        assert peer.hear(64) == field(b"Subscribe")
        peers[peer.hear(64).rstrip()] = peer
    for title in titles:
        peers[title].say(field(b"SubAck"))
        program.expect(b"subscribed to " + title + b"\n", "stderr")
    return [peers[title] for title in titles]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_each_title_has_a_connection_and_a_signal_disconnects_all(tcp: TcpBroker, number: int) -> None:
    with started("smbsubscribe", "--dialect", "padded", "-p", tcp.port, "news", "weather") as program:
        news, weather = subscribed(tcp, program, b"news", b"weather")
        news.say(message(b"news", b"hello\n\xff"))
        program.expect(b"news: hello\n\xff\n")
        weather.say(message(b"weather", b"rain") + message(b"weather", b""))
        program.expect(b"weather: rain\nweather: \n")
        program.interrupt(number)
        assert news.hear_all() == weather.hear_all() == field(b"Disconnect")
        assert program.ended() == 0
        assert program.rest("stdout") + program.rest("stderr") == b""


def test_what_is_a_wildcard_elsewhere_is_told(tcp: TcpBroker) -> None:
    with started("smbsubscribe", "--dialect", "padded", "-p", tcp.port, "#") as program:
        program.expect(b"#: padded has no wildcards; this name is taken as it stands\n", "stderr")


def test_a_ping_is_answered(tcp: TcpBroker) -> None:
    with started("smbsubscribe", "--dialect", "padded", "-p", tcp.port, "news") as program:
        [news] = subscribed(tcp, program, b"news")
        news.say(field(b"Ping"))
        assert news.hear(64) == field(b"Pong")


def test_exit_disconnects(tcp: TcpBroker) -> None:
    with started("smbsubscribe", "--dialect", "padded", "-p", tcp.port, "news", "weather") as program:
        peers = subscribed(tcp, program, b"news", b"weather")
        program.type(b"exi")
        program.type(b"t\n")
        assert [peer.hear_all() for peer in peers] == [field(b"Disconnect")] * 2
        assert program.ended() == 0


def test_exit_without_a_newline_counts_too(tcp: TcpBroker) -> None:
    with started("smbsubscribe", "--dialect", "padded", "-p", tcp.port, "news") as program:
        program.type(b"something else\nexit")
        program.end_input()
        assert tcp.accept().hear_all() == field(b"Subscribe") + field(b"news") + field(b"Disconnect")
        assert program.ended() == 0


def test_the_end_of_standard_input_does_not_stop_it(tcp: TcpBroker) -> None:
    with started("smbsubscribe", "--dialect", "padded", "-p", tcp.port, "news") as program:
        program.end_input()
        [news] = subscribed(tcp, program, b"news")
        news.say(message(b"news", b"still here"))
        program.expect(b"news: still here\n")


def test_a_connection_that_the_broker_closes_is_named_and_the_last_one_ends_it(tcp: TcpBroker) -> None:
    with started("smbsubscribe", "--dialect", "padded", "-p", tcp.port, "news", "weather") as program:
        news, weather = subscribed(tcp, program, b"news", b"weather")
        news.close()
        program.expect_line(b"news: the broker at 127.0.0.1:%d closed the connection" % tcp.port)
        weather.say(message(b"weather", b"rain"))
        program.expect(b"weather: rain\n")
        weather.close()
        program.expect_line(b"weather: the broker at")
        assert program.ended() == 1


def test_what_came_before_the_close_is_printed(tcp: TcpBroker) -> None:
    with started("smbsubscribe", "--dialect", "padded", "-p", tcp.port, "news") as program:
        [news] = subscribed(tcp, program, b"news")
        news.say(b"".join(message(b"news", b"%d" % number) for number in range(5_000)))
        news.close()
        program.expect(b"".join(b"news: %d\n" % number for number in range(5_000)))
        assert program.ended() == 1


def test_what_is_no_padded_ends_the_connection(tcp: TcpBroker) -> None:
    with started("smbsubscribe", "--dialect", "padded", "-p", tcp.port, "news") as program:
        tcp.accept().say(b"HTTP/1.1 400 Bad Request".ljust(64))
        program.expect_line(b"no known command; subscribing failed")
        assert program.ended() == 1


def test_nobody_listens() -> None:
    port = free_port(SOCK_STREAM)
    result = run("smbsubscribe", "--dialect", "padded", "-p", port, "a", "b")
    assert result.returncode == 1
    for title, line in zip((b"a", b"b"), result.stderr.splitlines(), strict=True):
        assert line.startswith(title + b": nobody listens on 127.0.0.1:%d" % port)


def test_each_bad_argument_is_named() -> None:
    result = run("smbsubscribe", "--dialect", "padded", "-p", "x", "t" * 65, "fine", " spaced")
    assert result.returncode == 2
    port, long, spaced = result.stderr.splitlines()
    assert port.startswith(b"-p 'x': ")
    assert long.startswith(b"TOPIC 'ttt")
    assert spaced.startswith(b"TOPIC ' spaced': ")
