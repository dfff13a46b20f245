"""A broker that is ended and started again, on the same data and ports; clients that number what they publish
and collect what they get.

    home = Home(tmp_path, "[log]\nseal_rows = 100\n")
    with home.broker() as broker:                      # the same ports each time
        send_all(broker, b"t", numbered(range(100)))   # acknowledged
    with home.broker() as broker:
        assert Reader(broker, b"t").wait(100)[b"t"] == numbered(range(100))
"""

import os
import random
import socket
import sqlite3
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from types import TracebackType

from flow.house import LIMIT, Broker, Tcp, Udp, wait_for
from flow.wires import DISCONNECT, FRAME, PING, PONG, PUBACK, SUBACK, config, identity, padded, publication
from smbroker.log.reader import LogReader

LONG = bool(os.environ.get("SMB_LONG"))
KINDS = ("udp", "padded", "typed")
IDLE = 0.5  # seconds without using any time that count as idle
BULK = 200  # messages in one write
WINDOW = 64  # publishes on their way: what a socket's buffer holds in any case
ACK = b"Hello Publisher!"


class Home:
    """Data and ports that stay while brokers come and go."""

    def __init__(
        self, folder: Path, settings: str = "", data: Path | None = None, kinds: tuple[str, ...] = KINDS
    ) -> None:
        self.data = data or folder / "data"
        self.log = self.data / "log"
        self.ports = dict(zip(kinds, free_ports(len(kinds)), strict=True))
        self._options = config(folder, settings) if settings else ()

    def broker(self, *options: str) -> Broker:
        listen = [word for kind, port in self.ports.items() for word in ("--listen", f"{kind}://127.0.0.1:{port}")]
        return Broker(*listen, *self._options, *options, kinds=(), data=self.data)

    def sealed(self) -> int:
        return len(list(self.log.glob("*.parquet")))

    def tails(self) -> list[Path]:
        return sorted(self.log.glob("*.arrow"))

    def rows(self, *columns: str) -> list[tuple[object, ...]]:
        """All of the log, as `LogReader` gives it to any process."""
        found: list[tuple[object, ...]] = []
        for batch in LogReader(self.log).read(LogReader(self.log).first_offset, columns=columns):
            found += zip(*(batch.column(name).to_pylist() for name in columns), strict=True)
        return found

    def saved(self, sql: str) -> list[tuple[object, ...]] | None:
        """What the state holds; None while it cannot be read."""
        try:
            with closing(sqlite3.connect(f"file:{self.data / 'state.db'}?mode=ro", uri=True)) as database:
                return database.execute(sql).fetchall()
        except sqlite3.OperationalError:
            return None

    def has_saved(self, sql: str, count: int) -> bool:
        found = self.saved(sql)
        return found is not None and len(found) == count

    def wait_saved(self, sql: str, count: int) -> None:
        wait_for(lambda: self.has_saved(sql, count), f"{count} of {sql}, there are {self.saved(sql)}")


def free_ports(count: int) -> list[int]:
    """Numbers that are free on TCP and UDP, out of those that the system gives to others; each is another one."""
    found: list[int] = []
    while len(found) < count:
        port = random.randint(15_000, 30_000)
        if port in found:
            continue
        with socket.socket() as stream, socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as datagram:
            try:
                stream.bind(("127.0.0.1", port))
                datagram.bind(("127.0.0.1", port))
            except OSError:
                continue
        found.append(port)
    return found


@contextmanager
def killed(broker: Broker) -> Iterator[Broker]:
    """A broker that the test ends with kill -9, at the latest at the end."""
    try:
        yield broker
    finally:
        broker.kill()


def children(broker: Broker, word: str) -> list[int]:
    """The broker's own processes whose command line has this word."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            parent = folder.joinpath("stat").read_text().rpartition(")")[2].split()[1]
            if int(parent) == broker.process.pid and word in folder.joinpath("cmdline").read_text():
                found.append(int(folder.name))
        except (FileNotFoundError, ProcessLookupError):
            pass
    return found


def helper(broker: Broker) -> int:
    """The process that reads history."""
    return wait_for(lambda: children(broker, "smbroker.log.history"), "the reading process")[0]


def wait_idle(process: int) -> None:
    """Until the process has used no time for a while: it has done what it was asked for."""
    used, since = -1, time.monotonic()
    while time.monotonic() < since + IDLE:
        fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
        now = int(fields[11]) + int(fields[12])
        if now != used:
            used, since = now, time.monotonic()
        time.sleep(0.01)


def resident(process: int) -> int:
    pages = Path(f"/proc/{process}/statm").read_text().split()[1]
    return int(pages) * os.sysconf("SC_PAGE_SIZE")


def numbered(numbers: Iterable[int], name: bytes = b"", size: int = 0) -> list[bytes]:
    """Payloads that tell who published them and in which order."""
    return [(b"%b %d " % (name, number)).ljust(size, b".") for number in numbers]


# --- publishers ---


class PipePublisher:
    """As fast as acknowledgements come, at most WINDOW ahead of them. `acked`: how many were acknowledged."""

    def __init__(self, port: int) -> None:
        self.client = Udp(port)
        self.sent = self.acked = 0

    def publish(self, topic: bytes, payload: bytes) -> None:
        if self.sent - self.acked >= WINDOW:
            self.take()
        self.client.send(b"P|%b|%b" % (topic, payload))
        self.sent += 1

    def take(self) -> None:
        reply = self.client.receive()
        assert reply == ACK, reply
        self.acked += 1

    def finish(self) -> None:
        while self.acked < self.sent:
            self.take()

    def __enter__(self) -> "PipePublisher":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.finish()
        self.client.sock.close()


class SemicolonPublisher(PipePublisher):
    """Has no acknowledgement: a pipe publish to `$window` after each WINDOW finds out that they were taken."""

    def publish(self, topic: bytes, payload: bytes) -> None:
        self.client.send(b"p%b;%b" % (topic, payload))
        self.sent += 1
        if self.sent - self.acked >= WINDOW:
            self.finish()

    def finish(self) -> None:
        assert self.client.ask(b"P|$window|")
        self.acked = self.sent


def send_all(broker: Broker, title: bytes, payloads: Sequence[bytes]) -> None:
    """By padded: acknowledged, of any size, and many in one write."""
    with closing(Tcp(broker.ports["padded"]).sock) as sock:
        for start in range(0, len(payloads), BULK):
            some = payloads[start : start + BULK]
            sock.sendall(b"".join(publication(title, payload) for payload in some))
            acknowledged = b""
            while len(acknowledged) < 64 * len(some):
                piece = sock.recv(64 * len(some))
                assert piece, "closed"
                acknowledged += piece
            assert acknowledged == PUBACK * len(some)


# --- subscribers ---


class Stream:
    """A TCP client with a thread that reads; `pause` and `go_on` make it slow."""

    def __init__(self, client: Tcp, reading: bool = True) -> None:
        self.client = client
        self.error: str = ""
        self._may = threading.Event()
        if reading:
            self._may.set()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def pause(self) -> None:
        self._may.clear()

    def go_on(self) -> None:
        self._may.set()

    def _run(self) -> None:
        try:
            self._read(self.client.sock)
        except (OSError, AssertionError) as error:
            self.error = repr(error)

    def _read(self, sock: socket.socket) -> None:
        sock.settimeout(None)
        held = b""
        while True:
            self._may.wait()
            piece = sock.recv(1 << 18)
            if not piece:
                self.error = "closed"
                return
            held = self.take(held + piece)

    def wait_while(self, missing: Callable[[], bool], limit: float) -> None:
        deadline = time.monotonic() + limit
        while missing() and not self.error and time.monotonic() < deadline:
            time.sleep(0.005)

    def take(self, data: bytes) -> bytes:
        """Takes all whole frames; returns the rest."""
        raise NotImplementedError

    def finish(self) -> None:
        """Says that it sends no more, and reads what still comes until the broker closes."""
        self._may.set()
        self.client.sock.shutdown(socket.SHUT_WR)
        self._thread.join(3 * LIMIT)
        assert self.error == "closed", self.error or "the broker does not close"
        self.client.sock.close()


class Reader(Stream):
    """A padded subscriber: `got[title]` is what came. A message before its title's SubAck is an error."""

    def __init__(self, broker: Broker, *titles: bytes, reading: bool = True, client: Tcp | None = None) -> None:
        super().__init__(client or broker.tcp("padded"), reading)
        self.titles = list(titles)
        self.acknowledged = 0
        self.got: dict[bytes, list[bytes]] = {title: [] for title in titles}
        self.count = 0
        self.client.send(b"".join(padded(b"Subscribe", title) for title in titles))
        self.start()

    def take(self, data: bytes) -> bytes:
        at = 0
        while len(data) - at >= 64:
            word = data[at : at + 64]
            if word == SUBACK:
                self.acknowledged += 1
            elif word == PING:
                self.client.send(PONG)
            else:
                assert word.rstrip() == b"Message", word
                if len(data) - at < 192:
                    break
                title, length = data[at + 64 : at + 128].rstrip(), int(data[at + 128 : at + 192])
                if len(data) - at < 192 + length:
                    break
                assert title in self.titles[: self.acknowledged], f"{title!r} before its SubAck"
                self.got[title].append(data[at + 192 : at + 192 + length])
                self.count += 1
                at += 128 + length
            at += 64
        return data[at:]

    def wait(self, count: int, limit: float = 3 * LIMIT) -> dict[bytes, list[bytes]]:
        """Until so many messages have come in all."""
        self.wait_some(count, limit)
        assert self.count == count
        return self.got

    def wait_some(self, count: int, limit: float = 3 * LIMIT) -> None:
        self.wait_while(lambda: self.count < count, limit)
        assert self.count >= count, f"{self.count} of {count} messages came {self.error}"

    def leave(self) -> dict[bytes, list[bytes]]:
        """Says goodbye; everything that was on its way before that has come when the connection is closed."""
        self.client.send(DISCONNECT)
        self._thread.join(LIMIT)
        return self.got


class TypedReader(Stream):
    """A typed client under an id: `got` is what came, as (topic, type, content, source)."""

    def __init__(self, broker: Broker, name: bytes, *commands: bytes, reading: bool = True) -> None:
        super().__init__(broker.tcp("typed"), reading)
        self.name = name.decode()
        self._broker = broker
        self.got: list[tuple[bytes, int, bytes, tuple[str, int]]] = []
        line = f"New client {self.name} connected from 127.0.0.1:{self.client.address[1]}."
        self.client.send(identity(name) + b"".join(commands))
        broker.out.wait(line)
        self.start()

    def take(self, data: bytes) -> bytes:
        whole = len(data) // FRAME * FRAME
        for at in range(0, whole, FRAME):
            frame = data[at : at + FRAME]
            assert frame.endswith(b"\r"), frame
            host, port = frame[1551:1567].rstrip(b"\0").decode(), int.from_bytes(frame[1567:1569], "big")
            self.got.append((frame[:50].rstrip(b"\0"), frame[50], frame[51:1551].rstrip(b"\0"), (host, port)))
        return data[whole:]

    @property
    def contents(self) -> list[bytes]:
        return [content for _, _, content, _ in self.got]

    def wait(self, count: int, limit: float = 3 * LIMIT) -> list[bytes]:
        """Until so many messages have come; their contents."""
        self.wait_while(lambda: len(self.got) < count, limit)
        assert len(self.got) == count, f"{len(self.got)} of {count} messages came {self.error}"
        return self.contents

    def leave(self) -> list[bytes]:
        """Goes away with everything that was sent to it, and waits until the broker knows."""
        gone = f"Client {self.name} disconnected."
        before = self._broker.out.all.count(gone)
        self.finish()
        wait_for(lambda: self._broker.out.all.count(gone) > before, gone)
        return self.contents


def until(moment: float) -> None:
    """Waits for a moment of the clock; for tests that must act at many different ones."""
    time.sleep(max(0.0, moment - time.monotonic()))
