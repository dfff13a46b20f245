"""The long-lived Spark process of the pipelines: its session, its noise, its end.

The JVM and Python's workers print much that is of no use: it is read away, and the end of it kept, to be shown if Spark
does not start. At the end the JVM is told to stop and, if it takes long, killed: nothing depends on a clean end.
"""

import logging
import os
import sys
import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager

from pyspark import SparkContext
from pyspark.sql import SparkSession

from smbroker.model.errors import UsageError
from smbroker.spark.session import missing_java, session

SETTINGS = {
    "spark.driver.memory": "2g",
    "spark.driver.maxResultSize": "256m",  # of one batch in memory; larger ones go by way of the disk
    "spark.scheduler.mode": "FAIR",  # a long batch does not hold up the other pipelines
    "spark.sql.execution.arrow.maxRecordsPerBatch": "20000",
}
KEPT_LINES = 200
STOP_PATIENCE = 2.0  # seconds


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
    if missing := missing_java():
        raise UsageError("no_java", missing)
    logging.getLogger("py4j").setLevel(logging.CRITICAL)
    noise = Noise()
    try:
        if verbose:
            spark = session(master, **SETTINGS)
        else:
            with noise.caught():
                spark = session(master, **SETTINGS)
    except Exception as error:
        last = "\n".join([*list(noise.lines)[-20:], f"Spark does not start: {error}"])
        raise UsageError("no_spark", last) from error
    if not verbose:
        spark.sparkContext.setLogLevel("OFF")  # what goes wrong with a pipeline is told by the runner
    try:
        yield spark
    finally:
        _end(spark)


def _end(spark: SparkSession) -> None:
    """Within a few seconds."""
    gateway = SparkContext._gateway
    java = getattr(gateway, "proc", None)
    stopping = threading.Thread(target=_quietly_stopped, args=(spark,), daemon=True)
    stopping.start()
    stopping.join(STOP_PATIENCE)
    if java is not None:
        java.kill()
        java.wait()


def _quietly_stopped(spark: SparkSession) -> None:
    try:
        spark.stop()
    except Exception:  # the JVM is going, or gone
        pass
