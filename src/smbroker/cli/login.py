"""Who a program is to the broker: the options, and the secrets from their files. Never from the command line itself,
which everybody on the machine can see."""

from argparse import Namespace
from base64 import b64encode
from pathlib import Path

from smbroker.cli.arguments import Parser, shown
from smbroker.client.web import URL
from smbroker.model.errors import UsageError

LONGEST = 4_096  # bytes of a secret


def add_user_options(parser: Parser) -> None:
    parser.add_argument("--user", metavar="NAME", help="log in as this user of the broker")
    parser.add_argument("--password-file", metavar="FILE", help="with --user: the file with the password")


def add_web_options(parser: Parser) -> None:
    parser.add_argument("--url", help=f"the broker's web listener (default: that of --config, else {URL})")
    parser.add_argument("--config", metavar="FILE", type=Path, help="the broker's settings, for its web listener")
    parser.add_argument("--data", metavar="DIR", help="taken as by other commands; not needed, all comes over HTTP")
    add_user_options(parser)
    parser.add_argument("--token-file", metavar="FILE", help="instead of a user: the file with a token")


def url_of(options: Namespace) -> str:
    """Of the broker's web listener. Raises UsageError."""
    if options.url or not options.config:
        return options.url or URL
    from smbroker.cli.ports import web_url
    from smbroker.server import config, listeners

    url = web_url(map(listeners.endpoint, config.load(options.config).listen))
    if url is None:
        raise UsageError("no_web", f"--config {options.config}: there is no web listener")
    return url


def password_of(options: Namespace) -> tuple[str | None, bytes | None]:
    """The user and the password. Raises UsageError."""
    if options.password_file and not options.user:
        raise UsageError("login", "--password-file: goes with --user")
    return options.user, secret(options.password_file, "--password-file") if options.password_file else None


def headers_of(options: Namespace) -> dict[str, str]:
    """What a request shows. Raises UsageError."""
    user, password = password_of(options)
    if user is not None:
        if options.token_file:
            raise UsageError("login", "--token-file: either a token or a user")
        pair = user.encode() + b":" + (password or b"")
        return {"Authorization": f"Basic {b64encode(pair).decode()}"}
    if options.token_file:
        token = secret(options.token_file, "--token-file")
        if not token.isascii():
            raise UsageError("login", f"--token-file {shown(options.token_file)}: that is no token")
        return {"Authorization": f"Bearer {token.decode().strip()}"}
    return {}


def secret(name: str, option: str) -> bytes:
    try:
        with Path(name).open("rb") as file:
            found = file.read(LONGEST + 1)
    except OSError as error:
        raise UsageError("login", f"{option} {shown(name)}: {error.strerror}") from error
    found = found.removesuffix(b"\n")
    if not 0 < len(found) <= LONGEST:
        raise UsageError("login", f"{option} {shown(name)}: there must be 1 to {LONGEST} bytes in it")
    return found
