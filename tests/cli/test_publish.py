"""smbpublish as a subprocess; the test is the broker and looks at the exact bytes."""

import os
import signal
import subprocess
import tempfile
from socket import SOCK_DGRAM, SOCK_STREAM

import pytest

from cli.programs import PATIENCE, TcpBroker, UdpBroker, command, free_port, run, started

PADDED_PUBLISH = b"Publish".ljust(64) + b"news".ljust(64) + b"5".ljust(64) + b"hello"


def test_semicolon_sends_one_datagram_and_is_silent(udp: UdpBroker) -> None:
    result = run("smbpublish", "-p", udp.port, "a/b", "x;y")
    assert (result.returncode, result.stdout, result.stderr) == (0, b"", b"")
    assert udp.hear() == b"pa/b;x;y"
    assert udp.heard_nothing()


def test_options_may_stand_anywhere_and_have_long_names(udp: UdpBroker) -> None:
    assert run("smbpublish", "a", "--host", "localhost", "x", f"--port={udp.port}").returncode == 0
    assert udp.hear() == b"pa;x"


def test_bytes_that_are_no_text_are_sent_as_they_are(udp: UdpBroker) -> None:
    assert run("smbpublish", "-p", udp.port, "a", b"\xff\xfe").returncode == 0
    assert udp.hear() == b"pa;\xff\xfe"


def test_words_that_begin_with_a_dash(udp: UdpBroker) -> None:
    for words, datagram in [(("a", "-10"), b"pa;-10"), (("a", "-1e3"), b"pa;-1e3"), (("--", "-a", "-b"), b"p-a;-b")]:
        assert run("smbpublish", "-p", udp.port, *words).returncode == 0
        assert udp.hear() == datagram


def test_the_message_comes_from_a_pipe_newlines_and_all(udp: UdpBroker) -> None:
    assert run("smbpublish", "-p", udp.port, "a", message=b"one\ntwo\n\0\xff\n").returncode == 0
    assert udp.hear() == b"pa;one\ntwo\n\0\xff\n"


def test_the_message_comes_from_a_file(udp: UdpBroker) -> None:
    with tempfile.TemporaryFile() as file:
        file.write(b"from a file\n")
        file.seek(0)
        subprocess.run(command("smbpublish", "-p", udp.port, "a"), stdin=file, check=True, timeout=PATIENCE)
    assert udp.hear() == b"pa;from a file\n"


def test_the_message_is_empty_if_standard_input_is_a_terminal(udp: UdpBroker) -> None:
    controller, terminal = os.openpty()
    subprocess.run(command("smbpublish", "-p", udp.port, "a"), stdin=terminal, check=True, timeout=PATIENCE)
    os.close(terminal)
    os.close(controller)
    assert udp.hear() == b"pa;"


def test_the_message_is_empty_if_standard_input_is_closed_or_a_device(udp: UdpBroker) -> None:
    assert run("smbpublish", "-p", udp.port, "a").returncode == 0
    assert udp.hear() == b"pa;"
    words = b" ".join(command("smbpublish", "-p", udp.port, "a"))
    subprocess.run([b"sh", b"-c", words + b" <&-"], check=True, timeout=PATIENCE)
    assert udp.hear() == b"pa;"


def test_a_given_message_wins_over_standard_input(udp: UdpBroker) -> None:
    assert run("smbpublish", "-p", udp.port, "a", "", message=b"not this").returncode == 0
    assert udp.hear() == b"pa;"


@pytest.mark.parametrize("by_input", [False, True])
def test_508_bytes_are_sent_and_509_are_not(udp: UdpBroker, by_input: bool) -> None:
    def publish(message: bytes) -> subprocess.CompletedProcess[bytes]:
        words = ("smbpublish", "-p", udp.port, "topic")
        return run(*words, message=message) if by_input else run(*words, message)

    assert publish(b"x" * 501).returncode == 0
    assert len(udp.hear()) == 508
    result = publish(b"x" * 502)
    assert result.returncode != 0
    assert b"509 bytes do not fit" in result.stderr
    assert result.stderr.count(b"\n") == 1
    assert udp.heard_nothing()


def test_semicolon_warns_of_a_wildcard_but_leaves_the_judgement_to_the_broker(udp: UdpBroker) -> None:
    result = run("smbpublish", "-p", udp.port, "a/#", "x")
    assert result.returncode == 0
    assert b"#" in result.stderr
    assert udp.hear() == b"pa/#;x"


@pytest.mark.parametrize("topic", ["", "a;b", b"\xff"])
def test_a_topic_that_semicolon_cannot_say_is_refused(udp: UdpBroker, topic: str | bytes) -> None:
    result = run("smbpublish", "-p", udp.port, topic, "x")
    assert result.returncode == 2
    assert result.stderr.startswith(b"TOPIC ")
    assert udp.heard_nothing()


@pytest.mark.parametrize("dialect", ["semicolon", "soh", "pipe", "typed"])
def test_nobody_listens_for_datagrams(dialect: str) -> None:
    port = free_port(SOCK_DGRAM)
    result = run("smbpublish", "--dialect", dialect, "-p", port, "a/b", "x")
    assert result.returncode == 1
    assert result.stderr == b"nobody listens on 127.0.0.1:%d; is the broker running? start it with: smbbroker\n" % port


def test_nobody_listens_for_connections() -> None:
    port = free_port(SOCK_STREAM)
    result = run("smbpublish", "--dialect", "padded", "-p", port, "a", "x")
    assert result.returncode == 1
    assert b"nobody listens on 127.0.0.1:%d" % port in result.stderr


def test_a_host_that_does_not_exist() -> None:
    for host in ("no-such-host.invalid", "x" * 70):
        result = run("smbpublish", "-h", host, "a", "x")
        assert result.returncode == 1
        assert b"cannot find the host " + host.encode() in result.stderr


def test_soh_is_silent(udp: UdpBroker) -> None:
    result = run("smbpublish", "--dialect", "soh", "-p", udp.port, "home/door/1", "open")
    assert (result.returncode, result.stdout, result.stderr) == (0, b"", b"")
    assert udp.hear() == b"\x01home/door/1\x02open"


def test_soh_takes_the_message_from_standard_input(udp: UdpBroker) -> None:
    assert run("smbpublish", "--dialect", "soh", "-p", udp.port, "a/b", message=b"x\n").returncode == 0
    assert udp.hear() == b"\x01a/b\x02x\n"


def test_soh_refuses_what_it_cannot_say(udp: UdpBroker) -> None:
    for topic in ("nosubtopic", "a/#", "a/" + "x" * 513):
        result = run("smbpublish", "--dialect", "soh", "-p", udp.port, topic, "x")
        assert result.returncode == 2
        assert result.stderr.startswith(b"TOPIC ")
    assert udp.heard_nothing()


@pytest.mark.parametrize(
    "words",
    [
        ("127.0.0.1", "t", "m|n"),
        ("--dialect", "pipe", "127.0.0.1", "t", "m|n"),
        ("--dialect", "pipe", "t", "m|n"),
        ("--dialect", "pipe", "-h", "127.0.0.1", "t", "m|n"),
    ],
)
def test_pipe_prints_the_answer(udp: UdpBroker, words: tuple[str, ...]) -> None:
    with started("smbpublish", "-p", udp.port, *words) as program:
        assert udp.hear() == b"P|t|m|n"
        udp.say(b"Hello Publisher!")
        assert program.ended() == 0
        assert program.rest("stdout") == b"Hello Publisher!\n"
        assert program.rest("stderr") == b""


def test_pipe_takes_the_message_from_standard_input(udp: UdpBroker) -> None:
    with started("smbpublish", "--dialect", "pipe", "-p", udp.port, "t") as program:
        program.type(b"line\n")
        program.end_input()
        assert udp.hear() == b"P|t|line\n"


def test_pipe_prints_a_refusal_on_standard_error(udp: UdpBroker) -> None:
    with started("smbpublish", "-p", udp.port, "127.0.0.1", "#", "m") as program:
        assert udp.hear() == b"P|#|m"
        udp.say(b"ERROR: a published topic must not be #\x1b[2J")
        assert program.ended() == 1
        assert program.rest("stdout") == b""
        assert program.rest("stderr") == b"ERROR: a published topic must not be #\\x1b[2J\n"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_publisher_that_waits_can_be_stopped(udp: UdpBroker, number: int) -> None:
    with started("smbpublish", "-p", udp.port, "127.0.0.1", "t", "m") as program:
        udp.hear()
        program.interrupt(number)
        assert program.ended() == 130
        assert program.rest("stderr") == b""


def test_padded_waits_for_the_ack_answers_pings_and_leaves(tcp: TcpBroker) -> None:
    with started("smbpublish", "--dialect", "padded", "-p", tcp.port, "news", "hello") as program:
        peer = tcp.accept()
        assert peer.hear(len(PADDED_PUBLISH)) == PADDED_PUBLISH
        peer.say(b"Ping".ljust(64))
        assert peer.hear(64) == b"Pong".ljust(64)
        assert program.process.poll() is None
        peer.say(b"PubAck".ljust(64))
        assert peer.hear_all() == b"Disconnect".ljust(64)
        assert program.ended() == 0
        assert program.rest("stdout") + program.rest("stderr") == b""


def test_padded_counts_the_length_in_bytes(tcp: TcpBroker) -> None:
    with started("smbpublish", "--dialect", "padded", "-p", tcp.port, "news", "für"):
        expected = b"Publish".ljust(64) + b"news".ljust(64) + b"4".ljust(64) + "für".encode()
        assert tcp.accept().hear(len(expected)) == expected


def test_padded_says_so_when_the_broker_closes_without_an_ack(tcp: TcpBroker) -> None:
    with started("smbpublish", "--dialect", "padded", "-p", tcp.port, "news", "hello") as program:
        peer = tcp.accept()
        peer.hear(len(PADDED_PUBLISH))
        peer.close()
        assert program.ended() == 1
        assert b"closed the connection; the publish failed" in program.rest("stderr")


def test_padded_names_each_bad_argument() -> None:
    result = run("smbpublish", "--dialect", "padded", "-p", "99999", "t" * 65, "m")
    assert result.returncode == 2
    port, title = result.stderr.splitlines()
    assert port == b"-p '99999': give a whole number from 1 to 65535"
    assert title.startswith(b"TOPIC 'ttt")
    assert b"at most 64" in title


TYPED_TOPIC = b"outdoor/temperature".ljust(50, b"\0")


@pytest.mark.parametrize(
    ("words", "content"),
    [
        (("--type", "int", "outdoor/temperature", "-10"), b"\x00\x01\x00\x00\x00\x0a"),
        (("--type=short_real", "outdoor/temperature", "2.3"), b"\x01\x00\xe6"),
        (
            ("--type", "float", "outdoor/temperature", "-1234.4321"),
            b"\x02\x01" + (12344321).to_bytes(4, "big") + b"\x04",
        ),
        (("--type", "string", "outdoor/temperature", "-10"), b"\x03-10"),
        (("outdoor/temperature", "für"), b"\x03" + "für".encode()),
        (("outdoor/temperature",), b"\x03"),
    ],
)
def test_typed_sends_each_type(udp: UdpBroker, words: tuple[str, ...], content: bytes) -> None:
    result = run("smbpublish", "--dialect", "typed", "-p", udp.port, *words)
    assert (result.returncode, result.stdout, result.stderr) == (0, b"", b"")
    assert udp.hear() == TYPED_TOPIC + content


def test_a_typed_number_may_come_with_a_newline_from_standard_input(udp: UdpBroker) -> None:
    words = ("--dialect", "typed", "--type", "int", "-p", udp.port, "outdoor/temperature")
    assert run("smbpublish", *words, message=b" 10\n").returncode == 0
    assert udp.hear() == TYPED_TOPIC + b"\x00\x00\x00\x00\x00\x0a"


def test_typed_names_what_is_no_number(udp: UdpBroker) -> None:
    result = run("smbpublish", "--dialect", "typed", "--type", "int", "-p", udp.port, "t", "ten")
    assert result.returncode == 2
    assert result.stderr.startswith(b"MESSAGE 'ten': ")
    assert udp.heard_nothing()
