"""How the broker starts, says so, and stops: listeners, options, exit status, signals."""

import json
import os
import re
import signal
import socket
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from flow.house import BIN, LIMIT, Broker, Tcp, Udp, wait_for
from flow.lasting import free_ports
from flow.mqtt import Mqtt
from flow.peers import ON_A_FREE_PORT, answers, needs_ipv6, settled, started
from flow.wires import config
from smbroker import __version__
from smbroker.dialects.mqtt.packets import Publish
from smbroker.log.state import State

MUCH = 10 << 20  # bytes in the log
KINDS = ("udp", "soh", "pipe", "semicolon", "padded", "typed", "tcp")


def run(*options: str, folder: Path | None = None) -> subprocess.CompletedProcess[bytes]:
    """To its end, which must come soon."""
    return subprocess.run(
        [BIN / "smbbroker", *options], stdin=subprocess.DEVNULL, capture_output=True, timeout=LIMIT, cwd=folder
    )


# --- what it says when it starts ---


TELLS_OF_THE_TOKEN = """\
import sys
from pathlib import Path
from smbroker.cli.broker import main
from smbroker.server.console import Console
say, token = Console.say, Path(sys.argv[1], "pipeline.token")
Console.say = lambda console, line: say(console, f"{line} {token.exists()}")
main(["--data", *sys.argv[1:]])
"""


def test_the_token_is_there_before_it_says_ready(tmp_path: Path) -> None:
    command = [sys.executable, "-c", TELLS_OF_THE_TOKEN, tmp_path / "data", "--listen", "web://127.0.0.1:0"]
    with subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout
        lines = [process.stdout.readline().split() for _ in range(2)]
        process.terminate()
    assert [(line[0], line[-1]) for line in lines] == [("listening", "False"), ("ready", "True")]


def test_a_line_per_listener_in_order_then_ready_on_standard_output() -> None:
    with Broker(kinds=KINDS) as broker:
        expected = [f"listening {kind} 127.0.0.1 {broker.ports[kind]}" for kind in KINDS]
        assert broker.out.all == [*expected, "ready"]
        assert len(set(broker.ports.values())) == len(KINDS)
        assert 0 not in broker.ports.values()
        for kind in ("udp", "soh", "pipe", "semicolon", "typed"):
            Udp(broker.ports[kind]).send(b"bad")
        settled(broker)
        broker.stop()
        assert broker.out.all == [*expected, "ready"], "nothing else"


def test_typed_has_one_number_on_both_transports() -> None:
    with Broker(kinds=("typed",)) as broker:
        Tcp(broker.ports["typed"]).sock.close()
        for family, kind in ((socket.AF_INET, socket.SOCK_DGRAM), (socket.AF_INET, socket.SOCK_STREAM)):
            with socket.socket(family, kind) as other, pytest.raises(OSError, match="in use"):
                other.bind(("127.0.0.1", broker.ports["typed"]))


def test_listeners_share_what_is_published_and_answer_from_their_own_port() -> None:
    with Broker(kinds=KINDS) as broker:
        soh, pipe, semicolon, any_of_them = (broker.udp(kind) for kind in ("soh", "pipe", "semicolon", "udp"))
        assert soh.ask(b"Sa/b") == b"Aa/b"
        assert pipe.ask(b"S|a/b") == b"Hello Subscriber!"
        semicolon.send(b"sa/b")
        settled(broker, "pipe")
        semicolon.send(b"psettled;m")
        broker.err.wait("psettled;m")
        any_of_them.send(b"pa/b;m")
        assert soh.receive() == b"\x01a/b\x02m"
        assert pipe.receive() == b"TOPIC: a/b - MESSAGE: m"
        assert semicolon.receive() == b"a/b;m"


@needs_ipv6
def test_a_name_and_an_ipv6_address_are_shown_as_they_are_bound() -> None:
    listen = ("--listen", "udp://localhost:0", "--listen", "semicolon://[::1]:0")
    with Broker(*listen, kinds=("tcp",)) as broker:
        assert broker.out.has("listening udp 127.0.0.1 ")
        assert broker.out.has("listening semicolon ::1 ")


def test_quiet_prints_none_of_these_but_what_typed_prescribes() -> None:
    with started("--no-log", "--quiet", "--listen", "typed://127.0.0.1:0") as broker:
        client = Tcp(broker.udp_port())
        client.send(b"C1".ljust(11, b"\0"))
        broker.out.wait("New client C1 connected from 127.0.0.1:")
        client.sock.close()
        broker.out.wait("Client C1 disconnected.")
        assert broker.stop() == 0
        assert len(broker.out.all) == 2
        assert broker.err.all == []


def test_quiet_can_be_set_in_the_configuration(tmp_path: Path) -> None:
    with started(*config(tmp_path, "quiet = true"), *ON_A_FREE_PORT) as broker:
        assert answers(broker.udp_port())
        assert broker.stop() == 0
        assert broker.out.all == []


def test_it_starts_without_what_takes_long_to_import() -> None:
    """How long a start takes is measured by `smb bench`; this is what it must not wait for."""
    slow = ("numpy._core", "pandas._libs", "pyspark", "deltalake", "starlette", "uvicorn", "prometheus_client")
    with started("--listen", "udp://127.0.0.1:0", env={**os.environ, "PYTHONPROFILEIMPORTTIME": "1"}) as broker:
        broker.out.wait("ready")
        broker.stop()
        loaded = {line.rpartition("|")[2].strip() for line in broker.err.all}
    assert "smbroker.server.turn" in loaded
    assert not loaded.intersection(slow)


# --- default ports ---

DEFAULTS = {
    8080: (socket.SOCK_DGRAM, "udp"),
    1379: (socket.SOCK_STREAM, "padded"),
    12345: (0, "typed"),
    8090: (socket.SOCK_STREAM, "web"),
}


@contextmanager
def held(port: int, kind: int) -> Iterator[None]:
    """The port is taken, by us or by whoever has it."""
    with socket.socket(socket.AF_INET, kind) as sock:
        try:
            sock.bind(("127.0.0.1", port))
            if kind == socket.SOCK_STREAM:
                sock.listen()
        except OSError:
            pass
        yield


def is_free(port: int, kind: int) -> bool:
    with socket.socket(socket.AF_INET, kind) as sock:
        try:
            sock.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def need_free(*ports: int) -> None:
    for port in ports:
        if not (is_free(port, socket.SOCK_DGRAM) and is_free(port, socket.SOCK_STREAM)):
            pytest.skip(f"port {port} is in use on this machine")


def test_without_listen_it_listens_on_the_default_ports_of_loopback_only() -> None:
    need_free(1379, 12345, 8090)
    with started("--no-log", "-p", "0") as broker:
        broker.out.wait("ready")
        port = int(broker.out.wait("listening udp").split()[-1])
        others = ("padded 127.0.0.1 1379", "typed 127.0.0.1 12345", "web 127.0.0.1 8090")
        for line in (f"udp 127.0.0.1 {port}", *others):
            assert f"listening {line}" in broker.out.all
        assert answers(port)
        assert all(line.split()[2] == "127.0.0.1" for line in broker.out.all[:-1])


def test_p_sets_the_port_of_the_udp_dialects() -> None:
    need_free(1379, 12345, 8090)
    (port,) = free_ports(1)
    for option in ("-p", "--port"):
        with started("--no-log", option, str(port)) as broker:
            assert broker.out.wait("listening udp") == f"listening udp 127.0.0.1 {port}"
            broker.out.wait("ready")
            assert answers(port)
            assert broker.stop() == 0


@pytest.mark.parametrize(
    ("port", "kind", "options", "remedy"),
    [
        (8080, socket.SOCK_DGRAM, (), "-p"),
        (1379, socket.SOCK_STREAM, ("-p", "0"), "--listen"),
        (12345, socket.SOCK_STREAM, ("-p", "0"), "--listen"),
        (12345, socket.SOCK_DGRAM, ("-p", "0"), "--listen"),
        (8090, socket.SOCK_STREAM, ("-p", "0"), "--listen"),
    ],
)
def test_a_default_port_that_is_taken_is_named_with_the_option_that_changes_it(
    tmp_path: Path, port: int, kind: int, options: tuple[str, ...], remedy: str
) -> None:
    if port in (12345, 8090):
        need_free(*{1379, 12345} - {port})
    with held(port, kind):
        result = run("--no-log", *options, folder=tmp_path)
    assert result.returncode not in (0, -1)
    (line,) = result.stderr.decode().splitlines()
    assert f" {port}" in line
    assert f" {remedy} " in line
    assert b"ready" not in result.stdout


def test_any_port_that_is_taken_is_named(tmp_path: Path) -> None:
    with Broker(kinds=("udp", "padded")) as broker:
        for kind, port in broker.ports.items():
            result = run("--no-log", "--listen", f"{kind}://127.0.0.1:{port}", folder=tmp_path)
            assert result.returncode != 0
            (line,) = result.stderr.decode().splitlines()
            assert f" {port}" in line
            assert "--listen" in line
            assert "-p PORT" not in line, "it is refused beside --listen"
        assert answers(broker.ports["udp"]), "the first one is not disturbed"


# --- bad arguments ---

BAD = [  # more of them, without starting a program for each, in tests/cli/test_broker.py
    (("-p", "x"), "-p"),
    (("-p", "0", "--listen", "udp://127.0.0.1:0"), "-p"),
    (("--listen", "udp://127.0.0.1:0", "--listen", "morse://127.0.0.1:0"), "morse"),
    (("--nosuch",), "--nosuch"),
    (("word",), "word"),
    (("--config", "missing.toml"), "missing.toml"),
]


@pytest.mark.parametrize(("options", "named"), BAD, ids=[" ".join(words)[:40] for words, _ in BAD])
def test_a_bad_argument_ends_it_with_status_2_and_one_line_that_names_it(
    tmp_path: Path, options: tuple[str, ...], named: str
) -> None:
    result = run(*options, folder=tmp_path)
    assert result.returncode == 2, result.stderr
    assert result.stdout == b""
    (line,) = result.stderr.decode().splitlines()
    assert named in line
    assert len(line) < 400
    assert list(tmp_path.iterdir()) == [], "nothing was begun"


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("colour = 1", "colour"),
        ("[udp]\nleese = 1", "udp.leese"),
        ("listen = ]", "line 1"),
    ],
)
def test_a_bad_configuration_ends_it_with_status_2_and_one_line_that_names_it(
    tmp_path: Path, text: str, named: str
) -> None:
    result = run("--no-log", *config(tmp_path, text))
    assert result.returncode == 2, result.stderr
    assert result.stdout == b""
    (line,) = result.stderr.decode().splitlines()
    assert named in line


def test_p_is_refused_beside_listeners_of_the_configuration(tmp_path: Path) -> None:
    result = run("-p", "0", *config(tmp_path, 'listen = ["udp://127.0.0.1:0"]'))
    assert result.returncode == 2
    assert b"-p" in result.stderr


def test_a_host_that_cannot_be_had_is_named_in_one_line() -> None:
    result = run("--no-log", "--listen", f"udp://{'x' * 70}:0")
    assert result.returncode > 0
    (line,) = result.stderr.decode().splitlines()
    assert "x" * 70 in line


def test_a_configuration_may_ask_for_a_larger_buffer_than_there_is(tmp_path: Path) -> None:
    settings = config(tmp_path, "[udp]\nreceive_buffer = 1_000_000_000_000")
    with started(*settings, *ON_A_FREE_PORT) as broker:
        broker.out.wait("ready")
        assert broker.stop() == 0


def test_listeners_of_the_command_line_replace_those_of_the_configuration(tmp_path: Path) -> None:
    settings = config(tmp_path, 'listen = ["padded://127.0.0.1:0", "typed://127.0.0.1:0"]')
    with started("--no-log", *settings, "--listen", "soh://127.0.0.1:0") as broker:
        broker.out.wait("ready")
        assert [line.split()[1] for line in broker.out.all[:-1]] == ["soh"]
    with started("--no-log", *settings) as broker:
        broker.out.wait("ready")
        assert [line.split()[1] for line in broker.out.all[:-1]] == ["padded", "typed"]


def test_an_option_wins_over_the_configuration(tmp_path: Path) -> None:
    settings = config(tmp_path, "[semicolon]\nmax_subscribers = 5\nmax_topic = 7")
    with Broker(*settings, "-s", "9", kinds=("udp",)) as broker:
        client = broker.udp()
        client.send(b"s1234567")
        broker.err.wait("Current Subscribers: 1/9")
        client.send(b"s12345678")
        broker.err.wait("topic of 8 bytes, at most 7")


# --- help ---


def test_help_has_every_option() -> None:
    short, long = run("-?"), run("--help")
    assert (short.returncode, short.stdout, short.stderr) == (0, long.stdout, b"")
    options = "--config --data --no-log --quiet --listen -p --port -s --max-subscribers -m --max-message-length"
    options += " -t --max-topic-length -? --help --usage -V --version"
    for option in options.split():
        assert re.search(rf"(^|[\s,|\[]){re.escape(option)}\b" if option != "-?" else r"-\?", short.stdout.decode())
    for default in (b"8080", b"100", b"500", b"128"):
        assert default in short.stdout


def test_usage_is_short() -> None:
    result = run("--usage")
    assert (result.returncode, result.stderr) == (0, b"")
    assert result.stdout.startswith(b"usage: smbbroker ")
    assert len(result.stdout) < len(run("--help").stdout) / 2


@pytest.mark.parametrize("option", ["-V", "--version"])
def test_version(option: str) -> None:
    result = run(option)
    assert (result.returncode, result.stdout, result.stderr) == (0, f"smbbroker {__version__}\n".encode(), b"")


# --- the data directory ---


def test_without_a_log_nothing_is_written(tmp_path: Path) -> None:
    with started(*ON_A_FREE_PORT, cwd=tmp_path) as broker:
        port = broker.udp_port()
        assert answers(port)
        client = Udp(port)
        assert client.ask(b"Sa/b") == b"Aa/b"
        client.sock.close()
        assert broker.stop() == 0
    assert list(tmp_path.iterdir()) == []


def test_the_data_directory_is_smb_data_or_what_is_said(tmp_path: Path) -> None:
    for options, name in (((), "smb-data"), (("--data", "elsewhere"), "elsewhere")):
        with started(*options, "--listen", "udp://127.0.0.1:0", cwd=tmp_path) as broker:
            broker.out.wait("ready")
            assert broker.stop() == 0
        assert (tmp_path / name / "log").is_dir()


def test_a_second_broker_on_the_same_directory_says_who_holds_it(tmp_path: Path) -> None:
    with Broker(kinds=("udp",), data=tmp_path) as broker:
        result = run("--data", str(tmp_path), "--listen", "udp://127.0.0.1:0")
        assert result.returncode != 0
        (line,) = result.stderr.decode().splitlines()
        assert str(broker.process.pid) in line
        assert answers(broker.ports["udp"])


# --- the end ---


@pytest.mark.parametrize(("number", "log"), [(signal.SIGINT, True), (signal.SIGTERM, True), (signal.SIGINT, False)])
def test_a_signal_ends_it_with_status_0_and_what_it_owes_is_done(number: int, log: bool) -> None:
    options = () if log else ("--no-log",)
    with Broker(*options, kinds=("udp", "padded", "typed")) as broker:
        subscriber, publisher, connection = broker.udp(), broker.udp(), broker.tcp("padded")
        assert subscriber.ask(b"S|a") == b"Hello Subscriber!"
        connection.send(b"Subscribe".ljust(64) + b"a".ljust(64))
        assert connection.receive(64) == b"SubAck".ljust(64)
        assert publisher.ask(b"P|a|m") == b"Hello Publisher!"
        ports = broker.ports.values()
        assert broker.stop(number) == 0
        assert subscriber.receive() == b"TOPIC: a - MESSAGE: m"
        message = b"Message".ljust(64) + b"a".ljust(64) + b"1".ljust(64) + b"m"
        assert connection.receive(len(message)) == message
        assert connection.closed()
        for port in ports:
            assert is_free(port, socket.SOCK_DGRAM)
        assert [line for line in broker.err.all if "(--no-log)" not in line] == []


def test_many_signals_are_no_more_than_one() -> None:
    with Broker(kinds=("udp",)) as broker:

        def ended() -> bool:
            for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1):
                broker.signal(number)
            return broker.process.poll() is not None

        wait_for(ended, "its end")
        assert broker.process.wait(LIMIT) == 0


def test_it_can_start_again_at_once_on_the_same_ports(tmp_path: Path) -> None:
    with Broker(kinds=("udp", "padded", "typed"), data=tmp_path) as broker:
        client = broker.tcp("padded")
        client.send(b"Ping".ljust(64))
        assert client.receive(64) == b"Pong".ljust(64)
        listen = [word for kind, port in broker.ports.items() for word in ("--listen", f"{kind}://127.0.0.1:{port}")]
    with Broker(*listen, kinds=(), data=tmp_path) as broker:
        assert answers(broker.ports["udp"])


def test_sigusr1_does_not_end_it() -> None:
    with Broker(kinds=("udp",)) as broker:
        broker.signal(signal.SIGUSR1)
        broker.signal(signal.SIGUSR1)
        assert answers(broker.ports["udp"])


def test_what_is_said_can_be_json() -> None:
    with Broker("--log-format", "json") as broker:
        broker.udp().send(b"\x01no-subtopic\x02x")
        line = json.loads(broker.err.wait("topic_no_subtopic"))
        assert (line["level"], line["code"]) == ("warning", "soh topic_no_subtopic")
        broker.stop()
        assert all(isinstance(json.loads(line), dict) for line in broker.err.all)
        assert broker.out.has("ready")


@pytest.mark.parametrize("qos", [0, 1])
def test_it_stops_in_order_while_mqtt_clients_send_all_they_can(tmp_path: Path, qos: int) -> None:
    frames = b"".join(Publish(b"t", b"x" * 50, qos, packet_id=at if qos else 0).encode(4) for at in range(1, 20_000))
    with Broker(kinds=("mqtt",), data=tmp_path) as broker:
        ended = threading.Event()

        def flood() -> None:
            client = Mqtt(broker)
            client.tcp.sock.settimeout(LIMIT)
            while not ended.is_set():
                try:
                    client.tcp.send(frames)
                except OSError:
                    return

        threads = [threading.Thread(target=flood) for _ in range(3)]
        for thread in threads:
            thread.start()
        wait_for(lambda: sum(file.stat().st_size for file in (tmp_path / "log").glob("*.arrow")) > MUCH, "a flood")
        assert broker.stop() == 0
        ended.set()
        for thread in threads:
            thread.join()
        assert not broker.err.has("Traceback"), broker.err.all
        assert not broker.err.has("bug"), broker.err.all


@pytest.mark.parametrize(
    "damage",
    [
        "DROP TABLE sessions",
        "INSERT INTO sessions VALUES ('mqtt', 'a client', '', 0, NULL, '{\"expiry\": ')",
        "INSERT INTO retained VALUES (x'61', x'62', 'no JSON')",
    ],
)
def test_a_damaged_state_is_named_with_its_remedy(tmp_path: Path, damage: str) -> None:
    state = tmp_path / "state.db"
    State(state).close()
    database = sqlite3.connect(state)
    with database:
        database.execute(damage)
    database.close()
    done = run("--data", str(tmp_path), "--listen", "mqtt://127.0.0.1:0")
    assert done.returncode == 1
    assert re.fullmatch(rf"{re.escape(str(state))}: .*; move it away to start without sessions\n", done.stderr.decode())
