"""smbsubscribe over UDP: semicolon, pipe and soh; the test is the broker and looks at the exact bytes."""

import os
import signal
import subprocess
from socket import SOCK_DGRAM

import pytest

from cli.programs import PATIENCE, Program, UdpBroker, command, free_port, run, started

SIGNALS = [signal.SIGINT, signal.SIGTERM]


def stop(program: Program, number: int = signal.SIGINT) -> None:
    """The program ends well, with nothing left to say."""
    program.interrupt(number)
    assert program.ended() == 0
    assert program.rest("stdout") + program.rest("stderr") == b""


@pytest.mark.parametrize("number", SIGNALS)
def test_semicolon_prints_each_datagram_and_says_good_bye(udp: UdpBroker, number: int) -> None:
    with started("smbsubscribe", "-p", udp.port, "a/#") as program:
        assert udp.hear() == b"sa/#"
        subscriber = udp.client
        for datagram in (b"a/b;x", b"a/c;\xff\0y\n", b""):
            udp.say(datagram)
            program.expect(datagram + b"\n")
        stop(program, number)
        assert udp.hear() == b"u"
        assert udp.client == subscriber
        assert udp.heard_nothing()


def test_semicolon_says_good_bye_also_where_a_shell_has_the_signal_ignored(udp: UdpBroker) -> None:
    words = b" ".join(command("smbsubscribe", "-p", udp.port, "a"))
    shell = subprocess.Popen([b"sh", b"-c", words + b" & echo $!; wait"], stdout=subprocess.PIPE)
    with shell:
        assert shell.stdout
        child = int(shell.stdout.readline())
        assert udp.hear() == b"sa"
        os.kill(child, signal.SIGINT)
        assert udp.hear() == b"u"
        shell.wait(PATIENCE)


def test_semicolon_ends_well_when_nobody_reads_its_output(udp: UdpBroker) -> None:
    with started("smbsubscribe", "-p", udp.port, "a") as program:
        udp.hear()
        assert program.process.stdout
        program.process.stdout.close()
        udp.say(b"a;x")
        assert udp.hear() == b"u"
        assert program.ended() == 0
        assert program.rest("stderr") == b""


def test_a_burst_is_printed_in_order(udp: UdpBroker) -> None:
    with started("smbsubscribe", "-p", udp.port, "a") as program:
        udp.hear()
        for number in range(200):
            udp.say(b"a;%d" % number)
        program.expect(b"".join(b"a;%d\n" % number for number in range(200)))


def test_a_semicolon_subscription_over_508_bytes_is_refused(udp: UdpBroker) -> None:
    result = run("smbsubscribe", "-p", udp.port, "t" * 508)
    assert result.returncode == 2
    assert b"509 bytes do not fit" in result.stderr
    assert udp.heard_nothing()


@pytest.mark.parametrize("dialect", ["semicolon", "pipe"])
def test_nobody_listens(dialect: str) -> None:
    port = free_port(SOCK_DGRAM)
    result = run("smbsubscribe", "--dialect", dialect, "-p", port, "t")
    assert result.returncode == 1
    assert result.stderr == b"nobody listens on 127.0.0.1:%d; is the broker running? start it with: smbbroker\n" % port


@pytest.mark.parametrize(
    "words",
    [
        ("127.0.0.1", "t"),
        ("--dialect", "pipe", "t"),
        ("--dialect", "pipe", "-h", "127.0.0.1", "t"),
        ("--dialect", "pipe", "127.0.0.1", "t"),
    ],
)
def test_pipe_greets_on_standard_error_and_prints_datagrams(udp: UdpBroker, words: tuple[str, ...]) -> None:
    with started("smbsubscribe", "-p", udp.port, *words) as program:
        assert udp.hear() == b"S|t"
        udp.say(b"Hello Subscriber!")
        program.expect(b"Hello Subscriber!\n", "stderr")
        udp.say(b"TOPIC: t - MESSAGE: \xff|m")
        program.expect(b"TOPIC: t - MESSAGE: \xff|m\n")
        stop(program)
        assert udp.heard_nothing()


@pytest.mark.parametrize(
    ("words", "request_", "told"),
    [
        ("a/+/b", b"sa/+/b", b"a/+/b: in semicolon only # as a level is a wildcard; "),
        ("--dialect pipe a/#", b"S|a/#", b"a/#: in pipe only # alone is a wildcard; "),
        ("--dialect soh a/b/#", b"Sa/b/#", b"a/b/#: in soh only # as the whole topic or subtopic is a wildcard; "),
    ],
)
def test_what_is_a_wildcard_elsewhere_only_is_told(udp: UdpBroker, words: str, request_: bytes, told: bytes) -> None:
    with started("smbsubscribe", "-p", udp.port, *words.split()) as program:
        program.expect(told + b"this name is taken as it stands\n", "stderr")
        assert udp.hear() == request_


@pytest.mark.parametrize(
    "words", ["a/#/b", "#/#", "a+/b#", "--dialect pipe #", "--dialect soh a/#", "--dialect soh #/b", "--dialect soh #"]
)
def test_of_wildcards_that_are_understood_nothing_is_told(udp: UdpBroker, words: str) -> None:
    with started("smbsubscribe", "-p", udp.port, *words.split()) as program:
        udp.hear()
        program.interrupt()
        program.ended()
        assert b"as it stands" not in program.rest("stderr")


def test_pipe_prints_a_refusal_on_standard_error(udp: UdpBroker) -> None:
    with started("smbsubscribe", "-p", udp.port, "127.0.0.1", "t") as program:
        udp.hear()
        udp.say(b"ERROR: too many subscriptions")
        assert program.ended() == 1
        assert program.rest("stdout") == b""
        assert program.rest("stderr") == b"ERROR: too many subscriptions\n"


@pytest.mark.parametrize("number", SIGNALS)
def test_soh_prints_topic_and_message_and_leaves_without_a_word(udp: UdpBroker, number: int) -> None:
    with started("smbsubscribe", "--dialect", "soh", "-p", udp.port, "home/door") as program:
        assert udp.hear() == b"Shome/door"
        udp.say(b"Ahome/door")
        program.expect(b"subscribed to home/door\n", "stderr")
        for message in (b"open", b"", b"\xff\0\x02/"):
            udp.say(b"\x01home/door\x02" + message)
            program.expect(b"[home/door] " + message + b"\n")
        stop(program, number)
        assert udp.heard_nothing()


def test_soh_takes_several_topics_on_one_socket(udp: UdpBroker) -> None:
    with started("smbsubscribe", "--dialect", "soh", "-p", udp.port, "a/b", "only", "#/c", "a/b") as program:
        assert [udp.hear() for _ in range(3)] == [b"Sa/b", b"Sonly", b"S#/c"]
        for topic in (b"only", b"a/b", b"#/c"):
            udp.say(b"A" + topic)
            program.expect(b"subscribed to " + topic + b"\n", "stderr")
        udp.say(b"\x01x/c\x02m")
        program.expect(b"[x/c] m\n")
        stop(program)


def test_soh_takes_a_message_of_its_topic_for_the_ack(udp: UdpBroker) -> None:
    with started("smbsubscribe", "--dialect", "soh", "-p", udp.port, "a/b") as program:
        udp.hear()
        udp.say(b"\x01a/b\x02m")
        program.expect(b"[a/b] m\n")
        udp.say(b"\x01other/topic\x02goes through, once subscribed")
        program.expect(b"[other/topic] goes through, once subscribed\n")
        program.expect(b"subscribed to a/b\n", "stderr")
        stop(program)


@pytest.mark.parametrize("answer", [b"Aa/c", b"Ab/b", b"Aa/b/c", b"\x01a/c\x02m", b"\x01b/b\x02m"])
def test_soh_fails_on_an_answer_that_is_not_its_own(udp: UdpBroker, answer: bytes) -> None:
    with started("smbsubscribe", "--dialect", "soh", "-p", udp.port, "a/b") as program:
        udp.hear()
        udp.say(answer)
        assert program.ended() == 1
        assert program.rest("stdout") == b""
        assert b"which we did not ask for" in program.rest("stderr")


def test_soh_waits_for_a_broker_that_is_not_there_yet() -> None:
    port = free_port(SOCK_DGRAM)
    with started("smbsubscribe", "--dialect", "soh", "-p", port, "a/b") as program:
        program.expect_line(b"nobody listens on 127.0.0.1:%d" % port)
        assert program.process.poll() is None
        stop(program)
