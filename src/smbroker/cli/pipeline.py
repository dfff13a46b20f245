"""`smb pipeline run | check | status | reset`: Spark's side of the product, on the data directory of a broker.

Spark is imported only where it is needed, after what can be said without it has been said.
"""

import argparse
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from smbroker.cli import arguments, terminal
from smbroker.cli.beside import stop_at_the_end_of
from smbroker.cli.signals import SIGNALS, Stopped
from smbroker.log.lock import Lock
from smbroker.model.errors import LogError, UsageError
from smbroker.server import config as configuration
from smbroker.server.config import Config

if TYPE_CHECKING:
    from smbroker.spark.pipelines.files import Pipeline
    from smbroker.spark.pipelines.status import PipelineStatus

USAGE = """smb pipeline run [NAME...] [--once] [--no-builtin] [--pipelines DIR] [--url URL] [--master URL]
                        [--token-file FILE] [--data DIR] [--config FILE]
       smb pipeline check FILE...
       smb pipeline status [--data DIR]
       smb pipeline reset NAME [--from OFFSET] [--drop-table] [--data DIR]"""
EXAMPLES = """\
  smb pipeline run                      those in ./pipelines and the built-in ones, until Ctrl-C
  smb pipeline run rooms --once         one, until it has read what is there
  smb pipeline check pipelines/*.sql    whether files would run; exit status 1 if not
  smb pipeline reset rooms --from 0     read the log again from the beginning at the next start; stop `smb up` before
"""
FAILED = 1  # exit status: a pipeline is bad or has failed
STATUSES = {
    "no_java": 3,
    "no_spark": 3,
    "spark_start": 4,
    "spark_died": 4,
    "no_data": 1,
}  # exit; with 4 another try may help
LOCK = "pipelines.lock"  # within the data directory: one runner
TOKEN = "pipeline.token"  # within the data directory: the broker writes it
URL = "http://127.0.0.1:8090"
BROKER_PATIENCE = 10.0  # seconds for a broker that starts with us to make its log
LOOK_EVERY = 1.0  # seconds, for a first pipeline
NICE = 5  # how far the broker goes first
STOP_PATIENCE = 2.0  # seconds; what is cut short is repeated at the next start
PROGRESS_EVERY = 1.0  # seconds
NO_SPARK = "there is no Spark here; install it with: pip install '.[spark]' in a checkout of SMB"


def main(words: Sequence[str]) -> int:
    options = _parser().parse_intermixed_args(words)
    try:
        config = configuration.load(options.config) if options.config else Config()
        return ACTIONS[options.action](options, config)
    except UsageError as error:
        terminal.fail(error.text, STATUSES.get(error.code, arguments.BAD_ARGUMENTS))
    except LogError as error:
        terminal.fail(error.text)
    except Stopped:
        if not options.beside:
            raise
        return 0  # it ends with its broker: that is no failure


def _parser() -> arguments.Parser:
    parser = arguments.parser(
        "smb pipeline",
        "Pipelines: files that turn messages into tables and derived topics, run by Spark.",
        USAGE,
        EXAMPLES,
    )
    add = parser.add_argument
    add("action", choices=list(ACTIONS), metavar="run|check|status|reset", help="what to do")
    add("names", nargs="*", metavar="NAME", help="run: pipelines; reset: one, while none run; check: files")
    add("--data", metavar="DIR", help="data directory of the broker (default smb-data)")
    add("--config", metavar="FILE", type=Path, help="settings, for data and [pipelines]")
    add("--pipelines", metavar="DIR", help="run: where the files are (default pipelines)")
    add("--once", action="store_true", help="run: end when all that is there has been read")
    add("--no-builtin", action="store_true", help="run: only the files, not archive, statistics and silence")
    add("--url", default=URL, help="run: the broker's HTTP listener (default %(default)s); '': no topics")
    add("--master", metavar="URL", default="local[*]", help="run, check: Spark's master (default %(default)s)")
    add("--token-file", metavar="FILE", type=Path, help=f"run: allows $stats and $alerts (default DIR/{TOKEN})")
    add("--quiet", action="store_true", help="run: say only what is wrong")
    add("--examples", metavar="DIR", type=Path, help=argparse.SUPPRESS)  # files that are there without the user's
    add("--beside", action="store_true", help=argparse.SUPPRESS)  # of a broker: ends with standard input
    add("--verbose", action="store_true", help="run, check: show what Spark prints")
    add("--from", dest="start", metavar="OFFSET", help="reset: begin there (default: the first message there is)")
    add(
        "--drop-table",
        action="store_true",
        help="reset: remove the pipeline's table too, or without its file that of its name",
    )
    return parser


def _data(options: argparse.Namespace, config: Config) -> Path:
    return Path(options.data or config.data)


def _runnable() -> None:
    """Raises UsageError if Spark or Java is missing."""
    try:
        from smbroker.spark.session import missing_java
    except ImportError as error:
        raise UsageError("no_spark", NO_SPARK) from error
    if missing := missing_java():
        raise UsageError("no_java", missing)


# --- run ---


def _run(options: argparse.Namespace, config: Config) -> int:
    data = _data(options, config).absolute()
    if options.beside:
        _live_beside(data)
    if not (data / "log").is_dir():
        raise UsageError("no_log", f"there is no log in {data}: start the broker, or say where it is with --data")
    _runnable()
    from smbroker.spark.pipelines.runner import Wanted

    directory = Path(options.pipelines or config.pipelines.directory)
    if options.pipelines and not directory.is_dir():
        raise UsageError("no_directory", f"--pipelines {directory}: there is no such directory")
    check_builtin(config)
    builtin = () if options.no_builtin else config.pipelines.builtin
    wanted = Wanted(directory.absolute(), builtin, options.names, options.examples)
    if options.beside:
        _await_pipelines(wanted, options.quiet)
    _check_names(wanted)
    with _locked(data, f"pipelines run on {data} already"):
        return _run_locked(options, data, wanted)


def _locked(data: Path, otherwise: str) -> Lock:
    """Whoever has it is a child of `smb up`, or a run: its number would tell nobody anything."""
    try:
        return Lock(data / LOCK)
    except LogError as error:
        if error.code != "locked":
            raise
        raise LogError("locked", f"{otherwise}: stop `smb up` (or `smb pipeline run`) first") from error


def _live_beside(data: Path) -> None:
    """As a child of the broker: after it when there is a choice, and not longer than it."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)  # blocked by our parent until we are prepared
    os.nice(NICE)
    stop_at_the_end_of(terminal.InputLines())
    _runnable()
    give_up = time.monotonic() + BROKER_PATIENCE
    while not (data / "log").is_dir() and time.monotonic() < give_up:
        time.sleep(0.1)


def check_builtin(config: Config) -> None:
    """Raises UsageError."""
    for name in config.pipelines.builtin:
        if name not in configuration.BUILTIN:
            known = ", ".join(configuration.BUILTIN)
            raise UsageError("config", f"pipelines.builtin: there is no {name}; there are {known}")


def _await_pipelines(wanted: Any, quiet: bool) -> None:
    """Files are picked up whenever they come, so the first one too; Spark need not run before."""
    if not quiet and not _known(wanted):
        from smbroker.spark.pipelines.problem import near

        terminal.say(f"no pipelines in {near(wanted.directory)} yet")
    while not _known(wanted):
        time.sleep(LOOK_EVERY)


def _known(wanted: Any) -> set[str]:
    from smbroker.spark.pipelines.files import files_in

    return {*wanted.builtin, *(file.stem for file in files_in(wanted.examples) + files_in(wanted.directory))}


def _check_names(wanted: Any) -> None:
    known = _known(wanted)
    for name in wanted.names:
        if name not in known:
            listed = ", ".join(sorted(known)) or "none"
            raise UsageError("no_pipeline", f"there is no pipeline {name}; there are: {listed}")
    if not known:
        raise UsageError("no_pipeline", f"there is no pipeline in {wanted.directory}")


def _run_locked(options: argparse.Namespace, data: Path, wanted: Any) -> int:
    from smbroker.spark.pipelines.query import Target
    from smbroker.spark.pipelines.runner import Runner
    from smbroker.spark.process import has_ended, spark_process

    token_file = options.token_file or data / TOKEN
    progress = _Progress(options.quiet)
    progress.say("starting Spark")
    runner: Runner | None = None
    failed = 0
    try:
        with spark_process(options.master, options.verbose) as spark:
            runner = Runner(spark, Target(data, options.url or None, lambda: _token(token_file)), wanted, progress)
            try:
                failed = _in_thread(lambda: runner.run(options.once, progress.show), runner.stopping)
            except Stopped:
                runner.tell_stopped()
            except Exception as error:
                if not has_ended():
                    raise
                text = "Spark has ended unexpectedly; start the pipelines again: they go on where they were"
                raise UsageError("spark_died", text) from error
    except Stopped:
        pass
    progress.clear()
    if options.once and runner:
        for one in runner.statuses:
            said = one.error["reason"] if one.error else f"read up to offset {one.offset or 0}"
            progress.say(f"{one.name}: {said}")
    return FAILED if failed and options.once else 0


def _in_thread(work: Callable[[], int], stopping: threading.Event) -> int:
    """Here signals are waited for; the work ends soon after one."""
    results: list[int] = []
    failures: list[BaseException] = []

    def worked() -> None:
        try:
            results.append(work())
        except BaseException as error:  # carried over to the thread that waits
            failures.append(error)

    thread = threading.Thread(target=worked, daemon=True)
    thread.start()
    try:
        while thread.is_alive():
            thread.join(0.2)
    except Stopped:
        _hush()
        stopping.set()
        thread.join(STOP_PATIENCE)
        raise
    if failures:
        raise failures[0]
    return results[0]


def _hush() -> None:
    """What is cut short complains; nobody needs to hear that."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)


def _token(file: Path) -> str | None:
    try:
        return file.read_text().strip() or None
    except OSError:
        return None


class _Progress:
    """One line on a terminal that is written over; lines of talk go above it."""

    def __init__(self, quiet: bool) -> None:
        self._quiet = quiet
        self._on_terminal = sys.stderr.isatty() and not quiet
        self._shown = 0.0
        self._length = 0

    def say(self, text: str) -> None:
        self.clear()
        if not self._quiet:
            terminal.say(text)

    def warn(self, text: str) -> None:
        self.clear()
        terminal.warn(text)

    def show(self, statuses: "list[PipelineStatus]") -> None:
        now = time.monotonic()
        if not self._on_terminal or now - self._shown < PROGRESS_EVERY:
            return
        self._shown = now
        running = sum(one.state == "running" for one in statuses)
        rate = sum(one.rows_per_second for one in statuses)
        backlog = max((one.backlog or 0 for one in statuses), default=0)
        text = f"{running} of {len(statuses)} running · {rate:,.0f} rows/s · backlog {backlog:,}"
        self.clear()
        sys.stderr.write(text)
        sys.stderr.flush()
        self._length = len(text)

    def clear(self) -> None:
        if self._length:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()
            self._length = 0


# --- check ---


def _check(options: argparse.Namespace, _config: Config) -> int:
    if not options.names:
        raise UsageError("no_file", "check: name the files, such as pipelines/*.sql")
    try:
        from smbroker.spark.pipelines import files
    except ImportError as error:
        raise UsageError("no_spark", NO_SPARK) from error
    from smbroker.spark.pipelines.problem import Problem

    sound: list[Pipeline] = []
    bad = 0
    for name in options.names:
        try:
            sound.append(files.read(Path(name)))
        except Problem as problem:
            bad += 1
            terminal.error(problem.text)
    if sound:
        bad += _check_in_spark(sound, options)
    return FAILED if bad else 0


def _check_in_spark(sound: "list[Pipeline]", options: argparse.Namespace) -> int:
    _runnable()
    from smbroker.spark.pipelines.check import check
    from smbroker.spark.process import spark_process

    bad = 0
    with spark_process(options.master, options.verbose) as spark:
        for pipeline, problem in check(spark, sound):
            if problem:
                bad += 1
                terminal.error(problem.text)
            else:
                terminal.write(f"{pipeline.file}: sound\n".encode())
    return bad


# --- status and reset ---


def _status(options: argparse.Namespace, config: Config) -> int:
    from smbroker.server.pipelines import running
    from smbroker.spark.pipelines import status
    from smbroker.spark.pipelines.problem import near

    data = _data(options, config)
    told = status.read(data)
    if told is None:
        arguments.check_data(data)
        terminal.fail(f"no pipelines have run on {data}; start them with: smb pipeline run")
    if not running(data):  # killed, perhaps: then nobody has told of the end
        for one in told["pipelines"]:
            one["state"] = "failed" if one["state"] == "failed" else "stopped"
            one["rows_per_second"] = 0.0
    lines: list[tuple[str, ...]] = [("pipeline", "state", "since", "rows/s", "batch", "ms", "offset", "backlog", "to")]
    for one in told["pipelines"]:
        numbers = (_number(one.get(key)) for key in ("rows_per_second", "batch", "batch_ms", "offset", "backlog"))
        target = " ".join(filter(None, (one.get("table") and f"table {one['table']}", one.get("topic"))))
        lines.append((one["name"], one["state"], one["since"], *numbers, target))
    terminal.write_table(lines, range(3, 8))
    errors = [one["error"] for one in told["pipelines"] if one.get("error")]
    for error in errors:
        text = f"{near(Path(error['file']))}:{error['line']}: {error['reason']}"
        terminal.write(f"{terminal.printable(text)}\n".encode())
    return FAILED if errors else 0


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:,.0f}"


def _reset(options: argparse.Namespace, config: Config) -> int:
    from smbroker.spark.pipelines import reset

    if len(options.names) != 1:
        raise UsageError("no_pipeline", "reset: name one pipeline")
    name = reset.checked_name(*options.names)
    start = None
    if options.start is not None:
        try:
            start = arguments.whole_number(options.start, 0, 2**62)
        except UsageError as error:
            raise UsageError(error.code, f"--from {options.start}: {error.text}") from error
    data = _data(options, config)
    arguments.check_data(data)
    with _locked(data, f"{name} cannot be reset while pipelines run on {data}"):
        table, why_none = reset.table_of(data, name)
        known = reset.reset(data, name, start, table if options.drop_table else None)
    if not known and start is None:
        terminal.fail(f"{name} has not run on {data}: there is nothing to reset")
    where = f"offset {start}" if start is not None else "the first message there is"
    terminal.say(f"{name} begins again at {where}")
    if table and not options.drop_table:
        terminal.say(f"table {table} keeps its rows: what is read again is added again, unless the pipeline has a key")
    elif table:
        terminal.say(f"table {table} is dropped")
    elif options.drop_table:
        terminal.say(f"no table is dropped: {why_none}")
    return 0


ACTIONS = {"run": _run, "check": _check, "status": _status, "reset": _reset}
