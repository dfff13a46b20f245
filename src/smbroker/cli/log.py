"""`smb log ls | cat | verify`: looks at a log, in use or not, without taking a lock."""

import argparse
import json
import sys
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from smbroker.cli import arguments, terminal
from smbroker.log.reader import LogReader
from smbroker.log.rows import as_json
from smbroker.log.topics import Topics
from smbroker.log.verify import verify
from smbroker.model.errors import LogError, Refused, UsageError
from smbroker.model.filter import exact_topic, matches, parse
from smbroker.server import config as configuration

USAGE = """smb log ls [--data DIR]
       smb log cat [--topics FILTER[,FILTER]...] [--from OFFSET] [--limit N] [--data DIR]
       smb log verify [--data DIR]"""
EXAMPLES = """\
  smb log ls
  smb log cat --topics 'house/+/temperature,plant/#' --from 1000
  smb log verify --data /srv/smb-data
"""
DAMAGED = 1  # exit status of verify
PROGRESS_EVERY = 0.2  # seconds


def main(words: Sequence[str] | None = None) -> int:
    parser = arguments.parser("smb log", "What the log holds. The broker may be running or not.", USAGE, EXAMPLES)
    parser.add_argument("action", choices=list(ACTIONS), metavar="ls|cat|verify", help="segments, messages, or a check")
    parser.add_argument("--data", metavar="DIR", help="data directory (default smb-data)")
    parser.add_argument("--config", metavar="FILE", type=Path, help="settings, for the data directory")
    parser.add_argument(
        "--topics", metavar="FILTERS", help="cat: only these topics, in MQTT's notation, comma-separated"
    )
    parser.add_argument("--from", dest="start", metavar="OFFSET", help="cat: from this offset on (default: the first)")
    parser.add_argument("--limit", metavar="N", help="cat: at most so many messages")
    options = parser.parse_args(words)
    try:
        config = configuration.load(options.config) if options.config else configuration.Config()
        directory = Path(options.data or config.data) / "log"
        return ACTIONS[options.action](LogReader(directory), options)
    except BrokenPipeError:  # the reader has seen enough
        return 0
    except (Refused, UsageError) as error:
        terminal.fail(error.text, arguments.BAD_ARGUMENTS)
    except LogError as error:
        hint = "; --data says where the data directory is" if error.code == "no_log" else ""
        terminal.fail(error.text + hint)


def _ls(reader: LogReader, _options: argparse.Namespace) -> int:
    lines: list[tuple[str, ...]] = [("segment", "state", "first", "next", "messages", "bytes", "from", "to")]
    for one in reader.segments():
        numbers = (f"{number:,}" for number in (one.base, one.end, one.rows, one.bytes))
        lines.append((one.name, one.state, *numbers, _time(one.first_ts), _time(one.last_ts)))
    terminal.write_table(lines, range(2, 6))
    return 0


def _time(ts: int) -> str:
    return datetime.fromtimestamp(ts / 1e6, UTC).strftime("%Y-%m-%dT%H:%M:%SZ") if ts else "-"


def _cat(reader: LogReader, options: argparse.Namespace) -> int:
    start = reader.first_offset if options.start is None else _number("--from", options.start)
    left = _number("--limit", options.limit) if options.limit else None
    for batch in reader.read(start, None, _topics(options.topics)):
        rows = list(as_json(batch if left is None else batch.slice(0, left)))
        lines = (json.dumps(row, ensure_ascii=False, separators=(", ", ": ")) + "\n" for row in rows)
        terminal.write("".join(lines).encode("utf-8", "backslashreplace"))
        if left is not None:
            left -= len(rows)
            if left <= 0:
                break
    return 0


def _number(option: str, text: str) -> int:
    try:
        return arguments.whole_number(text, 0, 2**62)
    except UsageError as error:
        raise UsageError(error.code, f"{option} {text}: {error.text}") from error


def _topics(text: str | None) -> Topics | None:
    if not text:
        return None
    filters = [parse(word.strip()) for word in text.split(",")]
    topics = [exact_topic(each) for each in filters]
    if all(topic is not None for topic in topics):
        return {topic for topic in topics if topic is not None}
    return lambda topic: any(matches(each, topic) for each in filters)


def _verify(reader: LogReader, _options: argparse.Namespace) -> int:
    shown = 0.0

    def progress(_file: str, done: int, total: int) -> None:
        nonlocal shown
        now = time.monotonic()
        if sys.stderr.isatty() and now - shown > PROGRESS_EVERY:
            shown = now
            sys.stderr.write(f"\r{done / max(total, 1):4.0%} of {total:,} bytes checked ")
            sys.stderr.flush()

    damages = 0
    for damage in verify(reader.directory, progress):
        damages += 1
        terminal.write(f"{damage.file}: {damage.text}\n".encode())
    if shown:
        sys.stderr.write("\r\x1b[K")
    places = "1 damaged place" if damages == 1 else f"{damages} damaged places"
    terminal.say(places if damages else "the log is sound")
    return DAMAGED if damages else 0


ACTIONS = {"ls": _ls, "cat": _cat, "verify": _verify}
