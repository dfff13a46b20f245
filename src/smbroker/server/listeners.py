"""Listeners: `KIND://HOST:PORT` to bound sockets.

udp        soh, pipe and semicolon on one socket, told apart by first bytes
soh, pipe, semicolon    UDP, that dialect alone
padded     TCP
typed      TCP for subscribers and UDP for publishers, one port number
mqtt       TCP
tcp        padded, typed or mqtt, told apart by first bytes
web        HTTP: a service that is handed in, see `smbroker.server.broker.run`

Over TCP each may be `KIND+tls`, with files of its own: `mqtt+tls://HOST:PORT?certificate=FILE&key=FILE&client_ca=FILE`.
What a listener does not name is as in `[tls]`. `typed+tls` has no UDP: publishers would not be protected.
"""

import re
import socket
from dataclasses import dataclass, replace
from urllib.parse import parse_qsl, urlencode

from smbroker.dialects import pipe, semicolon, soh, typed
from smbroker.model.errors import UsageError
from smbroker.model.message import Dialect
from smbroker.server.certificates import Certificates, Files
from smbroker.server.config import DEFAULT_LISTEN, Config, SemicolonConfig, TlsConfig
from smbroker.server.datagrams import open_socket
from smbroker.server.sockets import keep_alive
from smbroker.server.udp import Decode

FORM = re.compile(
    r"(?P<kind>[a-z+]+)://(?:\[(?P<v6>[^\]]+)\]|(?P<host>[^:/\[\]]+)):(?P<port>\d{1,5})/?(?:\?(?P<files>.+))?"
)
UDP_KINDS: dict[str, tuple[Dialect, ...]] = {
    "udp": (Dialect.SOH, Dialect.PIPE, Dialect.SEMICOLON),
    "soh": (Dialect.SOH,),
    "pipe": (Dialect.PIPE,),
    "semicolon": (Dialect.SEMICOLON,),
    "typed": (Dialect.TYPED,),
}
TCP_KINDS: dict[str, Dialect | None] = {
    "padded": Dialect.PADDED,
    "typed": Dialect.TYPED,
    "mqtt": Dialect.MQTT,
    "tcp": None,
}
SERVICE_KINDS = ("web",)  # TCP too
TLS = "+tls"
TLS_FILES = ("certificate", "key", "client_ca")
BACKLOG = 4_096
TRIES_FOR_BOTH = 50  # to find one port number that is free on TCP and UDP


@dataclass(frozen=True, slots=True)
class Endpoint:
    kind: str
    host: str
    port: int
    tls: bool = False
    files: tuple[tuple[str, str], ...] = ()  # of TLS_FILES, those that are this listener's own

    @property
    def shown_kind(self) -> str:
        return self.kind + TLS * self.tls

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        files = f"?{urlencode(self.files, safe='/')}" if self.files else ""
        return f"{self.shown_kind}://{host}:{self.port}{files}"


@dataclass(frozen=True, slots=True)
class Bound:
    """An endpoint with its sockets; `typed` has both."""

    endpoint: Endpoint
    stream: socket.socket | None
    datagram: socket.socket | None
    certificates: Certificates | None = None


def endpoint(text: str) -> Endpoint:
    found = FORM.fullmatch(text)
    if not found or int(found["port"]) > 65_535:
        raise UsageError("listen", f"--listen {text}: not of the form KIND://HOST:PORT, e.g. udp://127.0.0.1:8080")
    kind = found["kind"].removesuffix(TLS)
    tls = kind != found["kind"]
    streams = {*TCP_KINDS, *SERVICE_KINDS}
    known = {*UDP_KINDS, *streams}
    if kind not in known:
        kinds = ", ".join(sorted(known))
        raise UsageError("listen", f"--listen {text}: unknown kind {kind}; there are {kinds}")
    if tls and kind not in streams:
        raise UsageError("listen", f"--listen {text}: no TLS over UDP; +tls goes with {', '.join(sorted(streams))}")
    files = _files(text, found["files"] or "")
    if files and not tls:
        raise UsageError("listen", f"--listen {text}: files are for listeners with {TLS}, e.g. {kind}{TLS}://…")
    return Endpoint(kind, found["v6"] or found["host"], int(found["port"]), tls, files)


def _files(text: str, query: str) -> tuple[tuple[str, str], ...]:
    files = parse_qsl(query, keep_blank_values=True)
    for name, _ in files:
        if name not in TLS_FILES:
            raise UsageError("listen", f"--listen {text}: unknown {name}; there are {', '.join(TLS_FILES)}")
    return tuple(files)


def tls_files(one: Endpoint, settings: TlsConfig) -> Files:
    own = dict(one.files)
    key = "" if "certificate" in own else settings.key  # a key belongs to its certificate
    return Files(
        own.get("certificate", settings.certificate),
        own.get("key", key),
        own.get("client_ca", settings.client_ca),
        settings.require_client,
        settings.ciphers,
    )


def decoders(kind: str, rules: SemicolonConfig) -> dict[Dialect, Decode]:
    every: dict[Dialect, Decode] = {
        Dialect.SOH: soh.decode,
        Dialect.PIPE: pipe.decode,
        Dialect.SEMICOLON: semicolon.Codec(rules.max_topic, rules.max_message, prefix_match=rules.prefix_match).decode,
        Dialect.TYPED: typed.decode,
    }
    return {dialect: every[dialect] for dialect in UDP_KINDS[kind]}


def bind(wanted: Endpoint, config: Config) -> Bound:
    certificates = Certificates(tls_files(wanted, config.tls)) if wanted.tls else None
    try:
        family, host = _resolved(wanted)
        return replace(_bind(wanted, family, host, config), certificates=certificates)
    except OSError as error:
        raise UsageError("bind", _what_to_do(wanted, error, config)) from error


def _bind(wanted: Endpoint, family: socket.AddressFamily, host: str, config: Config) -> Bound:
    datagrams = wanted.kind in UDP_KINDS and not wanted.tls
    both = datagrams and wanted.kind in TCP_KINDS
    for last in [False] * TRIES_FOR_BOTH + [True]:
        stream = datagram = None
        try:
            port = wanted.port
            if wanted.kind in TCP_KINDS or wanted.kind in SERVICE_KINDS:
                stream = _open_stream(family, host, port)
                port = stream.getsockname()[1]
            if datagrams:
                datagram = open_socket(family, host, port, config.udp.receive_buffer)
                port = datagram.getsockname()[1]
            return Bound(replace(wanted, host=host, port=port), stream, datagram)
        except OSError:
            if stream:
                stream.close()
            if last or not both or wanted.port:
                raise
    raise AssertionError("unreachable")


def _open_stream(family: socket.AddressFamily, host: str, port: int) -> socket.socket:
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        keep_alive(sock)
        sock.setblocking(False)
        sock.bind((host, port))
        sock.listen(BACKLOG)
    except BaseException:
        sock.close()
        raise
    return sock


def _resolved(wanted: Endpoint) -> tuple[socket.AddressFamily, str]:
    try:
        found = socket.getaddrinfo(wanted.host, wanted.port, proto=socket.IPPROTO_UDP)
    except ValueError as error:  # what cannot be a name at all
        raise socket.gaierror(socket.EAI_NONAME, str(error)) from error
    family, *_, address = min(found, key=lambda entry: entry[0] != socket.AF_INET)
    return family, str(address[0])


def _what_to_do(wanted: Endpoint, error: OSError, config: Config) -> str:
    if isinstance(error, socket.gaierror):
        return f"--listen {wanted}: unknown host {wanted.host}"
    other = replace(wanted, port=wanted.port + 1 if wanted.port < 65_535 else 0)
    default = config.listen[1:] == DEFAULT_LISTEN[1:]  # but for the port of the first, perhaps: -p is for these alone
    option = "-p PORT or " if wanted.kind == "udp" and default else ""
    return (
        f"cannot listen on {wanted.shown_kind} {wanted.host} port {wanted.port}: {error.strerror}; "
        f"choose another with {option}--listen (e.g. --listen {other})"
    )
