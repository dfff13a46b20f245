"""Which broker, in which dialect: the options that `smbpublish` and `smbsubscribe` share.

The host is given with -h or, in the pipe dialect's own form of call, as the first word.
"""

from argparse import Namespace
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from smbroker.cli.arguments import MAX_PORT, Parser, Problems, shown, whole_number
from smbroker.cli.login import add_user_options, password_of
from smbroker.client.address import Address
from smbroker.model.errors import UsageError
from smbroker.model.message import Dialect

if TYPE_CHECKING:
    from ssl import SSLContext

HOST = "127.0.0.1"
PORTS = {  # the dialects that these programs speak, and where each is at home
    Dialect.SEMICOLON: 8080,
    Dialect.SOH: 8080,
    Dialect.PIPE: 8080,
    Dialect.PADDED: 1379,
    Dialect.TYPED: 12345,
    Dialect.MQTT: 1883,
}
NAMES = ", ".join(PORTS)
TLS_DIALECTS = (Dialect.PADDED, Dialect.TYPED, Dialect.MQTT)
TLS_PORTS = {Dialect.MQTT: 8883}  # where it is another


def add_target_options(parser: Parser) -> None:
    ports = ", ".join(f"{dialect} {port}" for dialect, port in PORTS.items())
    parser.add_argument("--dialect", metavar="D", help=f"wire language: {NAMES} (default: semicolon)")
    parser.add_argument("-h", "--host", help=f"host of the broker (default: {HOST})")
    parser.add_argument("-p", "--port", help=f"port of the broker (default: {ports}; mqtt with --tls 8883)")
    add_user_options(parser)
    parser.add_argument("--tls", action="store_true", help="with padded, mqtt and typed subscribers: speak TLS")
    parser.add_argument("--cafile", metavar="FILE", help="with --tls: who signed the broker's certificate (PEM)")
    parser.add_argument(
        "--cert", metavar="FILE", help="with --tls: our certificate, for a broker that asks for it (PEM)"
    )
    parser.add_argument("--key", metavar="FILE", help="with --cert: its key (PEM), if that is a file of its own")


def dialect_named(name: str) -> Dialect:
    if name not in PORTS:
        raise UsageError("dialect_unknown", f"--dialect {shown(name)}: no such dialect; choose from {NAMES}")
    return Dialect(name)


def broker_address(options: Namespace, broker: str | None, dialect: Dialect, problems: Problems) -> Address:
    """Where the broker is; `broker` is the host as a word of its own, if it was given that way."""
    option, host = ("-h", options.host) if broker is None else ("BROKER", broker)
    if host is None:
        host = HOST
    if broker is not None and options.host is not None:
        problems.texts.append(f"-h {shown(options.host)}: the host is given twice; leave out -h or BROKER")
    if not host:
        problems.texts.append(f"{option} '': give the host's name or address")
    tls = _tls(options, dialect, problems)
    port = TLS_PORTS.get(dialect, PORTS[dialect]) if tls else PORTS[dialect]
    if options.port is not None:
        with problems.naming(f"-p {shown(options.port)}"):
            port = whole_number(options.port, 1, MAX_PORT)
    user, password = None, None
    with problems.naming("--user"):
        user, password = password_of(options)
        if user is not None and dialect is not Dialect.MQTT:
            raise UsageError("login", f"{dialect} knows no users; choose --dialect mqtt")
    return Address(host, port, tls, user, password)


def _tls(options: Namespace, dialect: Dialect, problems: Problems) -> "SSLContext | None":
    if not options.tls:
        for name in ("cafile", "cert", "key"):
            if getattr(options, name):
                problems.texts.append(f"--{name}: goes with --tls")
        return None
    if dialect not in TLS_DIALECTS:
        problems.texts.append(f"--tls: {dialect} goes over UDP, which has none; choose from {', '.join(TLS_DIALECTS)}")
        return None
    import ssl

    context = ssl.create_default_context()
    with _naming_file(problems, "--cafile", options.cafile):
        if options.cafile:
            context.load_verify_locations(options.cafile)
    with _naming_file(problems, "--cert", options.cert):
        if options.cert:
            context.load_cert_chain(options.cert, options.key)
    if options.key and not options.cert:
        problems.texts.append("--key: goes with --cert")
    return context


@contextmanager
def _naming_file(problems: Problems, option: str, name: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:  # ssl's are among them, and name the library's inside
        why = "not what is needed, in PEM" if hasattr(error, "library") else error.strerror
        problems.texts.append(f"{option} {shown(name)}: {why}")
