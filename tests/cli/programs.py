"""Runs the installed programs as people do, and plays the broker with plain sockets.

    run("smbpublish", "topic", "message")       to its end
    with started("smbsubscribe", "topic") as program:
        program.expect(b"topic;message\\n")     waits for exactly this on standard output
        program.interrupt()                     SIGINT, or another signal; then `ended()`

Everything that waits fails after PATIENCE seconds; nothing sleeps for a guess.
"""

import os
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

PATIENCE = 60.0
SCRIPTS = Path(sys.executable).parent


def command(program: str, *arguments: str | bytes | int) -> list[bytes]:
    words = [str(word) if isinstance(word, int) else word for word in arguments]
    return [os.fsencode(SCRIPTS / program), *map(os.fsencode, words)]


def run(
    program: str, *arguments: str | bytes | int, message: bytes | None = None
) -> subprocess.CompletedProcess[bytes]:
    """`message` comes through a pipe on standard input; without it that is /dev/null, neither pipe nor file."""
    if message is None:
        return subprocess.run(
            command(program, *arguments), stdin=subprocess.DEVNULL, capture_output=True, timeout=PATIENCE
        )
    return subprocess.run(command(program, *arguments), input=message, capture_output=True, timeout=PATIENCE)


class Program:
    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self.process = process
        self._read = {"stdout": b"", "stderr": b""}

    def expect(self, expected: bytes, stream: str = "stdout") -> None:
        """The next that the program prints is this."""
        while len(self._read[stream]) < len(expected):
            more = self._more(stream)
            assert more, f"{stream} ended with {self._read[stream]!r}, expected {expected!r}"
            self._read[stream] += more
        got, self._read[stream] = self._read[stream][: len(expected)], self._read[stream][len(expected) :]
        assert got == expected

    def expect_line(self, part: bytes, stream: str = "stderr") -> None:
        """The next line that the program prints has this in it."""
        while b"\n" not in self._read[stream]:
            more = self._more(stream)
            assert more, f"{stream} ended with {self._read[stream]!r}, expected {part!r}"
            self._read[stream] += more
        line, _, self._read[stream] = self._read[stream].partition(b"\n")
        assert part in line, f"{part!r} is not in {line!r}"

    def type(self, text: bytes) -> None:
        assert self.process.stdin
        self.process.stdin.write(text)
        self.process.stdin.flush()

    def end_input(self) -> None:
        assert self.process.stdin
        self.process.stdin.close()

    def interrupt(self, number: int = signal.SIGINT) -> None:
        self.process.send_signal(number)

    def ended(self) -> int:
        return self.process.wait(PATIENCE)

    def rest(self, stream: str) -> bytes:
        """What is left, once the program has ended."""
        while more := self._more(stream):
            self._read[stream] += more
        return self._read[stream]

    def _more(self, stream: str) -> bytes:
        source = getattr(self.process, stream)
        readable, _, _ = select.select([source], [], [], PATIENCE)
        assert readable, f"nothing more on {stream} after {self._read[stream]!r}"
        return os.read(source.fileno(), 65_536)


@contextmanager
def started(program: str, *arguments: str | bytes | int) -> Iterator[Program]:
    """Standard input is a pipe that stays open."""
    process = subprocess.Popen(
        command(program, *arguments), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    with process:
        try:
            yield Program(process)
        finally:
            process.kill()


class UdpBroker:
    """One end of a conversation in datagrams; `hear` remembers who spoke, `say` answers."""

    def __init__(self) -> None:
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._socket.bind(("127.0.0.1", 0))
        self._socket.settimeout(PATIENCE)
        self.port: int = self._socket.getsockname()[1]
        self.client = ("", 0)

    def hear(self) -> bytes:
        datagram, self.client = self._socket.recvfrom(65_535)
        return datagram

    def say(self, datagram: bytes) -> None:
        self._socket.sendto(datagram, self.client)

    def heard_nothing(self) -> bool:
        """For use once the program has ended: what it sent on this machine has arrived by then."""
        return not select.select([self._socket], [], [], 0)[0]

    def close(self) -> None:
        self._socket.close()


class TcpBroker:
    def __init__(self) -> None:
        self._listening = socket.create_server(("127.0.0.1", 0))
        self._listening.settimeout(PATIENCE)
        self.port: int = self._listening.getsockname()[1]

    def accept(self) -> "TcpPeer":
        return TcpPeer(self._listening.accept()[0])

    def close(self) -> None:
        self._listening.close()


class TcpPeer:
    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        self.connection.settimeout(PATIENCE)

    def hear(self, length: int) -> bytes:
        """Exactly so many bytes, or fewer if the client closes."""
        data = b""
        while len(data) < length and (more := self.connection.recv(length - len(data))):
            data += more
        return data

    def hear_all(self) -> bytes:
        """Everything until the client closes."""
        return b"".join(iter(lambda: self.connection.recv(65_536), b""))

    def say(self, data: bytes) -> None:
        self.connection.sendall(data)

    def close(self) -> None:
        self.connection.close()


def free_port(kind: socket.SocketKind) -> int:
    """A port on which nobody listens."""
    with socket.socket(socket.AF_INET, kind) as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
