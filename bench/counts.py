"""What rights cost, in instructions of the broker for each delivery.

Times on a busy machine differ by more than rights cost; instructions hardly do. Valgrind counts them, in one broker
without rules and in one with rules. Clients send a piece, wait until all of it has arrived, and send the next, so that
both brokers do the same. Needs valgrind; the brokers run fifty times slower than without it.
"""

import re
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from rounds import Bench, Run, RunFailed
from servers import SMBBROKER, answers_connections, free_port, last_words, running

LIMIT = 600.0  # seconds
PAYLOAD = b"x" * 64
RULES = '[[allow]]\nanyone = true\ntopics = "#"\n[[deny]]\nanyone = true\ntopics = "secret/#"\n'
MQTT_CONNECT = b"\x10\x0c\0\4MQTT\4\2\0\0\0\0"


@dataclass(frozen=True)
class Way:
    key: str
    title: str
    dialect: str
    subscribers: int = 1
    size: int = 1  # messages of a piece
    topics: int = 1


WAYS = (
    Way("mqtt_1", "MQTT, 1 → 1", "mqtt", size=200),
    Way("mqtt_10", "MQTT, 1 → 10", "mqtt", 10, size=200),
    Way("mqtt_topics", "MQTT, 100 topics in turn", "mqtt", size=200, topics=100),
    Way("mqtt_alone", "MQTT, one message at a time", "mqtt"),
    Way("semicolon_1", "semicolon, 1 → 1", "semicolon", size=50),
    Way("semicolon_10", "semicolon, 1 → 10", "semicolon", 10, size=50),
    Way("semicolon_alone", "semicolon, one message at a time", "semicolon"),
)


class Counted:
    """A broker in valgrind."""

    def __init__(self, directory: Path, pid: int, ports: Mapping[str, int]) -> None:
        self._directory, self._pid = directory, pid
        self.ports = ports

    def count(self) -> int:
        """Instructions since the last call."""
        for old in self._directory.glob("out.*"):
            old.unlink()
        command = ["vgdb", f"--vgdb-prefix={self._directory}/", f"--pid={self._pid}", "dump"]
        try:
            subprocess.run(command, check=True, capture_output=True, timeout=LIMIT)
        except subprocess.SubprocessError as error:
            raise RunFailed(f"valgrind does not tell what it has counted: {error}") from error
        found = [re.findall(r"^totals: (\d+)", file.read_text(), re.M) for file in self._directory.glob("out.*")]
        return sum(int(one) for each in found for one in each)


@contextmanager
def counted(directory: Path, rules: bool) -> Iterator[Counted]:
    file = directory / "rules.toml"
    file.write_text(RULES)
    command = ["env", "PYTHONHASHSEED=0", "valgrind", "--tool=callgrind"]
    command += [f"--callgrind-out-file={directory}/out", f"--vgdb-prefix={directory}/"]
    command += [sys.executable, str(SMBBROKER), "--quiet", "--no-log", "--data", str(directory)]
    ports = {dialect: free_port() for dialect in ("mqtt", "semicolon")}
    for dialect, port in ports.items():
        command += ["--listen", f"{dialect}://127.0.0.1:{port}"]
    command += ["--rules", str(file)] if rules else []
    with running(command, directory) as process:
        deadline = time.monotonic() + LIMIT
        while not answers_connections(ports["mqtt"]):
            if process.poll() is not None or time.monotonic() > deadline:
                raise RunFailed(f"the broker does not answer. {last_words(directory)}")
            time.sleep(0.5)
        yield Counted(directory, process.pid, ports)


def connected(broker: Counted, dialect: str) -> socket.socket:
    udp = dialect == "semicolon"
    sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM if udp else socket.SOCK_STREAM)
    sock.settimeout(LIMIT)
    sock.connect(("127.0.0.1", broker.ports[dialect]))
    if not udp:
        sock.sendall(MQTT_CONNECT)
        sock.recv(4)
    return sock


def run(publisher: socket.socket, subscribers: list[socket.socket], way: Way, pieces: int) -> None:
    names = [b"load/%02d" % (number % way.topics) for number in range(way.size)]
    mqtt = way.dialect == "mqtt"
    if mqtt:
        body = b"".join(b"\x30\x49\0\7" + name + PAYLOAD for name in names)
    for _ in range(pieces):
        if mqtt:
            publisher.sendall(body)
        else:
            for name in names:
                publisher.send(b"p" + name + b";" + PAYLOAD)
        for sock in subscribers:
            left = len(body) if mqtt else way.size
            while left:
                left -= len(sock.recv(1 << 20)) if mqtt else bool(sock.recv(1 << 16))


def subscribed(broker: Counted, dialect: str) -> socket.socket:
    sock = connected(broker, dialect)
    if dialect == "mqtt":
        sock.sendall(b"\x82\x0b\0\1\0\6load/#\0")
        sock.recv(5)
        return sock
    sock.send(b"sload/#")
    sock.send(b"pload/00;probe")
    sock.recv(100)  # so that the subscription, which has no answer, was heard
    return sock


def instructions(broker: Counted, way: Way, messages: int) -> float:
    """For each delivery."""
    dialect, number, size = way.dialect, way.subscribers, way.size
    subscribers = [subscribed(broker, dialect) for _ in range(number)]
    if dialect == "semicolon":  # the probes of those that came later
        for at, sock in enumerate(subscribers):
            for _ in range(number - 1 - at):
                sock.recv(100)
    publisher = connected(broker, dialect)
    run(publisher, subscribers, way, 10)
    broker.count()
    pieces = max(1, messages // size // (20 if size == 1 else 1))
    run(publisher, subscribers, way, pieces)
    found = broker.count()
    for sock in (publisher, *subscribers):
        if dialect == "semicolon":
            sock.send(b"u")
        sock.close()
    return found / (pieces * size * number)


def missing() -> str:
    return "" if shutil.which("valgrind") else "there is no valgrind; on Debian: apt-get install valgrind"


def rights(bench: Bench) -> Run:
    """Of each way, with rules ÷ without."""
    messages = bench.scale.appended // 50  # a twentieth of them where one goes at a time
    places = bench.new_directory(), bench.new_directory()
    try:
        with counted(places[0], rules=False) as without, counted(places[1], rules=True) as ruled:
            return {way.key: instructions(ruled, way, messages) / instructions(without, way, messages) for way in WAYS}
    finally:
        for place in places:
            shutil.rmtree(place, ignore_errors=True)
