"""Colours where standard error is a terminal, and only there; control characters never reach it."""

import os
import select
import subprocess
from pathlib import Path

import pytest

from cli.programs import PATIENCE, UdpBroker, command, run
from smbroker.cli.terminal import printable, text_of

RED, YELLOW, PLAIN = b"\x1b[31m", b"\x1b[33m", b"\x1b[0m"


def said_on_a_terminal(*words: str | bytes | int, program: str = "smbpublish") -> bytes:
    """What the program writes on standard error when that is a terminal."""
    controller, terminal = os.openpty()
    process = subprocess.Popen(
        command(program, *words), stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=terminal
    )
    os.close(terminal)
    said = b""
    try:
        while select.select([controller], [], [], PATIENCE)[0]:
            said += os.read(controller, 4_096)
    except OSError:  # how a terminal says that nobody has it open any more
        pass
    process.wait(PATIENCE)
    os.close(controller)
    return said.replace(b"\r\n", b"\n")


def test_an_error_is_red_on_a_terminal(udp: UdpBroker) -> None:
    said = said_on_a_terminal("-p", udp.port, "t", b"x" * 508)
    assert said.startswith(RED + b"MESSAGE ")
    assert said.endswith(PLAIN + b"\n")
    assert udp.heard_nothing()


def test_a_subscription_that_is_too_long_is_a_red_error(udp: UdpBroker) -> None:
    said = said_on_a_terminal("-p", udp.port, b"t" * 508, program="smbsubscribe")
    assert said.startswith(RED + b"TOPIC ")
    assert udp.heard_nothing()


def test_a_bad_argument_is_red_on_a_terminal() -> None:
    assert said_on_a_terminal("-p", "x", "t").startswith(RED + b"-p 'x'")
    assert said_on_a_terminal("--nonsense").startswith(RED + b"'--nonsense'")


def test_a_warning_is_yellow_on_a_terminal(udp: UdpBroker) -> None:
    said = said_on_a_terminal("-p", udp.port, "a/#", "m")
    assert said.startswith(YELLOW + b"TOPIC 'a/#'")
    assert said.endswith(PLAIN + b"\n")


def test_output_that_cannot_be_written_is_an_error(udp: UdpBroker) -> None:
    with Path("/dev/full").open("wb") as full:
        words = command("smbsubscribe", "-p", udp.port, "a")
        with subprocess.Popen(words, stdout=full, stderr=subprocess.PIPE) as process:
            assert udp.hear() == b"sa"
            udp.say(b"a;x")
            assert udp.hear() == b"u"
            assert process.wait(PATIENCE) == 1
            assert process.stderr
            assert process.stderr.read().startswith(b"cannot write to standard output: No space left")


def test_elsewhere_both_are_plain(udp: UdpBroker) -> None:
    assert b"\x1b" not in run("smbpublish", "-p", udp.port, "t", b"x" * 508).stderr
    assert b"\x1b" not in run("smbpublish", "-p", udp.port, "a/#", "m").stderr


@pytest.mark.parametrize(
    ("raw", "shown"),
    [
        ("für 1 €", "für 1 €"),
        ("\x1b[2J", "\\x1b[2J"),
        ("a\nb\tc\0", "a\\nb\\tc\\x00"),
        ("\x9b", "\\x9b"),
        ("\u202e", "\\u202e"),
        ("\udcff", "\\udcff"),
    ],
)
def test_control_characters_are_shown_escaped(raw: str, shown: str) -> None:
    assert printable(raw) == shown


def test_bytes_that_are_no_text_are_shown_escaped() -> None:
    assert text_of(b"a\xff") == "a\\xff"
