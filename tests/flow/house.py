"""A real broker in a process of its own, on free ports, and plain sockets to talk to it.

    with Broker() as broker:                       # udp, padded, typed and tcp, each on a free port
        broker.udp().send(b"sa")
`wait_for` waits for a condition; nothing here sleeps for a guess. Output is read by threads, so that
the broker never waits for the test.
"""

import ctypes
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import TypeVar

BIN = Path(sys.executable).parent
LIMIT = 30.0  # seconds until a condition that should hold is a failure
SILENCE = 0.3  # seconds without a datagram that count as silence
LISTEN = ("udp", "padded", "typed", "tcp")

LIBRARY = ctypes.CDLL(None)
PR_SET_PDEATHSIG = 1

T = TypeVar("T")


def wait_for(condition: Callable[[], T], what: str = "", limit: float = LIMIT) -> T:
    deadline = time.monotonic() + limit
    while True:
        found = condition()
        if found:
            return found
        assert time.monotonic() < deadline, f"waited {limit} s for {what or condition}"
        time.sleep(0.005)


def end_with_the_tests() -> None:
    """A test run that is killed leaves no broker behind."""
    LIBRARY.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


class Lines:
    """The lines of a stream so far."""

    def __init__(self, stream: "object") -> None:
        self.all: list[str] = []
        self._thread = threading.Thread(target=self._read, args=(stream,), daemon=True)
        self._thread.start()

    def _read(self, stream: "object") -> None:
        for line in stream:  # type: ignore[attr-defined]
            self.all.append(line.decode().rstrip("\n"))

    def has(self, text: str) -> bool:
        return any(text in line for line in self.all)

    def wait(self, text: str, limit: float = LIMIT) -> str:
        wait_for(lambda: self.has(text), f"{text!r} in {self.all[-20:]}", limit)
        return next(line for line in self.all if text in line)

    def wait_end(self) -> list[str]:
        self._thread.join(LIMIT)
        return self.all


class Broker:
    def __init__(
        self,
        *options: str,
        kinds: tuple[str, ...] = LISTEN,
        stdin: int = subprocess.PIPE,
        data: Path | None = None,
        program: tuple[str | Path, ...] = (BIN / "smbbroker",),
    ) -> None:
        """With `data`, the log and the sessions stay there; otherwise they go with the broker."""
        listen = [word for kind in kinds for word in ("--listen", f"{kind}://127.0.0.1:0")]
        self._scratch = None if data else tempfile.TemporaryDirectory(prefix="smb-test-", ignore_cleanup_errors=True)
        self.data = data or Path(self._scratch.name if self._scratch else "")
        self.process = subprocess.Popen(
            [*program, "--data", self.data, *listen, *options],
            stdin=stdin,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
            preexec_fn=end_with_the_tests,
        )
        self.out = Lines(self.process.stdout)
        self.err = Lines(self.process.stderr)
        self.settles = 0  # questions of `peers.settled`, each counted as refused
        self._sockets: list[socket.socket] = []
        wait_for(lambda: self.out.has("ready") or self.process.poll() is not None, "ready")
        assert self.process.poll() is None, self.err.wait_end()
        words = [line.split() for line in self.out.all if line.startswith("listening ")]
        self.ports = {kind: int(port) for _, kind, _, port in words}

    def __enter__(self) -> "Broker":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for sock in self._sockets:
            sock.close()
        code = self.stop() if self.process.poll() is None else self.process.returncode
        if self._scratch:
            self._scratch.cleanup()
        if kind is None:
            assert code == 0, (code, self.err.wait_end())
            assert not self.err.has("Traceback"), self.err.wait_end()

    def stop(self, number: int = signal.SIGTERM) -> int:
        """Ends the broker; its exit status."""
        self.process.send_signal(number)
        code = self.process.wait(LIMIT)
        self.out.wait_end()
        self.err.wait_end()
        return code

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(LIMIT)

    def signal(self, number: int) -> None:
        self.process.send_signal(number)

    def type(self, text: str) -> None:
        assert self.process.stdin
        self.process.stdin.write(text.encode())
        self.process.stdin.flush()

    def memory(self) -> int:
        """Resident bytes."""
        pages = Path(f"/proc/{self.process.pid}/statm").read_text().split()[1]
        return int(pages) * os.sysconf("SC_PAGE_SIZE")

    def udp(self, kind: str = "udp") -> "Udp":
        return self._kept(Udp(self.ports[kind]))

    def tcp(self, kind: str) -> "Tcp":
        return self._kept(Tcp(self.ports[kind]))

    def _kept(self, client: "T") -> "T":
        self._sockets.append(client.sock)  # type: ignore[attr-defined]
        return client


class Udp:
    """A connected UDP socket, as the existing clients have."""

    def __init__(self, port: int) -> None:
        self.sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 20)
        self.sock.connect(("127.0.0.1", port))

    @property
    def address(self) -> tuple[str, int]:
        host, port = self.sock.getsockname()
        return host, port

    def send(self, datagram: bytes) -> None:
        self.sock.send(datagram)

    def receive(self, limit: float = LIMIT) -> bytes:
        self.sock.settimeout(limit)
        return self.sock.recv(65_536)

    def ask(self, datagram: bytes) -> bytes:
        self.send(datagram)
        return self.receive()

    def silent(self, seconds: float = SILENCE) -> bool:
        """Whether nothing comes for a while. Prefer to send a last message and see that it comes next."""
        self.sock.settimeout(seconds)
        try:
            self.sock.recv(65_536)
        except TimeoutError:
            return True
        return False


class Tcp:
    def __init__(self, port: int) -> None:
        self.sock = socket.create_connection(("127.0.0.1", port), timeout=LIMIT)
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    @property
    def address(self) -> tuple[str, int]:
        host, port = self.sock.getsockname()
        return host, port

    def send(self, data: bytes) -> None:
        self.sock.sendall(data)

    def receive(self, size: int, limit: float = LIMIT) -> bytes:
        """Exactly `size` bytes."""
        self.sock.settimeout(limit)
        data = b""
        while len(data) < size:
            piece = self.sock.recv(size - len(data))
            assert piece, f"closed after {data!r}"
            data += piece
        return data

    def some(self, limit: float = LIMIT) -> bytes:
        """What has come, at least a byte; nothing at the end."""
        self.sock.settimeout(limit)
        return self.sock.recv(65_536)

    def closed(self, limit: float = LIMIT) -> bool:
        """Whether the broker closes the connection without saying more."""
        self.sock.settimeout(limit)
        try:
            return self.sock.recv(1) == b""
        except ConnectionResetError:
            return True

    def silent(self, seconds: float = SILENCE) -> bool:
        self.sock.settimeout(seconds)
        try:
            self.sock.recv(1)
        except TimeoutError:
            return True
        return False
