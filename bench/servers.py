"""The servers that are measured, each freshly started on a free port of 127.0.0.1, and their processor time.

The processor time is that of the process and of all that it started (the broker reads history and seals
in processes of its own), those included that have ended.
"""

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from rounds import RunFailed

SMBBROKER = Path(sys.executable).parent / "smbbroker"
BUILD = Path(__file__).resolve().parent / "build"
COMPILED = BUILD.parents[1] / "build" / "compiled"  # what `make compiled` made, if it did
TICKS = os.sysconf("SC_CLK_TCK")
START_LIMIT = 20.0  # seconds for a server to answer
SETTLED = 0.2  # seconds without any processor time
STOP_LIMIT = 10.0  # seconds for a server to end before it is killed
MANY = "20000"  # semicolon subscribers: the idle ones and some


@dataclass(frozen=True)
class Broker:
    """smbbroker with one listener and nothing on its console."""

    listener: str
    log: bool
    compiled: bool = False

    def with_log(self) -> "Broker":
        return replace(self, log=True)

    def as_compiled(self) -> "Broker":
        return replace(self, compiled=True)

    def log_in(self, directory: Path) -> Path | None:
        return directory / "data" / "log" if self.log else None

    def command(self, port: int, directory: Path) -> list[str]:
        log = ["--data", str(directory / "data")] if self.log else ["--no-log"]
        listen = f"{self.listener}://127.0.0.1:{port}"
        build = ["env", f"PYTHONPATH={COMPILED}"] if self.compiled else []
        return [*build, str(SMBBROKER), "--quiet", "-s", MANY, *log, "--listen", listen]


@dataclass(frozen=True)
class Relay:
    listener = "udp"
    log = False

    def log_in(self, _directory: Path) -> None:
        return None

    def command(self, port: int, _directory: Path) -> list[str]:
        return [str(BUILD / "plain_relay"), str(port)]


MOSQUITTO_SETTINGS = """\
listener {port} 127.0.0.1
allow_anonymous true
set_tcp_nodelay true
max_queued_messages 0
max_inflight_messages 0
"""


@dataclass(frozen=True)
class Peer:
    """Another broker, if it is installed; as it comes, but for what would make it drop messages."""

    name: str
    program: str
    listener = "tcp"
    log = False

    @property
    def path(self) -> str | None:
        beside = SMBBROKER.parent / self.program
        return str(beside) if beside.exists() else shutil.which(self.program, path=f"{os.environ['PATH']}:/usr/sbin")

    def log_in(self, _directory: Path) -> None:
        return None

    def command(self, port: int, directory: Path) -> list[str]:
        if not self.path:
            raise RunFailed(f"{self.program} is not installed")
        settings = directory / "settings"
        if self.program == "mosquitto":
            settings.write_text(MOSQUITTO_SETTINGS.format(port=port))
            return [self.path, "-c", str(settings)]
        if self.program == "amqtt":
            settings.write_text(AMQTT_SETTINGS.format(port=port))
            return [self.path, "-c", str(settings)]
        return [self.path, "-a", "127.0.0.1", "-p", str(port)]


AMQTT_SETTINGS = """\
listeners:
  default: {{type: tcp, bind: "127.0.0.1:{port}"}}
plugins:
  amqtt.plugins.authentication.AnonymousAuthPlugin: {{allow_anonymous: true}}
"""


@dataclass(frozen=True)
class OnOneCore:
    """A server that shares its core with the generator, as far as that runs there too: how long it takes to wake
    another core is then not in the figures."""

    server: Broker | Peer
    listener = "tcp"
    log = False

    def log_in(self, _directory: Path) -> None:
        return None

    def command(self, port: int, directory: Path) -> list[str]:
        return [*ONE_CORE, *self.server.command(port, directory)]


ONE_CORE = ("taskset", "-c", str(max(os.sched_getaffinity(0))))
RELAY = Relay()
MOSQUITTO, NATS, AMQTT = Peer("Mosquitto", "mosquitto"), Peer("NATS", "nats-server"), Peer("amqtt", "amqtt")
Server = Broker | Relay | Peer | OnOneCore


@contextmanager
def started(server: Server, directory: Path) -> Iterator[tuple[int, int]]:
    """Its process id and its port, once it answers."""
    port = free_port()
    with running(server.command(port, directory), directory) as process:
        answers = answers_datagrams if server.listener == "udp" else answers_connections
        deadline = time.monotonic() + START_LIMIT
        while not answers(port):
            if process.poll() is not None or time.monotonic() > deadline:
                raise RunFailed(f"the server does not answer. {last_words(directory)}")
            time.sleep(0.02)
        settle(process.pid, deadline)
        yield process.pid, port


def settle(pid: int, deadline: float) -> None:
    """Waits until it does nothing: the broker's reading process starts after the broker is ready."""
    before = -1.0
    while before != (now := processor_seconds(pid)) and time.monotonic() < deadline:
        before = now
        time.sleep(SETTLED)


@contextmanager
def running(command: Sequence[str], directory: Path, stdout: int = subprocess.DEVNULL) -> Iterator[subprocess.Popen]:
    """In a session of its own, so that Ctrl-C is for the bench, which ends it."""
    with (directory / "stderr").open("wb") as errors:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=stdout, stderr=errors, start_new_session=True
        )
    try:
        yield process
    finally:
        stop(process)


def stop(process: subprocess.Popen, number: int = signal.SIGTERM) -> None:
    if process.poll() is None:
        process.send_signal(number)
    try:
        process.wait(STOP_LIMIT)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    if process.stdout:
        process.stdout.close()


def last_words(directory: Path) -> str:
    lines = (directory / "stderr").read_text(errors="replace").strip().splitlines()
    return lines[-1] if lines else "It said nothing."


def free_port() -> int:
    """Free for TCP and UDP alike."""
    while True:
        with socket.socket() as stream, socket.socket(type=socket.SOCK_DGRAM) as datagram:
            stream.bind(("127.0.0.1", 0))
            port: int = stream.getsockname()[1]
            try:
                datagram.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port


def answers_datagrams(port: int) -> bool:
    """In semicolon, which every UDP server here speaks; it leaves no subscription behind."""
    with socket.socket(type=socket.SOCK_DGRAM) as sock:
        sock.settimeout(0.1)
        sock.connect(("127.0.0.1", port))
        try:
            sock.send(b"sbench/up")
            sock.send(b"pbench/up;?")
            heard = sock.recv(100) == b"bench/up;?"
            sock.send(b"u")
        except OSError:
            return False
    return heard


def answers_connections(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=1).close()
    except OSError:
        return False
    return True


def processor_seconds(pid: int) -> float:
    """Of the process and its descendants, the ended ones too as far as they were waited for."""
    stats = dict(_processes())
    family, ticks = {pid}, 0
    grown = True
    while grown:
        more = {child for child, (parent, _) in stats.items() if parent in family} - family
        family |= more
        grown = bool(more)
    for member in family & stats.keys():
        ticks += stats[member][1]
    return ticks / TICKS


def _processes() -> Iterator[tuple[int, tuple[int, int]]]:
    """Each with its parent and its ticks: user, system, and the same of children that have ended."""
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:  # ended meanwhile
                continue
            yield int(entry.name), (int(fields[1]), sum(map(int, fields[11:15])))


def machine_seconds() -> float:
    """What the processors of this machine have spent on anything, or had stolen by its host."""
    user, nice, system, _idle, _wait, irq, softirq, steal = map(int, Path("/proc/stat").read_text().split()[1:9])
    return (user + nice + system + irq + softirq + steal) / TICKS
