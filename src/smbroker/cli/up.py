"""`smb up`: the broker in the foreground, and the pipelines in a process of their own. One Ctrl-C stops all.

this process: broker, HTTP ◄──────── HTTP ────────► python -m smbroker.cli.smb pipeline run
      ├────── DIR (log, pipelines.json) ─────────────────────▲
      └────── its standard input ────────────────────────────┘
"""

import argparse
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from smbroker.cli import arguments, ports, terminal
from smbroker.cli.beside import Companion, beside
from smbroker.cli.pipeline import check_builtin
from smbroker.cli.services import SERVICES
from smbroker.cli.signals import Stopped
from smbroker.model.errors import LogError, UsageError
from smbroker.server import broker
from smbroker.server import config as configuration
from smbroker.server.config import Config
from smbroker.server.listeners import Endpoint

USAGE = """smb up [--data DIR] [--pipelines DIR] [--no-spark] [--demo] [--config FILE]
              [--rules FILE] [--listen KIND://HOST:PORT]... [--quiet] [-?|--help] [--usage] [-V|--version]"""
EXAMPLES = """\
  smb up                                   broker, pipelines of ./pipelines and the built-in ones, page
  smb up --no-spark                        without pipelines, as smbbroker
  smb up --demo                            with simulated devices too
"""
SPARK_PATIENCE = 8.0  # seconds for the pipelines to end by themselves


def main(words: Sequence[str]) -> int:
    options = _parser().parse_args(words)
    if options.demo:
        from smbroker.cli import demo

        return demo.main([word for word in words if word != "--demo"])
    try:
        config = config_of(options)
        if not options.no_spark:
            check(config, options)
        endpoints = ports.settled(config, "smb up")
        with beside(pipelines(config, options, endpoints)):
            broker.run(replace(config, listen=tuple(map(str, endpoints))), SERVICES)
    except (UsageError, LogError) as error:
        arguments.cannot_run(error)
    except Stopped:
        pass
    return 0


def _parser() -> arguments.Parser:
    parser = arguments.parser(
        "smb up",
        "Runs the broker and the pipelines. Ctrl-C, or `exit` on standard input, stops everything.",
        USAGE,
        EXAMPLES,
    )
    add_options(parser)
    parser.add_argument("--demo", action="store_true", help="with simulated devices: the same as smb demo")
    return parser


def add_options(parser: arguments.Parser) -> None:
    """Those that `smb demo` has too."""
    add = parser.add_argument
    add("--data", metavar="DIR", help="directory of the log, the sessions and the tables (default: smb-data)")
    add("--pipelines", metavar="DIR", help="directory of the pipelines' files (default: pipelines)")
    add("--no-spark", action="store_true", help="run no pipelines")
    add("--config", metavar="FILE", type=Path, help="settings; smb.example.toml shows them all")
    add("--listen", metavar="KIND://HOST:PORT", action="append", help="listen here, and only where named so")
    add("--rules", metavar="FILE", help="who may do what; without it loopback may do all, and others nothing")
    add("--quiet", action="store_true", help="say nothing unless something is wrong")


def config_of(options: argparse.Namespace) -> Config:
    config = configuration.load(options.config) if options.config else Config()
    return replace(
        config,
        listen=tuple(options.listen or config.listen),
        data=options.data or config.data,
        rights=replace(config.rights, rules=options.rules or config.rights.rules),
        quiet=config.quiet or options.quiet,
    )


def check(config: Config, options: argparse.Namespace) -> None:
    if options.pipelines and not Path(options.pipelines).is_dir():
        raise UsageError("no_directory", f"--pipelines {options.pipelines}: there is no such directory")
    check_builtin(config)
    if config.no_log and options.pipelines:
        raise UsageError("no_log", "--pipelines needs the log, and the settings say no_log")


def pipelines(
    config: Config, options: argparse.Namespace, endpoints: Sequence[Endpoint], examples: Path | None = None
) -> list[Companion]:
    """The process that runs them, if any does. `examples`: a directory of files beside the user's."""
    if options.no_spark or config.no_log:
        return []
    words = ["pipeline", "run", "--beside", "--data", config.data]
    if options.pipelines:  # that of the settings need not be there
        words += ["--pipelines", options.pipelines]
    if examples:
        words += ["--examples", str(examples)]
    if options.config:
        words += ["--config", str(options.config)]
    if options.quiet:
        words.append("--quiet")
    url = ports.web_url(endpoints)
    words += ["--url", url or ""]
    if url is None:
        terminal.warn("there is no web listener: pipelines can write tables, but no topics")
    return [Companion("the pipelines", ["smbroker.cli.smb", *words], b"", SPARK_PATIENCE, (0, 3), again=True)]
