"""Listeners with +tls: every TCP dialect and the web over TLS, certificates that change, and what strangers may try."""

import json
import os
import shutil
import signal
import socket
import ssl
import subprocess
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from cli.programs import run
from flow.certificates import Authority
from flow.house import BIN, LIMIT, Broker, Tcp, wait_for
from flow.mqtt import Mqtt
from flow.wires import (
    PUBACK,
    SUBACK,
    config,
    delivery,
    half_closed,
    identity,
    padded,
    padded_publish,
    publication,
    subscription,
)
from smbroker.dialects.mqtt.packets import Connect, Publish
from web.websocket import BINARY, WebSocket, frame, handshake

KINDS = ("padded+tls", "typed+tls", "mqtt+tls", "tcp+tls", "web+tls", "udp")


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture(scope="module")
def files(authority: Authority) -> tuple[Path, Path]:
    return authority.made("server")


def settings(directory: Path, files: tuple[Path, Path], more: str = "") -> list[str]:
    certificate, key = files
    return config(directory, f'[tls]\ncertificate = "{certificate}"\nkey = "{key}"\n{more}\n')


class TlsBroker(Broker):
    """Its connections are secured."""

    context: ssl.SSLContext

    def tcp(self, kind: str) -> Tcp:
        client = super().tcp(kind)
        if kind.endswith("+tls"):
            client.sock = self._secured(client.sock)
        return client

    def _secured(self, sock: socket.socket) -> socket.socket:
        made = self.context.wrap_socket(sock, server_hostname="localhost")
        self._sockets.append(made)
        return made


@pytest.fixture(scope="module")
def broker(
    authority: Authority, files: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[TlsBroker]:
    with TlsBroker(*settings(tmp_path_factory.mktemp("tls"), files), kinds=KINDS) as broker:
        broker.context = authority.trusting()
        yield broker


def dropped(broker: Broker, context: ssl.SSLContext | None = None) -> dict[str, int]:
    kind, scheme = ("web+tls", "https") if context else ("web", "http")
    url = f"{scheme}://127.0.0.1:{broker.ports[kind]}/v1/stats"
    with urllib.request.urlopen(url, timeout=LIMIT, context=context) as answer:
        counted: dict[str, int] = json.load(answer)["dropped"]
        return counted


def test_a_message_goes_from_dialect_to_dialect(broker: TlsBroker) -> None:
    typed = broker.tcp("typed+tls")
    typed.send(identity(b"T1") + subscription(b"tls/a"))
    mqtt = Mqtt(broker, "m", kind="mqtt+tls")
    mqtt.subscribe("tls/#")
    other = Mqtt(broker, "n", kind="tcp+tls")  # handed over to MQTT after its first bytes
    other.subscribe("tls/#")
    reader = broker.tcp("padded+tls")
    reader.send(padded(b"Subscribe", b"tls/a"))
    assert reader.receive(64) == SUBACK
    broker.out.wait("New client T1")
    publisher = broker.tcp("tcp+tls")  # padded, by its first bytes
    publisher.send(publication(b"tls/a", b"hello"))
    assert publisher.receive(64) == PUBACK
    assert reader.receive(64 * 3 + 5) == delivery(b"tls/a", b"hello")
    for client in (mqtt, other):
        assert client.expect(Publish).payload == b"hello"
    assert typed.receive(1570)[51:56] == b"hello"


def test_large_messages_arrive_whole(broker: TlsBroker) -> None:
    body = bytes(range(256)) * 4_000  # many records, many reads
    subscriber = Mqtt(broker, "large", kind="mqtt+tls")
    subscriber.subscribe("large")
    publisher = Mqtt(broker, "publisher", kind="mqtt+tls")
    for number in range(3):
        publisher.send(Publish(b"large", body + b"%d" % number))
    for number in range(3):
        assert subscriber.expect(Publish).payload == body + b"%d" % number


def test_records_cut_anywhere_make_the_same_message(broker: TlsBroker, authority: Authority) -> None:
    """The bytes of the records themselves come one by one."""
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    tls = authority.trusting().wrap_bio(incoming, outgoing, server_hostname="localhost")
    with socket.create_connection(("127.0.0.1", broker.ports["padded+tls"]), LIMIT) as sock:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

        def until_done(step: "object") -> bytes:
            while True:
                try:
                    return step() or b""  # type: ignore[operator]
                except ssl.SSLWantReadError:
                    send()
                    incoming.write(sock.recv(65_536))

        def send() -> None:
            for byte in outgoing.read():
                sock.send(bytes((byte,)))

        until_done(tls.do_handshake)
        tls.write(b"Ping".ljust(64))
        send()
        assert until_done(lambda: tls.read(64)) == b"Pong".ljust(64)


def test_the_web_speaks_tls_and_knows_it(broker: TlsBroker, authority: Authority) -> None:
    url = f"https://localhost:{broker.ports['web+tls']}"
    body = urllib.request.Request(f"{url}/v1/publish/tls/web", b"from the web", method="POST")
    with urllib.request.urlopen(body, timeout=LIMIT, context=authority.trusting()) as answer:
        assert answer.status == 200
    with urllib.request.urlopen(f"{url}/", timeout=LIMIT, context=authority.trusting()) as answer:
        assert b"<html" in answer.read()


def test_smb_tail_says_that_a_certificate_is_not_trusted_and_what_to_do(broker: TlsBroker) -> None:
    said = run("smb", "tail", "--url", f"https://localhost:{broker.ports['web+tls']}")
    assert said.returncode == 1
    assert b"is not trusted: " in said.stderr
    assert b"SSL_CERT_FILE" in said.stderr


def test_mqtt_over_websocket_over_tls(broker: TlsBroker) -> None:
    client = broker.tcp("web+tls")
    client.send(handshake() + frame(BINARY, Connect(4, "wss").encode()))
    head = b""
    while not head.endswith(b"\r\n\r\n"):
        head += client.receive(1)
    assert b" 101 " in head
    assert client.receive(6)[2:4] == b"\x20\x02"  # CONNACK, in a frame


def test_a_client_that_has_said_all_still_hears_its_answer(broker: TlsBroker) -> None:
    publisher = broker.tcp("padded+tls")
    publisher.send(publication(b"last/words", b"x"))
    assert publisher.receive(64) == PUBACK
    publisher.send(padded(b"Disconnect"))
    assert publisher.closed()


@pytest.mark.parametrize("over", ["mqtt+tls", "web+tls"])
def test_a_client_that_goes_on_sending_still_hears_why_it_was_ended(broker: TlsBroker, over: str) -> None:
    sock = WebSocket(broker, over=broker.tcp(over).sock) if over == "web+tls" else broker.tcp(over)
    client = Mqtt(broker, version=5, over=sock)
    client.send(Publish(b"#", b"x"))
    assert half_closed(sock.sock)
    for _ in range(10):
        client.send(Publish(b"t", b"x"))
    assert client.ended(0x90)


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_both_versions_of_today_are_spoken(broker: TlsBroker, authority: Authority, version: ssl.TLSVersion) -> None:
    context = authority.trusting()
    context.minimum_version = context.maximum_version = version
    with socket.create_connection(("127.0.0.1", broker.ports["mqtt+tls"]), LIMIT) as sock:
        made = context.wrap_socket(sock, server_hostname="localhost")
        assert made.version() == version.name.replace("_", ".")
        assert "GCM" in made.cipher()[0]  # type: ignore[index]


@pytest.mark.filterwarnings("ignore:ssl.TLSVersion")
def test_older_versions_are_not(broker: TlsBroker) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.set_ciphers("ALL:@SECLEVEL=0")
    context.minimum_version = ssl.TLSVersion.TLSv1
    context.maximum_version = ssl.TLSVersion.TLSv1_1
    sock = socket.create_connection(("127.0.0.1", broker.ports["mqtt+tls"]), LIMIT)
    with sock, pytest.raises(ssl.SSLError):
        context.wrap_socket(sock)


@pytest.mark.parametrize("kind", ["padded+tls", "typed+tls", "mqtt+tls", "tcp+tls", "web+tls"])
def test_what_is_not_tls_is_refused_and_counted(broker: TlsBroker, authority: Authority, kind: str) -> None:
    before = dropped(broker, authority.trusting()).get("tls_handshake", 0)
    plain = Tcp(broker.ports[kind])
    plain.send(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n" if kind == "web+tls" else b"\x10\x0c\0\4MQTT\4\2\0\0\0\0")
    with plain.sock:
        wait_for(lambda: not plain.sock.recv(4_096), "the end")
    wait_for(lambda: dropped(broker, authority.trusting())["tls_handshake"] > before, "the count")


def test_silence_and_slow_handshakes_end_and_leave_the_gate(files: tuple[Path, Path], tmp_path: Path) -> None:
    limits = settings(tmp_path, files, "handshake_timeout = 0.2\n[tcp]\nmax_connections = 5")
    with Broker(*limits, kinds=("mqtt+tls", "web")) as broker:
        for _ in range(3):  # 15 in all: each round is gone before the next comes
            silent = [Tcp(broker.ports["mqtt+tls"]) for _ in range(5)]
            with suppress(OSError):  # it may be over already
                silent[0].send(b"\x16\x03\x01")
            for client in silent:
                assert client.closed()
                client.sock.close()
        counted = dropped(broker)
        assert counted["tls_timeout"] == 15
        assert "too_many_connections" not in counted


def test_handshakes_count_as_connections(files: tuple[Path, Path], tmp_path: Path) -> None:
    limits = settings(tmp_path, files, "handshake_timeout = 100.0\n[tcp]\nmax_connections_per_address = 3")
    with Broker(*limits, kinds=("mqtt+tls", "web")) as broker:
        silent = [Tcp(broker.ports["mqtt+tls"]) for _ in range(3)]
        fourth = Tcp(broker.ports["mqtt+tls"])
        assert fourth.closed()
        assert dropped(broker)["too_many_of_address"] == 1
        for client in (*silent, fourth):
            client.sock.close()


def test_a_new_certificate_needs_no_restart(authority: Authority, tmp_path: Path) -> None:
    files = tuple(Path(shutil.copy(file, tmp_path)) for file in authority.made("first"))
    certificate, key = files
    with TlsBroker(*settings(tmp_path, (certificate, key)), kinds=("padded+tls",)) as broker:
        broker.context = authority.trusting()

        def shown() -> bytes:
            with socket.create_connection(("127.0.0.1", broker.ports["padded+tls"]), LIMIT) as sock:
                found = broker.context.wrap_socket(sock, server_hostname="localhost").getpeercert(binary_form=True)
                assert found
                return found

        before, old = shown(), broker.tcp("padded+tls")
        for source, target in zip(authority.made("second"), (certificate, key), strict=True):
            shutil.copy(source, target)
        broker.signal(signal.SIGHUP)
        broker.err.wait("read again")
        after = shown()
        assert after != before
        old.send(b"Ping".ljust(64))
        assert old.receive(64) == b"Pong".ljust(64)  # goes on with what it began with
        certificate.write_text("nothing")
        broker.signal(signal.SIGHUP)
        said = broker.err.wait("holds no certificate")
        assert str(certificate) in said
        assert "stays in force" in said
        assert shown() == after


def refused(broker: TlsBroker, kind: str) -> bool:
    """With TLS 1.3 a client hears only after its own part of the handshake that it is not wanted."""
    try:
        client = broker.tcp(kind)
        client.send(b"Ping".ljust(64))
        return client.sock.recv(64) == b""
    except (ssl.SSLError, ConnectionError):
        return True


def test_without_a_client_certificate_nobody_is_let_in(authority: Authority, tmp_path: Path) -> None:
    limits = settings(tmp_path, authority.made("own"), f'client_ca = "{authority.certificate}"')
    with TlsBroker(*limits, kinds=("padded+tls", "web")) as broker:
        broker.context = authority.trusting()
        assert refused(broker, "padded+tls")
        wait_for(lambda: dropped(broker).get("tls_handshake"), "the count")
        broker.context.load_cert_chain(*Authority(tmp_path, "stranger").made("forged", "alice"))
        assert refused(broker, "padded+tls")
        broker.context = authority.trusting()
        broker.context.load_cert_chain(*authority.made("alice", "alice"))
        client = broker.tcp("padded+tls")
        client.send(b"Ping".ljust(64))
        assert client.receive(64) == b"Pong".ljust(64)


# --- programs ---


def program(name: str, *words: str | Path) -> list[str]:
    return [str(BIN / name), *map(str, words)]


@pytest.mark.parametrize("dialect", ["padded", "mqtt"])
def test_the_programs_speak_tls(broker: TlsBroker, authority: Authority, dialect: str) -> None:
    where = ("--dialect", dialect, "-h", "localhost", "-p", str(broker.ports[f"{dialect}+tls"]))
    tls = ("--tls", "--cafile", authority.certificate)
    reader = subprocess.Popen(
        program("smbsubscribe", *where, *tls, f"program/{dialect}"), stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    try:
        seen = Mqtt(broker, "seen", kind="mqtt+tls")

        def subscribed() -> bool:
            url = f"https://localhost:{broker.ports['web+tls']}/v1/clients"
            with urllib.request.urlopen(url, timeout=LIMIT, context=authority.trusting()) as answer:
                return f"program/{dialect}".encode() in answer.read()

        wait_for(subscribed, "the subscription", 30)
        done = subprocess.run(
            program("smbpublish", *where, *tls, f"program/{dialect}", "hello"),
            timeout=30,
            check=False,
            capture_output=True,
        )
        assert done.returncode == 0, done.stderr
        assert reader.stdout
        assert b"hello" in reader.stdout.readline()
        seen.tcp.sock.close()
    finally:
        reader.send_signal(signal.SIGINT)
        assert reader.wait(30) == 0
        reader.stdout.close()  # type: ignore[union-attr]


def test_smb_tail_reads_over_https(broker: TlsBroker, authority: Authority) -> None:
    url = f"https://localhost:{broker.ports['web+tls']}"
    body = urllib.request.Request(f"{url}/v1/publish/tail/tls", b"from afar", method="POST")
    with urllib.request.urlopen(body, timeout=LIMIT, context=authority.trusting()) as answer:
        assert answer.status == 200
    words = program("smb", "tail", "tail/#", "--url", url, "--from", "earliest", "--limit", "1")
    trusting = os.environ | {"SSL_CERT_FILE": str(authority.certificate)}
    done = subprocess.run(words, timeout=30, check=False, capture_output=True, env=trusting)
    assert b"from afar" in done.stdout, done.stderr
    done = subprocess.run(words, timeout=30, check=False, capture_output=True)
    assert done.returncode == 1
    assert b"certificate" in done.stderr


def test_the_programs_say_whom_they_do_not_trust(broker: TlsBroker) -> None:
    where = ("--dialect", "mqtt", "-h", "localhost", "-p", str(broker.ports["mqtt+tls"]), "a", "b")
    for words, expected in (
        (("--tls",), "is not trusted"),
        (("--tls", "--cafile", "/nowhere"), "--cafile '/nowhere': No such file or directory"),
        (("--cafile", "x"), "--cafile: goes with --tls"),
    ):
        done = subprocess.run(
            program("smbpublish", *words, *where), timeout=30, check=False, capture_output=True, text=True
        )
        assert done.returncode in (1, 2)
        assert expected in done.stderr


# --- certificates as users ---

RULES = """\
[[allow]]
user = "ann"
topics = ["house/#"]

[[allow]]
anonymous = true
publish = ["open/#"]
"""


def test_a_client_s_certificate_says_which_user_it_is(authority: Authority, tmp_path: Path) -> None:
    """Whoever has none, where none is required, is nobody."""
    limits = settings(tmp_path, authority.made("own"), f'client_ca = "{authority.certificate}"\nrequire_client = false')
    rules = tmp_path / "rules.toml"
    rules.write_text(RULES)
    kinds = ("padded+tls", "typed+tls", "mqtt+tls", "tcp+tls", "web+tls")
    with TlsBroker(*limits, "--rules", str(rules), kinds=kinds) as broker:
        nobody, ann, bob = (authority.trusting() for _ in range(3))
        ann.load_cert_chain(*authority.made("ann", "ann"))
        bob.load_cert_chain(*authority.made("bob", "bob"))

        def codes(context: ssl.SSLContext, kind: str) -> list[int]:
            broker.context = context
            client = Mqtt(broker, "", version=5, kind=kind)
            return [client.connack.code] if client.connack.code else client.subscribe("house/x")

        for kind in ("mqtt+tls", "tcp+tls"):
            assert codes(ann, kind) == [0]
            assert codes(bob, kind) == [0x87]  # not authorized
            assert codes(nobody, kind) == [0x87]

        broker.context = ann
        reader = broker.tcp("padded+tls")
        reader.send(padded(b"Subscribe", b"house/x"))
        assert reader.receive(64) == SUBACK
        typed = broker.tcp("typed+tls")
        typed.send(identity(b"ANN") + subscription(b"house/x"))
        broker.out.wait("New client ANN")

        def published(context: ssl.SSLContext) -> int:
            url = f"https://localhost:{broker.ports['web+tls']}/v1/publish/house/x"
            try:
                request = urllib.request.Request(url, b"hello", method="POST")
                with urllib.request.urlopen(request, timeout=LIMIT, context=context) as answer:
                    return int(answer.status)
            except urllib.error.HTTPError as error:
                return error.code

        assert published(nobody) in (401, 403)
        assert published(bob) in (401, 403)
        assert published(ann) == 200
        assert reader.receive(64 * 3 + 5) == delivery(b"house/x", b"hello")
        assert typed.receive(1570)[51:56] == b"hello"


def test_a_typed_id_of_a_user_is_not_another_user_s(authority: Authority, tmp_path: Path) -> None:
    """Nor somebody's who shows no certificate; what is kept for it waits for its user."""
    limits = settings(
        tmp_path, authority.made("typed"), f'client_ca = "{authority.certificate}"\nrequire_client = false'
    )
    rules = tmp_path / "rules.toml"
    rules.write_text('[[allow]]\nanyone = true\ntopics = "#"\n')
    with TlsBroker(*limits, "--rules", str(rules), kinds=("typed+tls", "padded+tls")) as broker:
        nobody, ann, bob = (authority.trusting() for _ in range(3))
        ann.load_cert_chain(*authority.made("typed-ann", "ann"))
        bob.load_cert_chain(*authority.made("typed-bob", "bob"))
        broker.context = ann
        first = broker.tcp("typed+tls")
        first.send(identity(b"LAMP") + subscription(b"kept", 1))
        broker.out.wait("New client LAMP")
        first.sock.close()
        broker.out.wait("Client LAMP disconnected.")
        padded_publish(broker.tcp("padded+tls"), b"kept", b"hello")
        for context in (bob, nobody):
            broker.context = context
            other = broker.tcp("typed+tls")
            other.send(identity(b"LAMP"))
            assert other.closed()
        broker.context = ann
        again = broker.tcp("typed+tls")
        again.send(identity(b"LAMP"))
        assert again.receive(1570)[51:56] == b"hello"
