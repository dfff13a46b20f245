"""`smb`, and `smb demo` as people run it: real processes, free ports, the commands that it tells one to try."""

import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from cli.programs import SCRIPTS, run
from flow.house import Lines, Udp, end_with_the_tests, wait_for
from smbroker.cli.ports import typed_before
from smbroker.cli.smb import COMMANDS

LISTEN = ("udp", "padded", "typed", "mqtt")
STOP_LIMIT = 30.0  # seconds in which Ctrl-C ends everything, on a busy machine too
SPOKEN = {  # one topic that is published in each dialect
    "semicolon": "plant/main/pressure",
    "soh": "plant/outlet/flow",
    "pipe": "house/outdoor/temperature",
    "padded": "plant/status",
    "typed": "plant/tank/level",
    "mqtt": "house/garage/charger",
}


class Demo:
    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self.process = process
        self.out = Lines(process.stdout)
        self.err = Lines(process.stderr)

    def wait_until_ready(self) -> dict[str, int]:
        """The ports, by kind."""
        wait_for(lambda: self.out.has("ready") or self.process.poll() is not None, "ready", 60)
        assert self.process.poll() is None, self.err.wait_end()
        self.err.wait("Ctrl-C")
        return {line.split()[1]: int(line.split()[3]) for line in self.out.all if line.startswith("listening ")}

    def living(self) -> list[int]:
        """The processes of its session: itself and whatever it started."""
        every = (int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit())
        return [pid for pid in every if _session(pid) == self.process.pid]

    def guided(self, program: str) -> dict[str, list[str]]:
        """The words of the command that it says to try, by dialect."""
        lines = [line.strip().partition(" ") for line in self.err.all if f"/{program} " in line]
        return {dialect: shlex.split(rest) for dialect, _, rest in lines}


def _session(pid: int) -> int | None:
    """Of a process that is neither gone nor a zombie."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] == "Z" else int(fields[3])


@contextmanager
def demo(data: Path, *options: str, kinds: tuple[str, ...] = LISTEN) -> Iterator[Demo]:
    data.mkdir(exist_ok=True)
    listen = [word for kind in kinds for word in ("--listen", f"{kind}://127.0.0.1:0")]
    process = subprocess.Popen(
        [SCRIPTS / "smb", "demo", "--no-spark", "--data", data, "--seed", "1", *listen, *options],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
        preexec_fn=end_with_the_tests,
        cwd=data,
    )
    with process:
        running = Demo(process)
        try:
            yield running
        finally:
            for pid in running.living():
                os.kill(pid, signal.SIGKILL)


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Demo]:
    with demo(tmp_path_factory.mktemp("demo") / "data") as one:
        one.wait_until_ready()
        yield one


def test_the_devices_speak_every_dialect(running: Demo) -> None:
    everything = Udp(running.wait_until_ready()["udp"])
    everything.send(b"s#")
    wanted = set(SPOKEN.values())
    deadline = time.monotonic() + 60
    while wanted and time.monotonic() < deadline:
        wanted.discard(everything.receive().decode().partition(";")[0])
    everything.send(b"u")
    assert not wanted


@pytest.mark.parametrize("dialect", SPOKEN)
def test_what_it_says_to_watch_shows_messages(running: Demo, dialect: str) -> None:
    words = running.guided("smbsubscribe")[dialect]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as watcher:
        shown = Lines(watcher.stdout)
        wait_for(lambda: any("house/" in line or "plant/" in line for line in shown.all), f"messages in {dialect}", 60)
        watcher.send_signal(signal.SIGINT)
        assert watcher.wait(30) == 0


@pytest.mark.parametrize("dialect", SPOKEN)
def test_what_it_says_to_publish_shows_up(running: Demo, dialect: str) -> None:
    words = running.guided("smbpublish")[dialect]
    seen = len(running.err.all)
    assert subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True, timeout=60).returncode == 0
    wait_for(lambda: any(f" · {words[-2]} {words[-1]}" in line for line in running.err.all[seen:]), words[-2])


def test_the_thermostat_hears_in_one_dialect_and_answers_in_another(running: Demo) -> None:
    client = Udp(running.wait_until_ready()["udp"])
    client.send(b"shouse/kitchen/#")
    client.send(b"phouse/kitchen/target;29.5")
    heard = set()
    deadline = time.monotonic() + 60
    while not {"house/kitchen/setpoint;29.5", "house/kitchen/heating;100"} <= heard:
        assert time.monotonic() < deadline, heard
        heard.add(client.receive().decode())
    client.send(b"u")


def test_the_charger_obeys_whatever_dialect_it_is_told_in(tmp_path: Path) -> None:
    with demo(tmp_path, "--speed", "1") as one:  # the car stays at home for two hours
        client = Udp(one.wait_until_ready()["udp"])
        client.send(b"shouse/garage/charger")
        deadline = time.monotonic() + 60
        for command, state in ((b"off", '"paused"'), (b"on", '"charging"')):
            while state not in client.receive().decode():
                assert time.monotonic() < deadline, state
                client.send(b"phouse/garage/charging;" + command)  # again: at first the devices may not listen yet


def test_it_says_now_and_then_that_it_is_alive(running: Demo) -> None:
    line = running.err.wait("messages/s", 60)
    assert "so far" in line
    assert not running.err.has("\x1b")
    assert not running.err.has("Current Subscribers")


def stopped(one: Demo) -> float:
    """Seconds until everything has ended."""
    started = time.monotonic()
    assert one.process.wait(STOP_LIMIT) == 0
    wait_for(lambda: not one.living(), "no process is left", STOP_LIMIT)
    assert "stopped" in one.err.wait_end()[-1]
    assert not one.err.has("Traceback")
    return time.monotonic() - started


def test_ctrl_c_ends_everything_soon(tmp_path: Path) -> None:
    with demo(tmp_path) as one:
        one.wait_until_ready()
        assert len(one.living()) >= 2
        os.killpg(one.process.pid, signal.SIGINT)  # as a terminal does
        assert stopped(one) < STOP_LIMIT


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_to_the_broker_alone_ends_the_devices_too(tmp_path: Path, number: int) -> None:
    with demo(tmp_path) as one:
        one.wait_until_ready()
        one.process.send_signal(number)
        assert stopped(one) < STOP_LIMIT
        assert not one.err.has("not taken")


@pytest.mark.parametrize("delay", [0.0, 0.1, 0.2, 0.4])
def test_ctrl_c_while_it_starts_ends_it_quietly(tmp_path: Path, delay: float) -> None:
    with demo(tmp_path) as one:
        wait_for(lambda: one.living() and _catches_interrupt(one.process.pid), "prepared for signals")
        time.sleep(delay)  # any moment must do
        os.killpg(one.process.pid, signal.SIGINT)
        assert one.process.wait(STOP_LIMIT) in (0, 130)
        wait_for(lambda: not one.living(), "no process is left", STOP_LIMIT)
        assert not [line for line in one.err.wait_end() if "Traceback" in line or "badly" in line]


def _catches_interrupt(pid: int) -> bool:
    """Whether it has a handler of its own: the interpreter's is there first, so SIGTERM is asked for."""
    status = Path(f"/proc/{pid}/status").read_text()
    caught = next(line.split()[1] for line in status.splitlines() if line.startswith("SigCgt"))
    return bool(int(caught, 16) >> (signal.SIGTERM - 1) & 1)


def test_exit_on_standard_input_stops_it(tmp_path: Path) -> None:
    with demo(tmp_path) as one:
        one.wait_until_ready()
        assert one.process.stdin
        one.process.stdin.write(b"exit\n")
        one.process.stdin.flush()
        assert stopped(one) < STOP_LIMIT


def test_the_devices_end_when_the_broker_is_killed(tmp_path: Path) -> None:
    with demo(tmp_path) as one:
        one.wait_until_ready()
        one.process.kill()
        wait_for(lambda: not one.living(), "no process is left", STOP_LIMIT)
        assert not one.err.has("Traceback")


def test_quiet_says_nothing_but_what_typed_prescribes(tmp_path: Path) -> None:
    with demo(tmp_path, "--quiet") as one:
        one.out.wait("New client thermostat connected", 60)
        os.killpg(one.process.pid, signal.SIGINT)
        assert one.process.wait(STOP_LIMIT) == 0
        assert one.err.wait_end() == []
        assert all("lient thermostat " in line for line in one.out.wait_end())


def test_with_few_listeners_the_others_devices_are_silent(tmp_path: Path) -> None:
    with demo(tmp_path, "--no-log", kinds=("typed",)) as one:
        assert one.wait_until_ready().keys() == {"typed"}
        assert one.err.has("No listener for pipe")
        lines = one.err.all
        wait_for(lambda: any("messages/s" in line and " 0 messages/s" not in line for line in lines), "messages", 60)
        assert not (tmp_path / "log").exists()


def test_a_port_that_is_taken_is_named_with_the_way_out(tmp_path: Path, running: Demo) -> None:
    ports = running.wait_until_ready()
    listen = [f"udp://127.0.0.1:{ports['udp']}", f"typed://127.0.0.1:{ports['typed']}", "padded://127.0.0.1:0"]
    result = run("smb", "demo", "--data", str(tmp_path), *(word for one in listen for word in ("--listen", one)))
    assert result.returncode == 1
    text = result.stderr.decode()
    assert f"port {ports['udp']} (udp on 127.0.0.1) and port {ports['typed']} (typed on 127.0.0.1)" in text
    assert "--listen udp://127.0.0.1:0 --listen typed://127.0.0.1:0 --listen padded://127.0.0.1:0" in text
    assert text.count("\n") == 1


def test_a_data_directory_in_use_is_named(tmp_path: Path) -> None:
    with demo(tmp_path) as one:
        one.wait_until_ready()
        result = run("smb", "demo", "--no-spark", "--data", str(tmp_path), "--listen", "udp://127.0.0.1:0")
        assert result.returncode == 1
        assert f"process {one.process.pid}".encode() in result.stderr
        assert result.stdout == b""


def test_who_starts_it_twice_is_told_of_the_first_and_not_to_take_other_ports_alone(tmp_path: Path) -> None:
    with demo(tmp_path) as one:
        listen = f"udp://127.0.0.1:{one.wait_until_ready()['udp']}"
        result = run("smb", "demo", "--no-spark", "--data", str(tmp_path), "--listen", listen)
        assert result.returncode == 1
        text = result.stderr.decode()
        assert f"{tmp_path}/log is in use by process {one.process.pid}: a broker runs there already; stop it" in text
        assert "--data DIR --listen udp://127.0.0.1:0" in text
        assert text.count("\n") == 1


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["--speed", "0"], b"--speed 0: give a number"),
        (["--speed", "fast"], b"invalid float value"),
        (["--listen", "carrier-pigeon"], b"not of the form KIND://HOST:PORT"),
        (["--config", "/no/such/file"], b"/no/such/file: No such file"),
        (["upwards"], b"upwards"),
    ],
)
def test_bad_words_are_named(words: list[str], text: bytes) -> None:
    result = run("smb", "demo", *words)
    assert result.returncode == 2
    assert text in result.stderr
    assert result.stderr.count(b"\n") == 1


def test_help_lists_every_command() -> None:
    result = run("smb", "--help")
    assert result.returncode == 0
    for name, (_, what) in COMMANDS.items():
        assert f"  {name:<10} {what}\n".encode() in result.stdout
        assert run("smb", name, "--help").stdout.startswith(b"usage: smb " + name.encode())


def test_version_and_usage() -> None:
    assert run("smb", "--version").stdout.startswith(b"smb ")
    assert run("smb", "--usage").stdout == b"usage: smb COMMAND [OPTION]...\n"


@pytest.mark.parametrize(
    ("words", "text"),
    [
        ([], b"smb: no command given; try: smb --help\n"),
        (["dmo"], b"'dmo': no such command; did you mean demo? try: smb --help\n"),
        (["--fast"], b"'--fast': no such command; try: smb --help\n"),
    ],
)
def test_what_is_no_command_is_refused(words: list[str], text: bytes) -> None:
    result = run("smb", *words)
    assert (result.returncode, result.stderr) == (2, text)


def test_programs_are_named_as_one_would_type_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "tools" / "bin"
    folder.mkdir(parents=True)
    program = folder / "smbpublish"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", "/usr/bin")
    assert typed_before("tools/bin/smb") == "tools/bin/"
    assert typed_before(str(folder / "smb")) == "tools/bin/"
    monkeypatch.chdir("/usr")
    assert typed_before(str(folder / "smb")) == f"{folder}/"
    assert typed_before("/elsewhere/smb.py") == f"{Path(sys.executable).parent}/"
    monkeypatch.setenv("PATH", f"/usr/bin:{folder}")
    assert typed_before(str(folder / "smb")) == ""
