"""Which broker, in which dialect: the options that `smbpublish` and `smbsubscribe` share.

The host is given with -h or, in the pipe dialect's own form of call, as the first word.
"""

from argparse import Namespace

from smbroker.cli.arguments import MAX_PORT, Parser, Problems, shown, whole_number
from smbroker.client.address import Address
from smbroker.model.errors import UsageError
from smbroker.model.message import Dialect

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


def add_target_options(parser: Parser) -> None:
    ports = ", ".join(f"{dialect} {port}" for dialect, port in PORTS.items())
    parser.add_argument("--dialect", metavar="D", help=f"wire language: {NAMES} (default: semicolon)")
    parser.add_argument("-h", "--host", help=f"host of the broker (default: {HOST})")
    parser.add_argument("-p", "--port", help=f"port of the broker (default: {ports})")


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
    port = PORTS[dialect]
    if options.port is not None:
        with problems.naming(f"-p {shown(options.port)}"):
            port = whole_number(options.port, 1, MAX_PORT)
    return Address(host, port)
