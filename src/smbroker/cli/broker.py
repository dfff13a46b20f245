"""`smbbroker`: reads options and configuration, then runs the broker in the foreground."""

import argparse
import os
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from smbroker.cli import arguments
from smbroker.log.lean import lean
from smbroker.model.errors import LogError, UsageError
from smbroker.server import config as configuration
from smbroker.server.config import DEFAULT_LISTEN, Config

USAGE = """smbbroker [--config smb.toml] [--data DIR] [--no-log] [--rules FILE] [--quiet] [--log-format text|json]
                 [--listen KIND://HOST:PORT]... [-p PORT] [-s N] [-m N] [-t N] [-?|--help] [--usage] [-V|--version]"""
EXAMPLES = """\
  smbbroker                                   all dialects on their usual ports, on loopback
  smbbroker -p 9000                           the UDP dialects on port 9000
  smbbroker --listen semicolon://127.0.0.1:0  one dialect, on a free port
"""


def _parser() -> arguments.Parser:
    parser = arguments.parser(
        "smbbroker",
        "The broker: relays messages between clients that speak soh, pipe, semicolon, padded, typed and MQTT.",
        USAGE,
        EXAMPLES,
    )
    add = parser.add_argument
    add("--config", metavar="FILE", type=Path, help="settings; smb.example.toml shows them all")
    add("--data", metavar="DIR", help="directory of the log and the sessions (default smb-data)")
    add("--no-log", action="store_true", help="relay only: keep no messages, no history, no sessions on disk")
    add("--rules", metavar="FILE", help="who may do what; without it loopback may do all, and others nothing")
    add("--quiet", action="store_true", help="print neither `listening` and `ready` nor the semicolon console")
    add("--log-format", metavar="text|json", help="of what is said on standard error: lines of text, or of JSON")
    add(
        "--listen",
        metavar="KIND://HOST:PORT",
        action="append",
        help="listen here, and only where named so (again for more); KIND is udp (soh, pipe and semicolon), soh, pipe, "
        "semicolon, padded, typed, mqtt, tcp (padded, typed or mqtt) or web (HTTP); over TCP also as mqtt+tls "
        "and so on; port 0 takes a free one; "
        f"default: {' '.join(DEFAULT_LISTEN)}",
    )
    add("-p", "--port", metavar="PORT", help="UDP port of soh, pipe and semicolon (default 8080)")
    add("-s", "--max-subscribers", metavar="N", help="semicolon subscribers: pairs of address and topic (default 100)")
    add("-m", "--max-message-length", metavar="N", help="bytes of a semicolon message (default 500)")
    add("-t", "--max-topic-length", metavar="N", help="bytes of a semicolon topic (default 128)")
    return parser


def _config(options: argparse.Namespace) -> Config:
    config = configuration.load(options.config) if options.config else Config()
    if options.port is not None and (options.listen or config.listen != DEFAULT_LISTEN):
        raise UsageError("port", "-p changes the default listener; with --listen write the port there")
    listen = tuple(options.listen) if options.listen else config.listen
    if options.port is not None:
        port = _number("-p", options.port, 65_535)
        listen = tuple(f"udp://127.0.0.1:{port}" if text.startswith("udp:") else text for text in listen)
    limits = {
        "max_subscribers": ("-s", options.max_subscribers),
        "max_message": ("-m", options.max_message_length),
        "max_topic": ("-t", options.max_topic_length),
    }
    given: dict[str, Any] = {key: _number(option, text) for key, (option, text) in limits.items() if text is not None}
    semicolon = replace(config.semicolon, **given)
    if options.log_format not in (None, "text", "json"):
        raise UsageError("log_format", f"--log-format {arguments.shown(options.log_format)}: it is text or json")
    return replace(
        config,
        listen=listen,
        semicolon=semicolon,
        data=options.data or config.data,
        no_log=config.no_log or options.no_log,
        rights=replace(config.rights, rules=options.rules or config.rights.rules),
        quiet=config.quiet or options.quiet,
        log_format=options.log_format or config.log_format,
    )


def _number(option: str, text: str, most: int = 2**31) -> int:
    try:
        return arguments.whole_number(text, 0, most)
    except UsageError as error:
        raise UsageError("number", f"{option} {arguments.shown(text)}: {error.text}") from error


def _fill_standard_streams() -> None:
    """One that is closed must not become the number of a socket: the console would write to a client."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest number that is free


def run(config: Config) -> None:
    """Serves, in this process, until told to stop."""
    lean()
    from smbroker.cli.services import SERVICES
    from smbroker.server import broker

    broker.run(config, SERVICES)


def main(words: Sequence[str] | None = None) -> None:
    _fill_standard_streams()
    options = _parser().parse_args(words)
    try:
        run(_config(options))
    except (UsageError, LogError) as error:
        arguments.cannot_run(error)
    sys.exit(0)
