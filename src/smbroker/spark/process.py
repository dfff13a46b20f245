"""The long-lived Spark process of the pipelines: its session, its noise, its end.

The JVM and Python's workers print much that is of no use: it is read away, and the end of it kept, to be shown if Spark
does not start. At the end the JVM and what it started are killed: nothing depends on a clean end, which takes long.
What they have written aside (libraries, sockets, state) is in one directory, which goes with them.
"""

import logging
import os
import signal
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager, nullcontext
from pathlib import Path

from pyspark import SparkContext
from pyspark.logger import PySparkLogger
from pyspark.sql import SparkSession

from smbroker.model.errors import UsageError
from smbroker.spark.session import session

SETTINGS = {
    "spark.driver.memory": "2g",
    "spark.driver.maxResultSize": "256m",  # of one batch in memory; larger ones go by way of the disk
    "spark.scheduler.mode": "FAIR",  # a long batch does not hold up the other pipelines
    "spark.sql.execution.arrow.maxRecordsPerBatch": "20000",
}
KEPT_LINES = 200
KILL_PATIENCE = 5.0  # seconds for a start that is cut short to notice
LOGGERS = ("SQLQueryContextLogger", "DataFrameQueryContextLogger")  # of PySpark: each error again, as 10 KB of JSON


class Noise:
    """What child processes print, read in a thread; the last lines of it."""

    def __init__(self) -> None:
        self.lines: deque[str] = deque(maxlen=KEPT_LINES)
        self._end, self._into = os.pipe()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        with os.fdopen(self._end, errors="replace") as stream:
            for line in stream:
                self.lines.append(line.rstrip()[:500])

    @contextmanager
    def caught(self) -> Iterator[None]:
        """Processes that are started meanwhile print here, for as long as they live."""
        sys.stdout.flush()
        sys.stderr.flush()
        own = os.dup(1), os.dup(2)
        try:
            os.dup2(self._into, 1)
            os.dup2(self._into, 2)
            yield
        finally:
            for number, kept in enumerate(own, 1):
                os.dup2(kept, number)
                os.close(kept)


@contextmanager
def spark_process(master: str, verbose: bool = False) -> Iterator[SparkSession]:
    """Raises UsageError if Spark cannot run."""
    hush_py4j()
    if not verbose:
        hush_loggers()
    with tempfile.TemporaryDirectory(prefix="smb-spark-", ignore_cleanup_errors=True) as scratch:
        spark = _started(master, Path(scratch), verbose)
        try:
            yield spark
        finally:
            _end(spark)


def _started(master: str, scratch: Path, verbose: bool) -> SparkSession:
    noise = Noise()
    try:
        with nullcontext() if verbose else noise.caught():
            spark = _session_in_thread(master, scratch)
    except UsageError:  # there is no Java
        raise
    except Exception as error:
        last = "\n".join([*list(noise.lines)[-20:], f"Spark does not start: {error}"])
        raise UsageError("spark_start", last) from error
    if not verbose:
        spark.sparkContext.setLogLevel("OFF")  # what goes wrong with a pipeline is told by the runner
    return spark


def _session_in_thread(master: str, scratch: Path) -> SparkSession:
    """In a thread, so that signals stay ours: PySpark puts a handler of its own in place in the main one."""
    made: Future[SparkSession] = Future()
    others = set(_descendants(os.getpid()))

    def make() -> None:
        try:
            made.set_result(session(master, scratch, **SETTINGS))
        except BaseException as error:  # carried over to the thread that waits
            made.set_exception(error)

    thread = threading.Thread(target=make, daemon=True)
    thread.start()
    try:
        return made.result()
    except BaseException:  # a JVM that is cut short while it starts does not end by itself
        give_up = time.monotonic() + KILL_PATIENCE
        while thread.is_alive() and time.monotonic() < give_up:
            _kill(set(_descendants(os.getpid())) - others)
            thread.join(0.1)
        _kill(set(_descendants(os.getpid())) - others)
        raise


def hush_py4j() -> None:
    """It logs a traceback for each command during which the JVM ends, and some of them as if it were the program."""
    logging.getLogger("py4j").setLevel(logging.CRITICAL)
    logging.getLogger().addFilter(_not_of_py4j)


def _not_of_py4j(record: logging.LogRecord) -> bool:
    return Path(record.pathname).parent.name != "py4j"


def hush_loggers() -> None:
    for name in LOGGERS:
        PySparkLogger.getLogger(name).setLevel(logging.CRITICAL)


def has_ended() -> bool:
    """Whether the JVM is gone: killed, or out of memory."""
    java = getattr(SparkContext._gateway, "proc", None)
    return java is not None and java.poll() is not None


def _end(spark: SparkSession) -> None:
    java = getattr(SparkContext._gateway, "proc", None)
    if java is None:  # not ours
        spark.stop()
        return
    family = _descendants(java.pid)
    java.kill()
    java.wait()
    _kill(family)


def _kill(pids: Iterable[int]) -> None:
    for pid in pids:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:  # it has ended meanwhile
            pass


def _descendants(pid: int) -> list[int]:
    """Python's workers: they notice that the JVM is gone, but some only after a while."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir() if Path("/proc/self/stat").exists() else ():
        try:
            fields = (entry / "stat").read_text().rpartition(")")[2].split() if entry.name.isdigit() else []
        except OSError:  # it has ended meanwhile
            continue
        if fields:
            children.setdefault(int(fields[1]), []).append(int(entry.name))
    found = [pid]
    for each in found:
        found += children.get(each, [])
    return found[1:]
