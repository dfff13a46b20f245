"""`smb demo`: the broker, as `smbbroker` runs it, and simulated devices in a process of their own.

    this process: broker ◄── sockets ──► python -m smbroker.cli.devices
          └──────────── its standard input ─────────────▲

The devices end when their standard input does, so they never outlive the broker. They also do the
talking; the broker's own console stays quiet.
"""

import argparse
import errno
import os
import random
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from threading import Timer
from types import FrameType

from smbroker.cli import arguments, terminal
from smbroker.cli.devices.curves import Clock
from smbroker.cli.devices.order import Listener, Order
from smbroker.cli.services import SERVICES
from smbroker.cli.signals import SIGNALS, Stopped
from smbroker.model.errors import LogError, UsageError
from smbroker.server import broker, listeners
from smbroker.server import config as configuration
from smbroker.server.config import Config

USAGE = """smb demo [--data DIR] [--no-log] [--config FILE] [--listen KIND://HOST:PORT]... [--quiet]
                [--seed N] [--speed X] [-?|--help] [--usage] [-V|--version]"""
EXAMPLES = """\
  smb demo                                 all dialects on their usual ports, on loopback
  smb demo --listen udp://127.0.0.1:9000   soh, pipe and semicolon alone, on another port
  smb demo --speed 1                       the devices' time runs as ours
"""
CANNOT_RUN = 1  # the exit status when a port or the log cannot be had
PATIENCE = 3.0  # seconds for the devices to end by themselves
PUT_OFF = 0.1  # seconds
MAX_SPEED = 3_600.0


def main(words: Sequence[str]) -> int:
    options = _parser().parse_args(words)
    try:
        config = _config(options)
        endpoints = _settled(config)
        with _devices(_order(options, endpoints)):
            _run(replace(config, listen=tuple(map(str, endpoints))))
    except UsageError as error:
        terminal.fail(error.text, CANNOT_RUN if error.code == "bind" else arguments.BAD_ARGUMENTS)
    except LogError as error:
        terminal.fail(error.text, CANNOT_RUN)
    except Stopped:
        pass
    if not options.quiet:
        terminal.say("stopped: the broker and the devices have ended")
    return 0


def _run(config: Config) -> None:
    broker.run(config, SERVICES)


def _parser() -> arguments.Parser:
    parser = arguments.parser(
        "smb demo",
        "Runs the broker with simulated devices: a house and a small water works, in all dialects.\n"
        "Ctrl-C, or `exit` on standard input, stops everything.",
        USAGE,
        EXAMPLES,
    )
    add = parser.add_argument
    add("--data", metavar="DIR", help="directory of the log and the sessions (default: smb-data)")
    add("--no-log", action="store_true", help="relay only, keep nothing")
    add("--config", metavar="FILE", type=Path, help="settings; smb.example.toml shows them all")
    add("--listen", metavar="KIND://HOST:PORT", action="append", help="listen here, and only where named so")
    add("--quiet", action="store_true", help="say nothing unless something is wrong")
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
    config = configuration.load(options.config) if options.config else Config()
    return replace(
        config,
        listen=tuple(options.listen or config.listen),
        data=options.data or config.data,
        no_log=config.no_log or options.no_log,
        quiet=True,
    )


def _order(options: argparse.Namespace, endpoints: Sequence[listeners.Endpoint]) -> Order:
    return Order(
        [Listener(one.kind, one.host, one.port) for one in endpoints],
        typed_before(sys.argv[0]),
        options.quiet,
        random.randrange(2**32) if options.seed is None else options.seed,
        options.speed,
    )


@contextmanager
def _devices(order: Order) -> Iterator[None]:
    """Runs them meanwhile. Signals wait until the child can take them, and then the broker."""
    signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    command = [sys.executable, "-P", "-m", "smbroker.cli.devices"]
    child = subprocess.Popen(command, stdin=subprocess.PIPE, bufsize=0)
    for number in SIGNALS:
        signal.signal(number, _put_off)
    assert child.stdin
    with child.stdin as until_closed:
        try:
            until_closed.write(order.line())
            signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
            yield
        finally:
            for number in SIGNALS:  # we are ending already
                signal.signal(number, signal.SIG_IGN)
            until_closed.close()
            _end(child)


def _put_off(number: int, _frame: FrameType | None) -> None:
    """Has the signal come again soon: the broker's loop, once it runs, takes signals, but none from before."""
    again = Timer(PUT_OFF, os.kill, (os.getpid(), number))
    again.daemon = True
    again.start()


def _end(child: subprocess.Popen[bytes]) -> None:
    try:
        status = child.wait(PATIENCE)
    except subprocess.TimeoutExpired:
        child.kill()
        status = child.wait()
    if status:
        terminal.warn(f"the simulated devices ended badly, with exit status {status}")


# --- ports ---


def _settled(config: Config) -> list[listeners.Endpoint]:
    """The listeners with the ports that they will have; UsageError names all that cannot be had."""
    bound, taken = [], []
    for text in config.listen:
        wanted = listeners.endpoint(text)
        try:
            bound.append(listeners.bind(wanted, config))
        except UsageError as error:
            if not isinstance(error.__cause__, OSError) or error.__cause__.errno != errno.EADDRINUSE:
                raise
            taken.append(wanted)
    for one in bound:
        for sock in (one.stream, one.datagram):
            if sock:
                sock.close()
    if taken:
        raise UsageError("bind", _what_to_do(taken, config.listen))
    return [one.endpoint for one in bound]


def _what_to_do(taken: Sequence[listeners.Endpoint], listen: Sequence[str]) -> str:
    ports = " and ".join(f"port {one.port} ({one.kind} on {one.host})" for one in taken)
    others = [str(replace(one, port=0)) if one in taken else str(one) for one in map(listeners.endpoint, listen)]
    options = " ".join(f"--listen {one}" for one in others)
    again = (
        f"make run ARGS='{options}'" if "MAKELEVEL" in os.environ else f"{typed_before(sys.argv[0])}smb demo {options}"
    )
    return f"{ports} already in use; stop what uses it, or take a free one: {again}"


# --- how people call the programs ---


def typed_before(started_as: str) -> str:
    """What to type before a program's name: nothing if the shell finds it, else its folder, as short as can be."""
    folder = Path(started_as).parent
    if not (folder / "smbpublish").exists():
        folder = Path(sys.executable).parent
    found = shutil.which("smbpublish")
    if found and (folder / "smbpublish").exists() and Path(found).samefile(folder / "smbpublish"):
        return ""
    if folder.is_absolute() and folder.is_relative_to(Path.cwd()):
        folder = folder.relative_to(Path.cwd())
    return f"{folder}/"
