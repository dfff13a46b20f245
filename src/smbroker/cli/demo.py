"""`smb demo`: the broker and the pipelines, as `smb up` runs them, and simulated devices in a process of their own.

    this process: broker ◄── sockets ──► python -m smbroker.cli.devices
          └──────────── its standard input ─────────────▲

The devices do the talking; the broker's own console stays quiet.
"""

import argparse
import random
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from smbroker.cli import arguments, ports, terminal, up
from smbroker.cli.beside import Companion, beside
from smbroker.cli.devices.curves import Clock
from smbroker.cli.devices.order import Listener, Order
from smbroker.cli.services import SERVICES
from smbroker.cli.signals import Stopped
from smbroker.model.errors import LogError, UsageError
from smbroker.server import broker, listeners
from smbroker.server.config import Config

USAGE = """smb demo [--data DIR] [--pipelines DIR] [--no-spark] [--no-log] [--config FILE] [--rules FILE]
                [--listen KIND://HOST:PORT]... [--quiet] [--seed N] [--speed X] [-?|--help] [--usage] [-V|--version]"""
EXAMPLES = """\
  smb demo                                 all dialects on their usual ports, on loopback
  smb demo --listen udp://127.0.0.1:9000   soh, pipe and semicolon alone, on another port
  smb demo --speed 1                       the devices' time runs as ours
"""
EXAMPLE_PIPELINES = Path(__file__).parent / "devices" / "pipelines"
MAX_SPEED = 3_600.0


def main(words: Sequence[str]) -> int:
    options = _parser().parse_args(words)
    try:
        config = _config(options)
        up.check(config, options)
        endpoints = ports.settled(config, "smb demo")
        devices = Companion("the simulated devices", ["smbroker.cli.devices"], _order(options, endpoints).line())
        with beside([devices, *up.pipelines(config, options, endpoints, _examples(options))]):
            broker.run(replace(config, listen=tuple(map(str, endpoints))), SERVICES)
    except (UsageError, LogError) as error:
        arguments.cannot_run(error)
    except Stopped:
        pass
    if not options.quiet:
        terminal.say("stopped: everything has ended")
    return 0


def _parser() -> arguments.Parser:
    parser = arguments.parser(
        "smb demo",
        "Runs the broker with simulated devices: a house and a small water works, in all dialects.\n"
        "Ctrl-C, or `exit` on standard input, stops everything.",
        USAGE,
        EXAMPLES,
    )
    up.add_options(parser)
    add = parser.add_argument
    add("--no-log", action="store_true", help="relay only, keep nothing")
    add("--seed", metavar="N", type=int, help="makes the devices do the same again (default: a new one each time)")
    add(
        "--speed",
        metavar="X",
        type=float,
        default=Clock().speed,
        help="pace of the devices' time (default: %(default)g)",
    )
    return parser


def _config(options: argparse.Namespace) -> Config:
    if not 0 < options.speed <= MAX_SPEED:
        raise UsageError("speed", f"--speed {options.speed:g}: give a number above 0, up to {MAX_SPEED:g}")
    config = up.config_of(options)
    return replace(config, no_log=config.no_log or options.no_log, quiet=True)


def _examples(options: argparse.Namespace) -> Path | None:
    """The demo's own pipelines, unless others were named."""
    return None if options.pipelines else EXAMPLE_PIPELINES


def _order(options: argparse.Namespace, endpoints: Sequence[listeners.Endpoint]) -> Order:
    return Order(
        [Listener(one.kind, one.host, one.port) for one in endpoints],
        ports.typed_before(sys.argv[0]),
        options.quiet,
        random.randrange(2**32) if options.seed is None else options.seed,
        options.speed,
        ports.web_url(endpoints),
    )
