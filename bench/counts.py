"""What rights cost, in instructions of the broker for each delivery: `python bench/counts.py [--messages N]`.

Times on a busy machine differ by more than rights cost; instructions hardly do. Valgrind counts them, in one broker
without rules and in one with rules. Clients send a piece, wait until all of it has arrived, and send the next, so that
both brokers do the same. Needs valgrind; the brokers run fifty times slower than without it.
"""

import argparse
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

SMBBROKER = Path(sys.executable).parent / "smbbroker"
LIMIT = 600.0  # seconds
PAYLOAD = b"x" * 64
RULES = '[[allow]]\nanyone = true\ntopics = "#"\n[[deny]]\nanyone = true\ntopics = "secret/#"\n'
MQTT_CONNECT = b"\x10\x0c\0\4MQTT\4\2\0\0\0\0"
CASES = (  # name, dialect, subscribers, messages of a piece, topics
    ("MQTT, 1 to 1", "mqtt", 1, 200, 1),
    ("MQTT, 1 to 10", "mqtt", 10, 200, 1),
    ("MQTT, 1 to 1, 100 topics in turn", "mqtt", 1, 200, 100),
    ("MQTT, 1 to 1, one at a time", "mqtt", 1, 1, 1),
    ("semicolon, 1 to 1", "semicolon", 1, 50, 1),
    ("semicolon, 1 to 10", "semicolon", 10, 50, 1),
    ("semicolon, 1 to 1, one at a time", "semicolon", 1, 1, 1),
)


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as sock:
        return int(sock.getsockname()[1])


class Counted:
    """A broker in valgrind."""

    def __init__(self, directory: Path, rules: bool) -> None:
        self._directory = directory
        file = directory / "rules.toml"
        file.write_text(RULES)
        command = [
            "valgrind",
            "--tool=callgrind",
            f"--callgrind-out-file={directory}/out",
            f"--vgdb-prefix={directory}/",
        ]
        command += [sys.executable, str(SMBBROKER), "--quiet", "--no-log", "--data", str(directory)]
        self.ports = {dialect: free_port() for dialect in ("mqtt", "semicolon")}
        for dialect, port in self.ports.items():
            command += ["--listen", f"{dialect}://127.0.0.1:{port}"]
        command += ["--rules", str(file)] if rules else []
        environment = os.environ | {"PYTHONHASHSEED": "0"}
        self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=environment)
        deadline = time.monotonic() + LIMIT
        while True:
            try:
                socket.create_connection(("127.0.0.1", self.ports["mqtt"])).close()
                return
            except OSError:
                if self.process.poll() is not None or time.monotonic() > deadline:
                    sys.exit("the broker does not answer")
                time.sleep(0.5)

    def count(self) -> int:
        """Instructions since the last call."""
        for old in self._directory.glob("out.*"):
            old.unlink()
        subprocess.run(
            ["vgdb", f"--vgdb-prefix={self._directory}/", f"--pid={self.process.pid}", "dump"],
            check=True,
            capture_output=True,
            timeout=LIMIT,
        )
        found = [re.findall(r"^totals: (\d+)", file.read_text(), re.M) for file in self._directory.glob("out.*")]
        return sum(int(one) for each in found for one in each)

    def close(self) -> None:
        self.process.terminate()
        self.process.wait(LIMIT)


@contextmanager
def counted(rules: bool) -> Iterator[Counted]:
    with tempfile.TemporaryDirectory() as directory:
        broker = Counted(Path(directory), rules)
        try:
            yield broker
        finally:
            broker.close()


def connected(broker: Counted, dialect: str) -> socket.socket:
    udp = dialect == "semicolon"
    sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM if udp else socket.SOCK_STREAM)
    sock.settimeout(LIMIT)
    sock.connect(("127.0.0.1", broker.ports[dialect]))
    if not udp:
        sock.sendall(MQTT_CONNECT)
        sock.recv(4)
    return sock


def run(
    publisher: socket.socket, subscribers: list[socket.socket], case: tuple[str, str, int, int, int], pieces: int
) -> None:
    _, dialect, _, size, topics = case
    names = [b"load/%02d" % (number % topics) for number in range(size)]
    if dialect == "mqtt":
        body = b"".join(b"\x30\x49\0\7" + name + PAYLOAD for name in names)
    for _ in range(pieces):
        if dialect == "mqtt":
            publisher.sendall(body)
        else:
            for name in names:
                publisher.send(b"p" + name + b";" + PAYLOAD)
        for sock in subscribers:
            left = len(body) if dialect == "mqtt" else size
            while left:
                left -= len(sock.recv(1 << 20)) if dialect == "mqtt" else bool(sock.recv(1 << 16))


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


def instructions(broker: Counted, case: tuple[str, str, int, int, int], messages: int) -> float:
    """For each delivery."""
    _, dialect, number, size, _ = case
    subscribers = [subscribed(broker, dialect) for _ in range(number)]
    if dialect == "semicolon":  # the probes of those that came later
        for at, sock in enumerate(subscribers):
            for _ in range(number - 1 - at):
                sock.recv(100)
    publisher = connected(broker, dialect)
    run(publisher, subscribers, case, 10)
    broker.count()
    pieces = max(1, messages // size // (20 if size == 1 else 1))
    run(publisher, subscribers, case, pieces)
    found = broker.count()
    for sock in (publisher, *subscribers):
        if dialect == "semicolon":
            sock.send(b"u")
        sock.close()
    return found / (pieces * size * number)


def main() -> None:
    options = argparse.ArgumentParser(description="Instructions for each delivery, without and with rules.")
    options.add_argument("--messages", type=int, default=20_000, help="of each case; a twentieth where one at a time")
    options.add_argument("--rounds", type=int, default=1, help="each with brokers of its own")
    words = options.parse_args()
    if not shutil.which("valgrind"):
        sys.exit("there is no valgrind: apt-get install valgrind")
    print("| instructions for each delivery | without rules | with rules | ratio |\n|---|--:|--:|--:|")
    for _ in range(words.rounds):
        with counted(False) as without, counted(True) as ruled:
            for case in CASES:
                off, on = (instructions(broker, case, words.messages) for broker in (without, ruled))
                print(f"| {case[0]} | {off:,.0f} | {on:,.0f} | **{on / off:.3f}** |", flush=True)


if __name__ == "__main__":
    main()
