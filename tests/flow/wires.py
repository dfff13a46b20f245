"""The bytes of padded and typed as their existing clients make them, and small clients made of those.

Written out here a second time, without the package's own codecs, so that the two are held against
each other.
"""

import contextlib
import fcntl
import select
import socket
import struct
import termios
from itertools import count, permutations
from pathlib import Path

from flow.house import LIMIT, Broker, Tcp, Udp, wait_for

FRAME = 1_570
MARK = b"mark/"
_marks, _topics = count(), count()

SUBACK, PUBACK, PING, PONG, DISCONNECT = (
    word.ljust(64) for word in (b"SubAck", b"PubAck", b"Ping", b"Pong", b"Disconnect")
)


def fresh() -> bytes:
    """A topic that nobody has used: without stored messages."""
    return b"topic/%d" % next(_topics)


def config(folder: Path, text: str) -> tuple[str, str]:
    """The option that gives a broker these settings."""
    file = folder / "smb.toml"
    file.write_text(text)
    return "--config", str(file)


def padded(*fields: bytes) -> bytes:
    return b"".join(field.ljust(64) for field in fields)


def publication(title: bytes, message: bytes, length: int | None = None) -> bytes:
    return padded(b"Publish", title, b"%d" % (len(message) if length is None else length)) + message


def delivery(title: bytes, message: bytes) -> bytes:
    return padded(b"Message", title, b"%d" % len(message)) + message


def padded_subscriber(broker: Broker, *titles: bytes, kind: str = "padded") -> Tcp:
    client = broker.tcp(kind)
    for title in titles:
        client.send(padded(b"Subscribe", title))
        assert client.receive(64) == SUBACK
    return client


def padded_publish(client: Tcp, title: bytes, message: bytes) -> None:
    client.send(publication(title, message))
    assert client.receive(64) == PUBACK


def alive(client: Tcp) -> bool:
    """Whether the next that a padded client gets, when it asks, is the answer: nothing else was waiting."""
    client.send(PING)
    return client.receive(64) == PONG


def gets_all(client: Tcp, *parts: bytes) -> bool:
    """Whether just these come, each whole, in whatever order."""
    came = client.receive(sum(map(len, parts)))
    return any(came == b"".join(order) for order in permutations(parts))


def identity(name: bytes) -> bytes:
    return name.ljust(11, b"\0")


def subscription(topic: bytes, sf: int = 0) -> bytes:
    return b"s" + topic.ljust(50, b"\0") + bytes([sf]) + b"\0"


def unsubscription(topic: bytes) -> bytes:
    return b"u" + topic.ljust(50, b"\0") + b"\0"


def datagram(topic: bytes, content: bytes, kind: int = 3) -> bytes:
    return topic.ljust(50, b"\0") + bytes([kind]) + content


def frame(topic: bytes, content: bytes, address: tuple[str, int], kind: int = 3) -> bytes:
    source = address[0].encode().ljust(16, b"\0") + struct.pack("!H", address[1])
    return topic.ljust(50, b"\0") + bytes([kind]) + content.ljust(1500, b"\0") + source + b"\r"


class SmallTcp(Tcp):
    """A connection that the kernel keeps little for, so that what is not read soon waits in the broker."""

    def __init__(self, port: int) -> None:
        self.sock = socket.socket()
        self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
        self.sock.setsockopt(
            socket.IPPROTO_TCP, socket.TCP_MAXSEG, 536
        )  # the sender keeps as much as ten segments take
        self.sock.settimeout(LIMIT)
        self.sock.connect(("127.0.0.1", port))


class TypedSubscriber:
    """Nothing is acknowledged in typed: `settle` finds out by a topic of its own that all sent so far was handled."""

    def __init__(self, broker: Broker, name: bytes, *topics: bytes, kind: str = "typed") -> None:
        self.client = broker.tcp(kind)
        self.publisher = broker.udp("typed")
        line = f"New client {name.decode()} connected from 127.0.0.1:{self.client.address[1]}."
        self.client.send(identity(name) + b"".join(map(subscription, topics)))
        broker.out.wait(line)

    def send(self, data: bytes) -> None:
        self.client.send(data)
        self.settle()

    def settle(self) -> None:
        mark = MARK + b"%d" % next(_marks)
        self.client.send(subscription(mark))
        wait_for(lambda: self._heard(mark), "the mark")
        self.client.send(unsubscription(mark))

    def _heard(self, mark: bytes) -> bool:
        """An earlier mark may have been published more than once, and come late."""
        self.publisher.send(datagram(mark, b""))
        try:
            self.client.sock.settimeout(0.05)
            self.client.sock.recv(1, socket.MSG_PEEK)
        except TimeoutError:
            return False
        came = self.client.receive(FRAME)
        assert came.startswith(MARK), "a message that nobody waited for"
        return came.startswith(mark.ljust(50, b"\0"))

    def take(self) -> bytes:
        """The next message, late marks left out."""
        while (taken := self.client.receive(FRAME)).startswith(MARK):
            pass
        return taken

    def takes(self, topic: bytes, content: bytes = b"x", kind: int = 3) -> bool:
        """Whether what is published now is the next that comes."""
        self.publisher.send(datagram(topic, content, kind))
        return self.take() == frame(topic, content, self.publisher.address, kind)


def segments(sock: socket.socket) -> int:
    """How many segments with data the kernel has received (tcpi_data_segs_in): one for each small write."""
    found: int = struct.unpack_from("I", sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 192), 152)[0]
    return found


OWN = 5  # descriptors that the broker may open for itself meanwhile, such as the pipes of its reading process


def descriptors(broker: Broker) -> int:
    return len(list(Path(f"/proc/{broker.process.pid}/fd").iterdir()))


def wait_descriptors(broker: Broker, before: int) -> None:
    """Until the broker has let go of the connections that ended."""
    try:
        wait_for(lambda: descriptors(broker) <= before + OWN)
    except AssertionError as error:
        raise AssertionError(f"the broker has {descriptors(broker)} descriptors, and had {before}") from error


def wait_arrived(sock: socket.socket) -> None:
    """Until all that was sent is with the broker: what it has not read yet waits in its own buffer."""
    wait_for(
        lambda: not struct.unpack("i", fcntl.ioctl(sock, termios.TIOCOUTQ, bytes(4)))[0], "what was sent to arrive"
    )


def wait_read(broker: Broker, kind: str) -> None:
    """Until the broker has read all datagrams that came to this listener."""
    port = f":{broker.ports[kind]:04X}"

    def queued() -> int:
        rows = [line.split() for line in Path("/proc/net/udp").read_text().splitlines()[1:]]
        return sum(int(row[4].split(":")[1], 16) for row in rows if row[1].endswith(port))

    wait_for(lambda: not queued(), f"{kind} to be read")


def half_closed(sock: socket.socket) -> bool:
    """Whether the broker says that it will send no more; what it has sent is still to be read."""
    said = select.poll()
    said.register(sock, select.POLLRDHUP)
    return bool(said.poll(LIMIT * 1_000))


def ended(client: Tcp) -> bool:
    """Whether the connection ends, whatever still comes before that."""
    client.sock.settimeout(LIMIT)
    with contextlib.suppress(ConnectionResetError):
        while client.sock.recv(1 << 20):
            pass
    return True


def answers(client: Udp) -> None:
    """All datagrams before this one have been handled: the socket is one queue."""
    assert client.ask(b"P|mark/answer|x") == b"Hello Publisher!"
