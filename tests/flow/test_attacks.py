"""Attacks on what the broker has: places, memory, descriptors, time. On every TCP listener, and on the UDP ones.

MQTT's own are in test_mqtt_hostile, what strangers do over UDP in test_strangers. SMB_LONG makes the crowds as large as
they would be.
"""

import json
import os
import socket
import struct
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import product
from pathlib import Path
from threading import Thread

import pytest

from flow.certificates import Authority
from flow.hostile import VALID
from flow.house import LIMIT, Broker, Tcp, wait_for
from flow.mqtt import Mqtt
from flow.wires import (
    PUBACK,
    answers,
    config,
    descriptors,
    identity,
    padded,
    padded_publish,
    publication,
    subscription,
    wait_descriptors,
)
from smbroker.dialects.mqtt import fields as f
from smbroker.dialects.mqtt.packets import Connack, Connect, Publish, Results, Subscribe, Topics, Will
from web.websocket import handshake

LONG = bool(os.environ.get("SMB_LONG"))
PATIENT = 30.0  # seconds
SILENT = 10_000 if LONG else 200  # connections of each kind
CONNECTS = 10_000 if LONG else 200  # of each kind, one after the other
WILLS = 200 if LONG else 60  # with more, what the watcher does not read in time is left out
SUBSCRIPTIONS = 1_000_000 if LONG else 6_000
KINDS = ("padded", "typed", "mqtt", "tcp", "mqtt+tls", "web")
STREAMS = ("padded", "typed", "mqtt", "tcp", "mqtt+tls")
MEGABYTE = 1_000_000
RESET = struct.pack("ii", 1, 0)  # SO_LINGER: a close is a reset


@pytest.fixture(scope="module")
def tls(tmp_path_factory: pytest.TempPathFactory) -> str:
    certificate, key = Authority(tmp_path_factory.mktemp("authority")).made("server")
    return f'[tls]\ncertificate = "{certificate}"\nkey = "{key}"\nhandshake_timeout = 2.0\n'


@contextmanager
def attacked(folder: Path, text: str, kinds: tuple[str, ...] = KINDS) -> Iterator[Broker]:
    """Afterwards it still serves everyone, and has found no bug in itself."""
    with Broker(*config(folder, text), "--no-log", kinds=kinds) as broker:
        yield broker
        serves(broker)
        assert broker.process.poll() is None
        assert not [line for line in broker.err.all if "Traceback" in line or "a bug in the broker" in line]


def serves(broker: Broker) -> None:
    if "padded" in broker.ports:
        client = broker.tcp("padded")
        padded_publish(client, b"still/there", b"x")
        client.sock.close()
    if "mqtt" in broker.ports:
        mqtt = Mqtt(broker, "still there")
        assert mqtt.subscribe("still/#") == [0]
        mqtt.send(Publish(b"still/here", b"y"))
        assert mqtt.expect(Publish).payload == b"y"
        mqtt.tcp.sock.close()


def counted(broker: Broker) -> dict[str, int]:
    url = f"http://127.0.0.1:{broker.ports['web']}/v1/stats"
    with urllib.request.urlopen(url, timeout=PATIENT) as answer:
        found: dict[str, dict[str, int]] = json.load(answer)
        return found["dropped"] | found["ended"]


def metrics(broker: Broker) -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{broker.ports['web']}/metrics", timeout=PATIENT) as answer:
        return str(answer.read().decode())


def crowd(broker: Broker, kind: str, number: int) -> list[socket.socket]:
    return [socket.create_connection(("127.0.0.1", broker.ports[kind]), PATIENT) for _ in range(number)]


def cut_off(sock: socket.socket) -> bool:
    """Whether the broker ends it, whatever it says before that."""
    sock.settimeout(3 * PATIENT)
    with suppress(ConnectionResetError):
        while sock.recv(65_536):
            pass
    sock.close()
    return True


QUICK = "[tcp]\nfirst_timeout = 2.0\nmax_connections = 100000\n[mqtt]\nconnect_timeout = 2.0\n"


def test_silent_connections_are_served_around_and_end(tmp_path: Path, tls: str) -> None:
    with attacked(tmp_path, QUICK + tls) as broker:
        serves(broker)
        before, memory = descriptors(broker), broker.memory()
        kinds = ("typed", "mqtt", "tcp", "mqtt+tls")
        silent = [sock for kind in kinds for sock in crowd(broker, kind, SILENT // len(kinds))]
        serves(broker)
        assert all(map(cut_off, silent))
        reasons = ("first_timeout", "mqtt_connect_timeout", "tls_timeout")
        wait_for(lambda: sum(counted(broker).get(reason, 0) for reason in reasons) == SILENT, "the counts", PATIENT)
        shown = metrics(broker)
        assert all(f'smb_dropped_total{{reason="{reason}"}}' in shown for reason in reasons)
        wait_descriptors(broker, before)
        assert broker.memory() - memory < 20 * MEGABYTE + SILENT * 60_000


def test_a_place_is_not_held_by_a_byte_now_and_then(tmp_path: Path, tls: str) -> None:
    """Before the first words, and in the middle of a message."""
    quick = "[tcp]\nfirst_timeout = 1.0\nstall_timeout = 1.0\n[mqtt]\nconnect_timeout = 1.0\n"
    beginnings = [
        *(("padded", start) for start in (publication(b"a", b"x" * 100)[:-99], b"Subscri")),
        *(("typed", start) for start in (b"C", identity(b"C2") + b"s" + b"a" * 10)),
        *(("mqtt", start) for start in (b"\x10", Connect(4, "m", True).encode() + b"\x30\x7f\0\1")),
        *(
            ("tcp", start)
            for start in (b"Sub", identity(b"C3") + b"sa", Connect(5, "n", True).encode() + b"\x30\x7f\0\1")
        ),
        *(("mqtt+tls", start) for start in (b"\x16", b"\x16\x03\x01\x02\0\x01")),
        *(
            ("web", handshake() + endless(start))
            for start in (b"\x10", Connect(4, "w", True).encode() + b"\x30\x7f\0\1")
        ),
    ]
    with attacked(tmp_path, quick + tls) as broker:
        clients = {}
        for kind, beginning in beginnings:
            clients[kind, beginning] = client = Tcp(broker.ports[kind])
            client.send(beginning)

        def all_cut_off() -> bool:
            for key, client in list(clients.items()):
                client.sock.settimeout(0.02)
                try:
                    client.sock.send(b"a")
                    ended = not client.sock.recv(65_536)
                except TimeoutError:
                    continue
                except OSError:
                    ended = True
                if ended:
                    client.sock.close()
                    del clients[key]
            return not clients

        wait_for(all_cut_off, f"the end of all: {clients}", PATIENT)
        assert counted(broker)["stalled"] >= 3


def endless(data: bytes) -> bytes:
    """The beginning of a WebSocket's frame, with a mask that changes nothing."""
    return b"\x82\xff" + (1 << 20).to_bytes(8, "big") + bytes(4) + data


def test_the_longest_keep_alive_on_every_place(tmp_path: Path) -> None:
    limits = "[tcp]\nmax_connections = 40\n"
    with attacked(tmp_path, limits, kinds=("mqtt", "web")) as broker:
        clients = []
        for number in range(40):
            version = 4 + number % 2
            clients.append(Mqtt(broker, f"c{number}", version=version, keep_alive=65_535))
            if version == 5:
                assert clients[-1].connack.properties[f.SERVER_KEEP_ALIVE] <= 60
        refused = Tcp(broker.ports["mqtt"])
        assert cut_off(refused.sock)
        assert counted(broker)["too_many_connections"] == 1
        for client in clients[:2]:
            client.tcp.sock.close()

        def place() -> bool:
            client = Mqtt(broker, "late", connect=False)
            with suppress(AssertionError, OSError):
                client.send(Connect(4, "late", True))
                return client.expect(Connack).code == 0
            return False

        wait_for(place, "a place that has become free", PATIENT)
        for client in clients:
            client.tcp.sock.close()


def test_one_address_does_not_take_all_places(tmp_path: Path, tls: str) -> None:
    limits = "[tcp]\nmax_connections_per_address = 10\n[web]\nmax_connections_per_address = 10\n"
    limits += "[mqtt]\nconnect_timeout = 100.0\n" + tls
    with attacked(tmp_path, limits) as broker:
        others = [socket.socket() for _ in ("mqtt", "web")]
        for kind, other in zip(("mqtt", "web"), others, strict=True):
            taken = crowd(broker, kind, 10)
            assert cut_off(crowd(broker, kind, 1)[0])
            other.bind(("127.0.0.77", 0))
            other.connect(("127.0.0.1", broker.ports[kind]))  # another address has its own places
            other.send(
                Connect(4, "x", True).encode()
                if kind == "mqtt"
                else b"GET /health HTTP/1.1\r\nHost: a.localhost\r\n\r\n"
            )
            other.settimeout(PATIENT)
            assert other.recv(100)
            for sock in taken:
                sock.close()
            other.close()
        wait_for(lambda: _answered(broker), "a place that has become free", PATIENT)
        assert counted(broker)["too_many_of_address"] >= 2


def _answered(broker: Broker) -> bool:
    try:
        return bool(counted(broker))
    except OSError:
        return False


def test_a_large_beginning_that_is_nothing(tmp_path: Path, tls: str) -> None:
    with attacked(tmp_path, "[tcp]\nstall_timeout = 2.0\nfirst_timeout = 2.0\n" + tls) as broker:
        serves(broker)
        memory = broker.memory()
        starts = (b"\x30\xff\xff\xff\x7f", b"\xff" * 64, b"GET " + b"/" * 60)
        for kind, beginning in product((*STREAMS, "web"), starts):
            client = Tcp(broker.ports[kind])
            client.sock.settimeout(PATIENT)
            with suppress(OSError):
                client.send(beginning)
                for _ in range(100):
                    client.send(b"x" * 65_536)
            client.sock.close()
        serves(broker)
        assert broker.memory() - memory < 60 * MEGABYTE


def test_connections_that_come_and_go_leave_nothing(tmp_path: Path, tls: str) -> None:
    """Half of them say something, a third is reset."""
    words = {
        "padded": padded(b"Ping"),
        "typed": identity(b"C1"),
        "web": b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n",
    }
    with attacked(tmp_path, tls) as broker:

        def come_and_go() -> None:
            for one, kind in product(range(CONNECTS), KINDS):
                sock = socket.create_connection(("127.0.0.1", broker.ports[kind]), PATIENT)
                if one % 2:
                    sock.send(words.get(kind, Connect(4, f"c{one}", True).encode()))
                if one % 3 == 0:
                    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
                sock.close()

        serves(broker)
        before = descriptors(broker)
        come_and_go()
        serves(broker)
        wait_descriptors(broker, before)
        memory = broker.memory()
        come_and_go()
        serves(broker)
        wait_descriptors(broker, before)
        assert broker.memory() - memory < 10 * MEGABYTE


def test_the_largest_wills_all_at_once(tmp_path: Path) -> None:
    with attacked(tmp_path, "", kinds=("mqtt", "web")) as broker:
        watcher = Mqtt(broker, "watcher")
        watcher.subscribe("wills/#")
        memory = broker.memory()
        text = b"w" * 65_535
        clients = [Mqtt(broker, f"c{n}", will=Will(b"wills/%d" % n, text, 0, False)) for n in range(WILLS)]
        for client in clients:
            client.tcp.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
        for client in clients:
            client.tcp.sock.close()
        came = set()
        while len(came) < WILLS:
            message = watcher.next(PATIENT)
            assert isinstance(message, Publish)
            assert message.payload == text
            came.add(message.topic)
        assert broker.memory() - memory < 40 * MEGABYTE + 3 * WILLS * len(text)


def test_deep_subscriptions_are_bounded_in_memory(tmp_path: Path) -> None:
    """As many as the client may have, each with a path of its own; then a filter that is too deep."""
    limits = "[mqtt]\nmax_filter_bytes = 80000000\n[tcp]\nmax_subscriptions = 2000000\n"
    with attacked(tmp_path, limits, kinds=("mqtt", "web")) as broker:
        serves(broker)
        memory = broker.memory()
        for who in range(3):
            client = Mqtt(broker, f"deep{who}", version=5)
            codes: list[int] = []
            for first in range(0, SUBSCRIPTIONS // 3, 500):
                deep = [Topics(b"%d/%d/" % (who, first + n) + b"+/" * 20 + b"x", 0) for n in range(500)]
                client.send(Subscribe(client.number(), deep))
                codes += client.expect(Results).codes
            assert codes[0] == 0
            if SUBSCRIPTIONS * 23_000 > 80_000_000:
                assert codes[-1] == 0x97  # quota exceeded
            client.send(Subscribe(client.number(), [Topics(b"+/" * 300 + b"x", 0)]))
            assert client.expect(Results).codes[0] >= 0x80
        assert counted(broker)["mqtt_filter"] == 3
        assert broker.memory() - memory < 120 * MEGABYTE


@pytest.mark.parametrize("kind", ["padded", "mqtt"])
def test_who_sends_too_fast_has_to_wait(tmp_path: Path, kind: str) -> None:
    limits = "max_payload = 100000000\n[tcp]\nmax_rate = 10000\n"
    with attacked(tmp_path, limits, kinds=("padded", "mqtt")) as broker:
        payload = b" " * 60 * MEGABYTE
        words = {
            "padded": publication(b"fast", payload),
            "mqtt": Connect(4, "fast", True).encode() + Publish(b"fast", payload).encode(4),
        }
        fast = Tcp(broker.ports[kind])
        fast.sock.settimeout(0.5)
        with pytest.raises(TimeoutError):  # in so short a time the broker takes the first pieces, not all
            fast.send(words[kind])
        serves(broker)
        fast.sock.close()


def sent(client: Mqtt, data: bytes) -> None:
    """As far as the broker takes it."""
    with suppress(OSError):
        client.tcp.send(data)


def test_who_sends_very_many_too_fast_has_to_wait_as_well(tmp_path: Path) -> None:
    """More than are taken at once: others have their turn between them."""
    with attacked(tmp_path, "[tcp]\nmax_rate = 10000\n", kinds=("mqtt",)) as broker:
        subscriber, fast = Mqtt(broker), Mqtt(broker)
        subscriber.subscribe("end")
        in_turn = Publish(b"fast/a", b"1").encode(4) + Publish(b"fast/b", b"2").encode(4)
        sender = Thread(target=sent, args=(fast, in_turn * 100_000 + Publish(b"end", b"").encode(4)))
        sender.start()
        with pytest.raises(TimeoutError):
            subscriber.next(limit=2)
        fast.tcp.sock.shutdown(socket.SHUT_RDWR)
        sender.join()


@pytest.mark.parametrize("kind", ["padded", "mqtt"])
def test_a_message_that_has_to_wait_is_not_taken_for_stalled(tmp_path: Path, kind: str) -> None:
    limits = "[tcp]\nmax_rate = 100_000\nstall_timeout = 1.0\n"
    with attacked(tmp_path, limits, kinds=("padded", "mqtt")) as broker:
        client = Tcp(broker.ports[kind])
        payload = b"x" * 400_000  # read from with a pause that is longer than the timeout
        if kind == "padded":
            client.send(publication(b"slow", payload))
            assert client.receive(len(PUBACK)) == PUBACK
        else:
            client.send(Connect(4, "slow", True).encode() + Publish(b"slow", payload, 1, packet_id=7).encode(4))
            assert client.receive(8) == b"\x20\x02\0\0" + b"\x40\x02\0\x07"


# --- HTTP ---


def test_http_heads_that_never_end(tmp_path: Path) -> None:
    with attacked(tmp_path, "", kinds=("web", "mqtt")) as broker:
        memory = broker.memory()
        for piece in (b"GET /" + b"a" * 65_536, b"X-Header: " + b"b" * 65_536 + b"\r\n"):
            client = Tcp(broker.ports["web"])
            with suppress(OSError):
                if piece.startswith(b"X"):
                    client.send(b"GET / HTTP/1.1\r\n")
                for _ in range(300):
                    client.send(piece)
            answer = b""
            with suppress(OSError):
                answer = client.sock.recv(100)
            assert not answer or b" 400 " in answer.split(b"\r\n")[0]
            client.sock.close()
        assert broker.memory() - memory < 40 * MEGABYTE


@pytest.mark.skipif(not LONG, reason="a minute of silence: make long")
def test_http_requests_that_are_slow_end(tmp_path: Path) -> None:
    beginnings = (
        b"",
        b"GET / HT",
        b"GET /health HTTP/1.1\r\nHost: localhost\r\nX-",
        b"POST /v1/publish/a HTTP/1.1\r\n",
    )
    body = b"POST /v1/publish/a HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000000\r\n\r\nabc"
    with attacked(tmp_path, "", kinds=("web", "mqtt")) as broker:
        socks = crowd(broker, "web", 500)
        for number, sock in enumerate(socks):
            sock.sendall((*beginnings, body)[number % 5])
        assert all(map(cut_off, socks))


# --- UDP ---


def test_datagrams_of_other_dialects_and_of_all_sizes(tmp_path: Path) -> None:
    kinds = ("soh", "pipe", "semicolon", "udp", "padded", "mqtt")
    with attacked(tmp_path, "", kinds=kinds) as broker:
        serves(broker)
        memory = broker.memory()
        valid = [each for name in ("soh", "pipe", "semicolon", "typed UDP") for each in VALID[name]]
        firsts = (b"S", b"S|", b"P|", b"s", b"p", b"\x01", b"u", b"")
        sized = [first + b"a" * size for first in firsts for size in (0, 1, 507, 4_095, 4_096, 20_000, 65_000)]
        for kind in ("soh", "pipe", "semicolon", "udp"):
            client = broker.udp(kind)
            for number, data in enumerate(valid + sized):
                client.send(data)
                if number % 50 == 0:
                    answers(broker.udp("udp"))
        answers(broker.udp("udp"))
        assert broker.memory() - memory < 60 * MEGABYTE


def test_typed_streams_that_subscribe_to_the_end(tmp_path: Path) -> None:
    with attacked(tmp_path, "[tcp]\nmax_subscriptions = 100\n", kinds=("typed", "mqtt", "web", "padded")) as broker:
        client = broker.tcp("typed")
        client.send(identity(b"MANY") + b"".join(subscription(b"t%d" % number) for number in range(1_000)))
        wait_for(lambda: counted(broker).get("too_many_subscriptions") == 900, "900 refusals", LIMIT)
        reader = broker.tcp("padded")
        reader.send(b"".join(padded(b"Subscribe", b"t%d" % number) for number in range(1_000)))
        wait_for(lambda: counted(broker).get("too_many_subscriptions") == 1_800, "900 more", LIMIT)
