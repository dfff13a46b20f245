"""`smb table ls | show`: what the tables hold. Needs neither Spark nor Java, nor a running broker."""

import argparse
import json
from collections.abc import Sequence
from pathlib import Path

from smbroker.cli import arguments, terminal
from smbroker.model.errors import UsageError
from smbroker.server import config as configuration

USAGE = """smb table ls [--data DIR]
       smb table show NAME [--limit N] [--data DIR]"""
EXAMPLES = """\
  smb table ls
  smb table show archive --limit 3
"""
LIMIT = 20
MAX_LIMIT = 1_000_000
MADE = "pipelines make them, some half a minute after the start of smb up or smb demo"


def main(words: Sequence[str]) -> int:
    parser = arguments.parser("smb table", "The tables that pipelines have written.", USAGE, EXAMPLES)
    parser.add_argument("action", choices=["ls", "show"], metavar="ls|show", help="all tables, or rows of one")
    parser.add_argument("name", nargs="?", metavar="NAME", help="show: the table")
    parser.add_argument("--data", metavar="DIR", help="data directory (default smb-data)")
    parser.add_argument("--config", metavar="FILE", type=Path, help="settings, for the data directory")
    parser.add_argument(
        "--limit",
        metavar="N",
        default=str(LIMIT),
        help="show: so many rows, the newest, by offset or else by time; any if there is neither (default %(default)s)",
    )
    options = parser.parse_intermixed_args(words)
    try:
        config = configuration.load(options.config) if options.config else configuration.Config()
        data = Path(options.data or config.data)
        arguments.check_data(data)
        return _ls(data) if options.action == "ls" else _show(data, options)
    except BrokenPipeError:  # the reader has seen enough
        return 0
    except ImportError:
        terminal.fail("tables need the package deltalake: pip install '.[spark]' in a checkout of SMB")
    except UsageError as error:
        terminal.fail(error.text, 1 if error.code in ("no_table", "no_data") else arguments.BAD_ARGUMENTS)


def _ls(data: Path) -> int:
    from smbroker.spark.tables import tables

    found = list(tables(data))
    if not found:
        terminal.say(f"there are no tables in {data}; {MADE}")
        return 0
    lines: list[tuple[str, ...]] = [("table", "rows", "files", "bytes", "version", "columns")]
    for one in found:
        numbers = (f"{number:,}" for number in (one.rows, one.files, one.bytes, one.version))
        lines.append((one.name, *numbers, ", ".join(name for name, _ in one.columns)))
    terminal.write_table(lines, range(1, 5))
    return 0


def _show(data: Path, options: argparse.Namespace) -> int:
    from smbroker.spark.tables import last_rows

    if not options.name:
        raise UsageError("no_name", "show: name the table; smb table ls lists them")
    try:
        limit = arguments.whole_number(options.limit, 1, MAX_LIMIT)
    except UsageError as error:
        raise UsageError(error.code, f"--limit {options.limit}: {error.text}") from error
    try:
        rows = last_rows(data, options.name, limit)
    except UsageError as error:
        if error.code == "no_table" and (why := _why_none(data, options.name)):
            raise UsageError("no_table", why) from error
        raise
    lines = (json.dumps(row, ensure_ascii=False, default=str) + "\n" for row in rows)
    terminal.write("".join(lines).encode("utf-8", "backslashreplace"))
    return 0


def _why_none(data: Path, table: str) -> str | None:
    """Where waiting may help."""
    from smbroker.spark.tables import tables

    if writer := _writer(data, table):
        return f"the table {table} has no rows yet; {writer} writes it: ask again in some seconds"
    return None if any(tables(data)) else f"there are no tables in {data} yet; {MADE}"


def _writer(data: Path, table: str) -> str | None:
    """The pipeline that will make this table, if one is starting or running."""
    from smbroker.spark.pipelines import status

    told = (status.read(data) or {"pipelines": []})["pipelines"]
    at_work = (one["name"] for one in told if one.get("table") == table and one["state"] in ("starting", "running"))
    return next(at_work, None)
