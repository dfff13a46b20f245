"""The broker's standard streams: what it reads, and that nobody has to read what it writes."""

import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

from flow.house import BIN, LIMIT, Broker, Tcp, Udp, wait_for
from flow.peers import ON_A_FREE_PORT, Program, Terminal, answers, cpu_seconds, started


def wakes(process: "subprocess.Popen[bytes]") -> int:
    """How often it has gone to sleep so far."""
    status = Path(f"/proc/{process.pid}/status").read_text()
    return int(status.partition("voluntary_ctxt_switches:")[2].split()[0])


# --- standard input ---


@pytest.mark.parametrize("pieces", [["exit\n"], ["  exit \r\n"], ["help\n", "\nex", "it", "\n"]])
def test_exit_on_standard_input_ends_it_and_its_clients(pieces: list[str]) -> None:
    with Broker("--no-log", kinds=("udp", "typed")) as broker:
        client = broker.tcp("typed")
        client.send(b"C1".ljust(11, b"\0"))
        broker.out.wait("New client C1")
        for piece in pieces:
            assert answers(broker.ports["udp"])
            broker.type(piece)
        assert broker.process.wait(LIMIT) == 0
        assert client.closed()


def test_other_words_on_standard_input_do_not_end_it() -> None:
    with Broker("--no-log", kinds=("udp",)) as broker:
        broker.type("exit now\nEXIT\nexi\nquit\nno exit\n" + "x" * 100_000 + "exit\n\n\nexit2")
        for _ in range(3):
            assert answers(broker.ports["udp"])


def test_the_end_of_standard_input_does_not_end_it_and_costs_nothing(tmp_path: Path) -> None:
    words = tmp_path / "words"
    words.write_text("not the word\n")
    with words.open() as file, Path("/dev/null").open() as null:
        for stdin in (subprocess.PIPE, null, file):
            with Broker("--no-log", kinds=("udp",), stdin=stdin) as broker:  # type: ignore[arg-type]
                if broker.process.stdin:
                    broker.process.stdin.close()
                assert answers(broker.ports["udp"])
                before, start = cpu_seconds(broker.process), time.monotonic()
                wait_for(lambda start=start: time.monotonic() > start + 0.3, "some time to pass")
                assert cpu_seconds(broker.process) - before < 0.1, "it does not read the end again and again"
                assert answers(broker.ports["udp"])


def test_exit_as_the_last_word_needs_no_newline() -> None:
    with Broker("--no-log", kinds=("udp",)) as broker:
        assert broker.process.stdin
        broker.type("help\nexit")
        assert answers(broker.ports["udp"])
        broker.process.stdin.close()
        assert broker.process.wait(LIMIT) == 0


@pytest.mark.parametrize("text", ["exit\n", "exit"])
def test_exit_in_a_file_on_standard_input_ends_it(tmp_path: Path, text: str) -> None:
    words = tmp_path / "words"
    words.write_text(text)
    with words.open() as file, started(*ON_A_FREE_PORT, stdin=file) as broker:
        assert broker.wait() == 0


def test_exit_typed_on_a_terminal_ends_it() -> None:
    with Terminal() as terminal, started(*ON_A_FREE_PORT, stdin=terminal.slave) as broker:
        broker.out.wait("ready")
        terminal.type("exit\n")
        assert wait_for(lambda: broker.process.poll() is not None or broker.err.all, "its end") is True
        assert broker.wait() == 0
        assert broker.err.all == []


# --- standard output and error that are closed, or that nobody reads ---


def in_shell(redirections: str, *options: str) -> list[str]:
    return ["sh", "-c", f'exec "$0" "$@" {redirections}', str(BIN / "smbbroker"), *options]


@pytest.mark.parametrize("redirections", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_streams_that_are_closed_are_not_taken_for_anything_else(redirections: str) -> None:
    """The numbers 0, 1 and 2 must not be those of sockets: then clients would get the console's lines."""
    options = ("--no-log", "--listen", "udp://127.0.0.1:0", "--listen", "padded://127.0.0.1:0")
    process = subprocess.Popen(in_shell(redirections, *options), stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    broker = Program(process)
    try:
        udp = broker.udp_port()
        port = wait_for(lambda: listening_tcp(process.pid), "a TCP socket")
        for number in range(3):
            link = os.readlink(f"/proc/{process.pid}/fd/{number}")  # noqa: PTH115
            assert not link.startswith("socket:"), (number, link)
        connections = [Tcp(port) for _ in range(4)]
        client = Udp(udp)
        client.send(b"snoise")
        for _ in range(50):
            assert client.ask(b"pnoise;exit\n") == b"noise;exit\n"
        for connection in connections:
            connection.send(b"Ping".ljust(64))
            assert connection.receive(64) == b"Pong".ljust(64), "and nothing of the console"
            connection.sock.close()
        client.sock.close()
        assert broker.stop() == 0
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()
        for stream in (process.stdin, process.stdout):
            if stream:
                stream.close()


def listening_tcp(pid: int) -> int:
    """The port of the TCP socket that listens, as the kernel knows it."""
    own = set()
    for entry in Path(f"/proc/{pid}/fd").iterdir():
        try:
            own.add(str(entry.readlink()).removeprefix("socket:[").removesuffix("]"))
        except OSError:
            pass  # closed meanwhile
    for line in Path(f"/proc/{pid}/net/tcp").read_text().splitlines()[1:]:
        words = line.split()
        if words[9] in own and words[3] == "0A":
            return int(words[1].partition(":")[2], 16)
    return 0


def flood(port: int) -> int:
    """Semicolon datagrams of more than a megabyte, each of which the console shows; the number of them."""
    client = Udp(port)
    count = 0
    for _ in range(150):
        for _ in range(20):
            client.send(b"pflood;" + b"x" * 480)
            count += 1
        assert client.ask(b"P|there|m") == b"Hello Publisher!"
    client.sock.close()
    return count


def test_a_standard_error_that_nobody_reads_does_not_stop_it_and_what_was_left_out_is_told_later() -> None:
    reading, writing = os.pipe()
    with started(*ON_A_FREE_PORT, stderr=writing) as broker:
        os.close(writing)
        count = flood(broker.udp_port())
        with os.fdopen(reading, "rb") as stream:
            seen = 0
            for line in stream:
                if line.startswith(b"("):
                    break
                assert line.endswith(b":pflood;" + b"x" * 480 + b"\n"), "whole lines, in order"
                seen += 1
            assert line == b"(%d lines left out: nobody was reading)\n" % (count - seen)
            assert broker.stop() == 0


def test_a_terminal_that_nobody_reads_does_not_stop_it() -> None:
    with Terminal(read=False) as terminal, started(*ON_A_FREE_PORT, stderr=terminal.slave) as broker:
        flood(broker.udp_port())
        assert broker.stop() == 0


def test_a_standard_error_that_is_stuck_costs_nothing_while_nothing_happens() -> None:
    reading, writing = os.pipe()
    with started(*ON_A_FREE_PORT, stderr=writing) as broker:
        os.close(writing)
        client = Udp(broker.udp_port())
        for _ in range(1_500):
            client.send(b"pstuck;" + b"x" * 480)
            client.ask(b"P|there|m")
        before, start = wakes(broker.process), time.monotonic()
        wait_for(lambda: time.monotonic() > start + 1, "a second to pass")
        most = 50 * (time.monotonic() - start)
        assert wakes(broker.process) - before < most, "a look every 0.1 s, and not as many as there were turns"
        client.sock.close()
        os.close(reading)
        assert broker.stop() == 0


def test_readers_that_go_away_do_not_stop_it() -> None:
    with started(*ON_A_FREE_PORT) as broker:
        port = broker.udp_port()
        for stream in (broker.process.stdout, broker.process.stderr):
            assert stream
            os.dup2(os.open("/dev/null", os.O_RDONLY), stream.fileno())
        flood(port)
        broker.process.send_signal(signal.SIGTERM)
        assert broker.process.wait(LIMIT) == 0
