"""`smb top`: a live table in the terminal, over HTTP: rates by dialect, the busiest topics, clients that are behind."""

import shutil
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from smbroker.cli import arguments, terminal
from smbroker.cli.login import add_web_options, headers_of, url_of
from smbroker.cli.signals import Stopped
from smbroker.client.errors import ClientError
from smbroker.client.web import WebClient
from smbroker.model.errors import UsageError

USAGE = "smb top [--every SECONDS] [--count N] [--url URL] [--config FILE] [--user NAME]"
EXAMPLES = """\
  smb top
  smb top --every 5
  smb top --count 1 > now.txt    one look
"""
TOPICS = 20_000  # that one look takes in
CLIENTS = 5  # that are shown
LINES, COLUMNS = 40, 100  # where there is no terminal to ask
CLEAR = "\x1b[H\x1b[2J"
DIALECT_HEADS = ("dialect", "in/s", "out/s", "in", "out", "subscriptions")
CLIENT_HEADS = ("client", "dialect", "queue", "lag", "dropped")
TOPIC_HEADS = ("topic", "per s", "count", "last")
UNITS = ("B", "KiB", "MiB", "GiB", "TiB")


@dataclass
class Look:
    """The broker at one moment, and what has changed since the one before."""

    stats: dict[str, Any]
    seconds: float = 0.0  # since the one before; 0: it is the first
    before: dict[str, Any] = field(default_factory=dict)
    topics: list[tuple[float, dict[str, Any]]] = field(default_factory=list)  # messages per second, topic
    clients: list[dict[str, Any]] = field(default_factory=list)

    def rate(self, key: str, name: str | None = None) -> float:
        """Of all names of a counter by name, or of one."""
        if not self.seconds:
            return 0.0
        now, then = _counted(self.stats[key], name), _counted(self.before[key], name)
        return (now - then) / self.seconds


def main(words: Sequence[str]) -> int:
    parser = arguments.parser("smb top", "A live table of what flows through the broker.", USAGE, EXAMPLES)
    parser.add_argument("--every", metavar="SECONDS", default="2", help="between two looks (default %(default)s)")
    parser.add_argument("--count", metavar="N", help="end after so many tables (default: never)")
    add_web_options(parser)
    options = parser.parse_args(words)
    try:
        every = arguments.whole_number(options.every, 1, 3_600)
        count = arguments.whole_number(options.count, 1, 2**62) if options.count else None
        url = url_of(options)
        for number, look in enumerate(_looks(WebClient(url, headers_of(options)), every), 1):
            _print(look, url)
            if number == count:
                return 0
    except (BrokenPipeError, Stopped):
        return 0
    except UsageError as error:
        terminal.fail(error.text, arguments.BAD_ARGUMENTS)
    except ClientError as error:
        terminal.fail(error.text)
    return 0


def _looks(client: WebClient, every: int) -> Iterator[Look]:
    """The first one only tells where counting begins."""
    counts: dict[str, int] = {}
    known = {one["topic"]: one for one in _topics(client, 0)}
    stats = client.ask("/v1/stats")
    while True:
        counts = {name: one["count"] for name, one in known.items()}
        before, since = stats, stats["log"]["next_offset"] if stats["log"] else 0
        time.sleep(every)
        stats = client.ask("/v1/stats")
        look = Look(stats, stats["uptime"] - before["uptime"], before)
        if look.seconds <= 0:  # another broker
            known = {}
            continue
        changed = _topics(client, since)
        known |= {one["topic"]: one for one in changed}
        look.topics = sorted(
            (((one["count"] - counts.get(one["topic"], 0)) / look.seconds, one) for one in changed),
            key=lambda pair: -pair[0],
        )
        look.clients = client.ask("/v1/clients", {"limit": CLIENTS})["clients"]
        yield look
        if len(known) > 5 * TOPICS:
            known = {one["topic"]: one for one in changed}


def _topics(client: WebClient, since: int) -> list[dict[str, Any]]:
    try:
        found: list[dict[str, Any]] = client.ask(
            "/v1/topics", {"since_offset": since, "limit": TOPICS, "order": "count", "characters": 80}
        )
    except ClientError as error:
        if error.code == "no_log":
            return []
        raise
    return found


# --- on the terminal ---


def _print(look: Look, url: str) -> None:
    terminal_there = sys.stdout.isatty()
    columns, lines = shutil.get_terminal_size((COLUMNS, LINES)) if terminal_there else (COLUMNS, LINES)
    rows = [line[:columns] for line in _lines(look, url, lines - 1)]
    terminal.write(((CLEAR if terminal_there else "") + "\n".join(rows) + "\n").encode("utf-8", "backslashreplace"))


def _lines(look: Look, url: str, most: int) -> list[str]:
    stats, log = look.stats, look.stats["log"]
    kept = f"log {_bytes(log['bytes'])}, on disk after {log['durable_after'] * 1000:.1f} ms" if log else "no log"
    head = [
        f"SMB {url}  up {stats['uptime']:,.0f} s  {stats['connections']:,} connections  {kept}",
        f"in {look.rate('received'):,.1f}/s ({_bytes(look.rate('bytes_in'))}/s)  "
        f"out {look.rate('delivered'):,.1f}/s ({_bytes(look.rate('bytes_out'))}/s)  "
        f"dropped {look.rate('dropped'):,.1f}/s, {_counted(stats['dropped'], None):,} in all",
    ]
    if log and log["error"]:
        head.append(f"the log cannot take messages: {terminal.printable(log['error'])}")
    names = sorted({*stats["received"], *stats["delivered"], *stats["subscriptions"]})
    dialects = [
        (name, f"{look.rate('received', name):,.1f}", f"{look.rate('delivered', name):,.1f}",
         f"{stats['received'].get(name, 0):,}", f"{stats['delivered'].get(name, 0):,}",
         f"{stats['subscriptions'].get(name, 0):,}")
        for name in names
    ]  # fmt: skip
    head += ["", *terminal.aligned([DIALECT_HEADS, *dialects], range(1, 6))]
    behind = [
        (
            terminal.printable(one["name"]),
            one["dialect"],
            _bytes(one["queue_bytes"]),
            _shown(one["lag"]),
            f"{one['dropped']:,}",
        )
        for one in look.clients
    ]
    tail = ["", *terminal.aligned([CLIENT_HEADS, *behind], range(2, 5))] if behind else []
    room = max(most - len(head) - len(tail) - 2, 3)
    topics = [
        (terminal.printable(one["topic"])[:60], f"{rate:,.1f}", f"{one['count']:,}", _last(one))
        for rate, one in look.topics[:room]
    ]
    return [*head, "", *terminal.aligned([TOPIC_HEADS, *topics], range(1, 3)), *tail]


def _counted(counts: Mapping[str, int] | int, name: str | None) -> int:
    if isinstance(counts, int):
        return counts
    return sum(counts.values()) if name is None else counts.get(name, 0)


def _last(topic: dict[str, Any]) -> str:
    return "(binary)" if topic["last_text"] is None else terminal.printable(topic["last_text"])


def _shown(lag: int | None) -> str:
    return "-" if lag is None else f"{lag:,}"


def _bytes(number: float) -> str:
    unit = 0
    while number >= 1024 and unit < len(UNITS) - 1:
        number, unit = number / 1024, unit + 1
    return f"{number:,.0f} {UNITS[unit]}" if number >= 100 or not unit else f"{number:.1f} {UNITS[unit]}"
