"""UDP peers at addresses of their own, and ways to line them up with a broker.

    peer = Peer(broker, "127.0.0.2")       all of 127/8 is loopback: each test may have its own addresses
    with frozen(broker): ...               what is sent inside is read by the broker at once
    settled(broker)                        everything sent before has been dealt with
    counts(broker)                         stops it: what it dropped, by reason
    with started("--quiet", …) as broker:  a broker with no options but these, however it starts
    with Terminal() as terminal: ...       a terminal for a program to write to
Of a dialect this knows how to subscribe and what comes then, no more.
"""

import os
import pty
import re
import signal
import socket
import subprocess
import tempfile
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from flow.house import BIN, LIMIT, Broker, Lines, Udp, end_with_the_tests, wait_for

ON_A_FREE_PORT = ("--no-log", "--listen", "udp://127.0.0.1:0")
DIALECTS = ("soh", "pipe", "semicolon")
FRAMES = {"soh": b"\x01%b\x02%b", "pipe": b"TOPIC: %b - MESSAGE: %b", "semicolon": b"%b;%b"}
TOPIC = b"a/b"
SUBSCRIBE = {"soh": b"S", "pipe": b"S|", "semicolon": b"s"}


def _ipv6() -> bool:
    try:
        with socket.socket(socket.AF_INET6, socket.SOCK_DGRAM) as sock:
            sock.bind(("::1", 0))
    except OSError:
        return False
    return True


needs_ipv6 = pytest.mark.skipif(not _ipv6(), reason="this machine has no IPv6")


class Peer(Udp):
    """Bound to an address before it connects, so that it can come back to the same one."""

    def __init__(self, broker: Broker, host: str = "127.0.0.1", own: int = 0, kind: str = "udp") -> None:
        self.sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4 << 20)
        self.sock.bind((host, own))
        self.sock.connect(("127.0.0.1", broker.ports[kind]))
        self._broker, self._kind = broker, kind

    def subscribe(self, dialect: str, topic: bytes) -> None:
        """Subscribes and makes sure that the broker has dealt with it."""
        self.send(SUBSCRIBE[dialect] + topic)
        expected = {"soh": b"A" + topic, "pipe": b"Hello Subscriber!"}
        if dialect in expected:
            assert self.receive() == expected[dialect]
        else:
            settled(self._broker, self._kind)

    def again(self) -> "Peer":
        """A new socket at the same address and port; the old one is closed."""
        host, port = self.address
        self.sock.close()
        return Peer(self._broker, host, port, self._kind)

    def close(self) -> None:
        self.sock.close()


def relay(*options: str, kinds: tuple[str, ...] = ("udp",)) -> Broker:
    """A broker without log: it starts and stops sooner, and its rules are the same."""
    return Broker("--no-log", *options, kinds=kinds)


def settled(broker: Broker, kind: str = "udp") -> None:
    """Questions that are answered after all that came before them on that socket; refused, so nobody sees them.

    The answer to the first may leave before the messages of its turn do; the second is taken in a later turn."""
    client = Udp(broker.ports[kind])
    for _ in range(2):
        assert client.ask(b"P|$settled|").startswith(b"ERROR: ")
    broker.settles += 2
    client.sock.close()


def publish(broker: Broker, message: bytes = b"m", times: int = 1, topic: bytes = TOPIC) -> None:
    """Each in a turn of its own, over before this returns."""
    client = Udp(broker.ports["udp"])
    for _ in range(times):
        assert client.ask(b"P|" + topic + b"|" + message) == b"Hello Publisher!"
    client.sock.close()
    settled(broker)


def ended(broker: Broker, address: tuple[str, int], dialect: str) -> bool:
    """Whether the broker has said so; for brokers that have not much else to warn of."""
    return broker.err.has("warning: {} {}:{} does not listen any more".format(dialect, *address))


def cpu_seconds(process: "subprocess.Popen[bytes]") -> float:
    """That it has worked so far."""
    words = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK")


def answers(port: int) -> bool:
    """Whether a broker on that UDP port does its work."""
    client = Udp(port)
    try:
        return client.ask(b"P|there|m") == b"Hello Publisher!"
    finally:
        client.sock.close()


@contextmanager
def frozen(broker: Broker) -> Iterator[None]:
    """The broker stands still meanwhile; what is sent to it then comes in one read."""
    broker.signal(signal.SIGSTOP)
    try:
        status = Path(f"/proc/{broker.process.pid}/stat")
        wait_for(lambda: status.read_text().rpartition(")")[2].split()[0] == "T", "the broker to stand still")
        yield
    finally:
        broker.signal(signal.SIGCONT)


def signalled(broker: Broker, number: int) -> None:
    """Sends the signal and makes sure that the broker has taken note of it."""
    broker.signal(number)
    for _ in range(3):
        settled(broker)


def counts(broker: Broker) -> dict[str, int]:
    """Stops the broker; what it says it has dropped: `reason`, or `dialect reason` for what did not fit."""
    broker.stop()
    line = next((line for line in broker.err.all if "dropped in all: " in line), "dropped in all: ")
    found = re.findall(r"([a-z_0-9 ]+) (\d+)(?:, |$)", line.partition("dropped in all: ")[2])
    reasons = Counter({reason: int(count) for reason, count in found})
    reasons["topic_reserved"] -= broker.settles
    return dict(+reasons)


class Program:
    """A broker as a process; `out` and `err` are there where they are pipes."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self.process = process
        if process.stdout:
            self.out = Lines(process.stdout)
        if process.stderr:
            self.err = Lines(process.stderr)

    def wait(self) -> int:
        """Its exit status, once it has ended by itself and all that it said has been read."""
        code = self.process.wait(LIMIT)
        for lines in (getattr(self, "out", None), getattr(self, "err", None)):
            if lines:
                lines.wait_end()
        return code

    def stop(self, number: int = signal.SIGTERM) -> int:
        self.process.send_signal(number)
        return self.wait()

    def udp_port(self) -> int:
        """Of its UDP socket, as the kernel knows it: --quiet tells none."""
        return wait_for(self._udp_port, "a UDP socket")

    def _udp_port(self) -> int:
        assert self.process.poll() is None, self.err.wait_end()
        own = set()
        for entry in Path(f"/proc/{self.process.pid}/fd").iterdir():
            try:
                own.add(str(entry.readlink()).removeprefix("socket:[").removesuffix("]"))
            except OSError:
                pass  # closed meanwhile
        for line in Path(f"/proc/{self.process.pid}/net/udp").read_text().splitlines()[1:]:
            words = line.split()
            if words[9] in own:
                return int(words[1].partition(":")[2], 16)
        return 0


@contextmanager
def started(*options: str, **settings: Any) -> Iterator[Program]:
    """In a directory of its own; ended when the test has not done so."""
    streams = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with tempfile.TemporaryDirectory(prefix="smb-test-", ignore_cleanup_errors=True) as folder:
        settings = {"cwd": folder, **streams, **settings}
        process = subprocess.Popen(
            [BIN / "smbbroker", *options], start_new_session=True, preexec_fn=end_with_the_tests, **settings
        )
        try:
            yield Program(process)
        finally:
            if process.poll() is None:
                process.kill()
            process.wait(LIMIT)


class Terminal:
    """`slave` is what a program gets; what it writes there is read all the time, unless nobody reads."""

    def __init__(self, *, read: bool = True) -> None:
        self._master, self.slave = pty.openpty()
        self._pieces: list[bytes] = []
        self._thread = threading.Thread(target=self._read, daemon=True)
        if read:
            self._thread.start()

    def __enter__(self) -> "Terminal":
        return self

    def __exit__(self, *_: object) -> None:
        self._close_slave()
        os.close(self._master)

    def text(self) -> str:
        """All that was written, once the programs have ended."""
        self._close_slave()
        self._thread.join(LIMIT)
        return b"".join(self._pieces).decode().replace("\r\n", "\n")

    def type(self, text: str) -> None:
        os.write(self._master, text.encode())

    def _close_slave(self) -> None:
        if self.slave >= 0:
            os.close(self.slave)
            self.slave = -1

    def _read(self) -> None:
        try:
            while piece := os.read(self._master, 4_096):
                self._pieces.append(piece)
        except OSError:
            pass  # how a terminal ends
