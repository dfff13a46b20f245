"""`smb doctor`: what a start would need: Python, packages, ports, rules, disk, Java. Each problem with its remedy."""

import importlib.metadata
import importlib.util
import os
import platform
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from smbroker import __version__
from smbroker.cli import arguments, terminal
from smbroker.log.lock import LOCK, in_use
from smbroker.model.errors import SmbError, UsageError
from smbroker.server import config as configuration
from smbroker.server import listeners
from smbroker.server.access import Access
from smbroker.server.config import Config

USAGE = "smb doctor [--data DIR] [--config FILE] [--rules FILE] [--listen KIND://HOST:PORT]..."
EXAMPLES = "  smb doctor\n  smb doctor --data /srv/smb\n"
LEAST_FREE = 1 << 30  # bytes on the disk of the data directory
PACKAGES = ("pyarrow", "uvloop", "starlette", "uvicorn")
SPARK_PACKAGES = ("pyspark", "deltalake")


class Finding(NamedTuple):
    what: str
    said: str
    remedy: str = ""  # empty: all is well
    needed: bool = True  # else something works without it


def main(words: Sequence[str]) -> int:
    parser = arguments.parser(
        "smb doctor",
        "Looks at what the broker and its pipelines need. Exit status 1: the broker would not start.",
        USAGE,
        EXAMPLES,
    )
    parser.add_argument("--data", metavar="DIR", help="data directory (default smb-data)")
    parser.add_argument("--config", metavar="FILE", type=Path, help="settings; smb.example.toml shows them all")
    parser.add_argument("--rules", metavar="FILE", help="who may do what")
    parser.add_argument("--listen", metavar="KIND://HOST:PORT", action="append", help="as of the broker")
    options = parser.parse_args(words)
    try:
        config = configuration.load(options.config) if options.config else Config()
    except UsageError as error:
        terminal.fail(error.text, arguments.BAD_ARGUMENTS)
    rights = replace(config.rights, rules=options.rules or config.rights.rules)
    config = replace(config, data=options.data or config.data, rights=rights)
    bad = False
    for found in findings(config, Path(config.data), options.listen or config.listen):
        mark = "ok" if not found.remedy else "BAD" if found.needed else "--"
        terminal.write(f"{mark:<4} {found.what:<12} {found.said}\n".encode("utf-8", "backslashreplace"))
        if found.remedy:
            terminal.write(f"{'':<17} → {found.remedy}\n".encode("utf-8", "backslashreplace"))
        bad = bad or bool(found.remedy and found.needed)
    return 1 if bad else 0


def findings(config: Config, data: Path, listen: Sequence[str]) -> Iterator[Finding]:
    spec = importlib.util.find_spec("smbroker.core.delivery")
    how = "" if spec is None or str(spec.origin).endswith(".py") else " (compiled)"
    system = f"{platform.system()} {platform.release()}"
    yield Finding("smb", f"{__version__}{how}, Python {platform.python_version()}, {system}")
    yield from _packages(PACKAGES, "pip install . in a checkout of SMB", needed=True)
    if not config.no_log and (holder := in_use(data / "log" / LOCK)):
        yield Finding("data", holder, "a broker runs there already: stop it, or name another directory with --data")
    for text in listen:
        yield _port(text, config)
    yield _rights(config)
    yield from _disk(data)
    yield from _packages(
        SPARK_PACKAGES, "for tables and pipelines: pip install '.[spark]' in a checkout of SMB", needed=False
    )
    yield _java()


def _packages(names: Sequence[str], remedy: str, *, needed: bool) -> Iterator[Finding]:
    for name in names:
        try:
            yield Finding(name, importlib.metadata.version(name))
        except importlib.metadata.PackageNotFoundError:
            yield Finding(name, "is not installed", remedy, needed)


def _port(text: str, config: Config) -> Finding:
    try:
        bound = listeners.bind(listeners.endpoint(text), config)
    except SmbError as error:
        return Finding(
            "port",
            error.text.partition("; choose another")[0],
            f"stop who uses it, or listen elsewhere: --listen {text.rpartition(':')[0]}:PORT",
        )
    for sock in (bound.stream, bound.datagram):
        if sock:
            sock.close()
    return Finding("port", f"{text} is free")


def _rights(config: Config) -> Finding:
    try:
        access = Access(config)
    except UsageError as error:
        return Finding("rights", error.text, "mend the file: docs/reference/rules.md")
    if not access.on:
        return Finding("rights", "there are no rules: whoever is on this machine may do all, others nothing")
    return Finding("rights", f"{config.rights.rules} can be read; users: {len(access.users.all)}")


def _disk(data: Path) -> Iterator[Finding]:
    place = next(each for each in (data.absolute(), *data.absolute().parents) if each.is_dir())
    try:
        with tempfile.TemporaryFile(dir=place) as file:
            file.write(b"x")
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        yield Finding("disk", f"{place}: {error.strerror}", "let this user write there, or name another with --data")
        return
    free = shutil.disk_usage(place).free
    said = f"{data}: {free / (1 << 30):.1f} GiB free"
    yield Finding(
        "disk", said, "" if free >= LEAST_FREE else "make room, or limit the log: docs/howto/retention.md", False
    )


def _java() -> Finding:
    try:
        from smbroker.spark.session import missing_java
    except ImportError:
        return Finding("java", "was not looked for: there is no pyspark")
    missing = missing_java()
    return (
        Finding("java", "is there") if missing is None else Finding("java", missing, "install it for pipelines", False)
    )
