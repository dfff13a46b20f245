"""smbsubscribe --dialect typed: commands on standard input; the test is the broker."""

import signal
from socket import SOCK_STREAM

import pytest

from cli.programs import TcpBroker, free_port, run, started

IDENTITY = b"C1".ljust(11, b"\0")


def topic(text: bytes) -> bytes:
    return text.ljust(50, b"\0")


def frame(kind: int, content: bytes, name: bytes = b"t") -> bytes:
    source = b"10.0.0.7".ljust(16, b"\0") + (4573).to_bytes(2, "big")
    return topic(name) + bytes([kind]) + content.ljust(1500, b"\0") + source + b"\r"


def test_commands_are_sent_and_answered(tcp: TcpBroker) -> None:
    with started("smbsubscribe", "--dialect", "typed", "--id", "C1", "-p", tcp.port) as program:
        peer = tcp.accept()
        assert peer.hear(11) == IDENTITY
        program.type(b"subscribe a/b 1\n")
        program.expect(b"Subscribed to topic.\n")
        assert peer.hear(53) == b"s" + topic(b"a/b") + b"\x01\0"
        program.type(b"subscribe c 0\nunsubscribe a/b\n")
        program.expect(b"Subscribed to topic.\nUnsubscribed from topic.\n")
        assert peer.hear(53 + 52) == b"s" + topic(b"c") + b"\0\0" + b"u" + topic(b"a/b") + b"\0"
        program.type(b"exit\n")
        assert peer.hear_all() == b""
        assert program.ended() == 0
        assert program.rest("stdout") + program.rest("stderr") == b""


@pytest.mark.parametrize(
    ("sent", "printed"),
    [
        (frame(0, b"\x01\0\0\0\x0a"), b"10.0.0.7:4573 - t - INT - -10\n"),
        (frame(1, b"\x00\xe6"), b"10.0.0.7:4573 - t - SHORT_REAL - 2.30\n"),
        (frame(2, b"\0" + (12344321).to_bytes(4, "big") + b"\x04"), b"10.0.0.7:4573 - t - FLOAT - 1234.4321\n"),
        (frame(3, "für".encode()), b"10.0.0.7:4573 - t - STRING - " + "für\n".encode()),
        (frame(3, b"\xff\n"), b"10.0.0.7:4573 - t - STRING - \xff\n\n"),
        (frame(3, b"x" * 1500, b"y" * 50), b"10.0.0.7:4573 - " + b"y" * 50 + b" - STRING - " + b"x" * 1500 + b"\n"),
    ],
)
def test_messages_are_printed(tcp: TcpBroker, sent: bytes, printed: bytes) -> None:
    with started("smbsubscribe", "--dialect", "typed", "--id", "C1", "-p", tcp.port) as program:
        peer = tcp.accept()
        peer.say(sent[:700])
        peer.say(sent[700:] + sent)
        program.expect(printed * 2)


@pytest.mark.parametrize(
    "line", [b"subscribe t", b"subscribe t 2", b"subscribe", b"unsubscribe", b"hello there", b"subscribe t 1 1"]
)
def test_a_bad_command_gets_a_hint_and_it_goes_on(tcp: TcpBroker, line: bytes) -> None:
    with started("smbsubscribe", "--dialect", "typed", "--id", "C1", "-p", tcp.port) as program:
        peer = tcp.accept()
        program.type(line + b"\n\n")
        program.expect_line(line + b": no such command; type subscribe TOPIC SF")
        program.type(b"subscribe t 0\n")
        program.expect(b"Subscribed to topic.\n")
        assert peer.hear(11 + 53) == IDENTITY + b"s" + topic(b"t") + b"\0\0"


def test_a_topic_that_is_too_long_gets_a_hint_and_it_goes_on(tcp: TcpBroker) -> None:
    with started("smbsubscribe", "--dialect", "typed", "--id", "C1", "-p", tcp.port) as program:
        program.type(b"subscribe %b 1\nunsubscribe t\n" % (b"x" * 51))
        program.expect_line(b"50")
        program.expect(b"Unsubscribed from topic.\n")


def test_topics_on_the_command_line_are_subscribed_at_once(tcp: TcpBroker) -> None:
    with started("smbsubscribe", "--dialect", "typed", "--id", "C1", "-p", tcp.port, "a", "b") as program:
        expected = IDENTITY + b"s" + topic(b"a") + b"\0\0" + b"s" + topic(b"b") + b"\0\0"
        assert tcp.accept().hear(len(expected)) == expected
        program.expect(b"Subscribed to topic.\n" * 2)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_end_of_standard_input_does_not_stop_it_but_a_signal_does(tcp: TcpBroker, number: int) -> None:
    with started("smbsubscribe", "--dialect", "typed", "--id", "C1", "-p", tcp.port) as program:
        peer = tcp.accept()
        program.type(b"subscribe t 1")
        program.end_input()
        program.expect(b"Subscribed to topic.\n")
        assert len(peer.hear(11 + 53)) == 64
        peer.say(frame(3, b"still here"))
        program.expect(b"10.0.0.7:4573 - t - STRING - still here\n")
        program.interrupt(number)
        assert peer.hear_all() == b""
        assert program.ended() == 0
        assert program.rest("stderr") == b""


def test_the_broker_ends_it_by_closing(tcp: TcpBroker) -> None:
    with started("smbsubscribe", "--dialect", "typed", "--id", "C1", "-p", tcp.port) as program:
        tcp.accept().close()
        assert program.ended() == 0
        assert b"the id C1 is in use (then choose another with --id)" in program.rest("stderr")


@pytest.mark.parametrize("words", [(), ("--id", ""), ("--id", "12345678901")])
def test_the_id_is_needed_and_checked(words: tuple[str, ...]) -> None:
    result = run("smbsubscribe", "--dialect", "typed", *words)
    assert result.returncode == 2
    assert result.stderr.startswith(b"--id")
    assert result.stderr.count(b"\n") == 1


def test_nobody_listens() -> None:
    result = run("smbsubscribe", "--dialect", "typed", "--id", "C1", "-p", free_port(SOCK_STREAM))
    assert result.returncode == 1
    assert b"nobody listens on" in result.stderr
