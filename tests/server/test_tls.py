"""TLS between a transport and a protocol, with OpenSSL on both sides and no sockets: what one read may bring."""

import asyncio
import ssl
from collections.abc import Iterator
from typing import Any

import pytest
import uvloop

from flow.certificates import Authority
from smbroker.server.certificates import Certificates, Files
from smbroker.server.config import Config
from smbroker.server.console import Console
from smbroker.server.gate import Gate
from smbroker.server.tls import PIECE, RECORD, Tls, TlsDoor
from smbroker.server.turn import Turn

VERSIONS = [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3]


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("tls"))


@pytest.fixture(scope="module")
def certificates(authority: Authority) -> Certificates:
    certificate, key = authority.made("server")
    return Certificates(Files(str(certificate), str(key)))


class Wire(asyncio.Transport):
    """Towards the client."""

    def __init__(self) -> None:
        super().__init__({"peername": ("127.0.0.1", 5)})
        self.sent = b""
        self.ended = ""

    def write(self, data: Any) -> None:
        self.sent += data

    def close(self) -> None:
        self.ended = "close"

    def abort(self) -> None:
        self.ended = "abort"

    def is_closing(self) -> bool:
        return bool(self.ended)


class Server(asyncio.Protocol):
    """What is behind TLS; closes once it has `most` bytes."""

    def __init__(self) -> None:
        self.got: list[bytes] = []
        self.eof = False
        self.most = 1 << 30

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.got.append(data)
        if sum(map(len, self.got)) >= self.most:
            self.transport.close()

    def eof_received(self) -> bool:
        self.eof = True
        return False


class Line:
    """Both ends, after the handshake."""

    def __init__(self, authority: Authority, certificates: Certificates, version: ssl.TLSVersion) -> None:
        self.loop = uvloop.new_event_loop()
        self.turn = Turn(self.loop, Config(quiet=True), Console(self.loop.time))
        self.server, self.wire = Server(), Wire()
        self.tls = Tls(TlsDoor(self.turn, Gate(10, "auto", 10, "x"), certificates, 10.0), lambda: self.server)
        self.tls.connection_made(self.wire)
        context = authority.trusting()
        context.minimum_version = context.maximum_version = version
        self._in, self._out = ssl.MemoryBIO(), ssl.MemoryBIO()
        self.client = context.wrap_bio(self._in, self._out, server_hostname="localhost")
        while True:
            try:
                self.client.do_handshake()
                break
            except ssl.SSLWantReadError:
                self.tls.data_received(self._out.read())
                self._in.write(self.wire.sent)
                self.wire.sent = b""
        if self._out.pending:
            self.tls.data_received(self._out.read())

    def records(self, *payloads: bytes) -> bytes:
        for payload in payloads:
            self.client.write(payload)
        return self._out.read()

    def goodbye(self) -> bytes:
        with pytest.raises(ssl.SSLWantReadError):
            self.client.unwrap()
        return self._out.read()

    @property
    def dropped(self) -> dict[str, int]:
        return dict(self.turn.stats.dropped)


@pytest.fixture(params=VERSIONS, ids=lambda version: version.name)
def line(request: pytest.FixtureRequest, authority: Authority, certificates: Certificates) -> Iterator[Line]:
    made = Line(authority, certificates, request.param)
    yield made
    made.loop.close()


def broken(record: bytes) -> bytes:
    return record[:-1] + bytes([record[-1] ^ 1])


def test_all_records_of_a_read_come_together(line: Line) -> None:
    line.tls.data_received(line.records(b"one"))
    line.tls.data_received(line.records(b"a", b"bc", b"x" * RECORD, b"def"))
    assert line.server.got == [b"one", b"abc" + b"x" * RECORD + b"def"]


def test_a_record_that_is_cut_waits_for_its_rest(line: Line) -> None:
    data = line.records(b"one", b"two")
    for byte in range(len(data)):
        line.tls.data_received(data[byte : byte + 1])
    assert line.server.got == [b"one", b"two"]


def test_what_comes_before_the_end_is_taken(line: Line) -> None:
    data = line.records(b"last", b"words") + line.goodbye()
    line.tls.data_received(data + b"and what is no TLS")
    assert line.server.got == [b"lastwords"]
    assert line.server.eof
    assert line.wire.ended == "close"
    assert line.dropped == {}


def test_what_comes_before_a_broken_record_is_taken_and_the_fault_counted_once(line: Line) -> None:
    data = line.records(b"good") + broken(line.records(b"bad")) + line.records(*[b"y" * 16_000] * 12)
    assert len(data) > PIECE
    line.tls.data_received(data)
    assert line.server.got == [b"good"]
    assert line.dropped == {"tls_broken": 1}
    assert line.wire.ended == "close"


def test_a_protocol_that_has_closed_hears_no_more(line: Line) -> None:
    line.server.most = 1
    data = line.records(*[b"y" * 16_000] * 12)
    assert len(data) > PIECE
    line.tls.data_received(data)
    assert len(line.server.got) == 1
    assert line.dropped == {}
