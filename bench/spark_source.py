"""How fast Spark reads the log: python bench/spark_source.py [--rows N] [--directory DIR] [--rounds N]

Builds a log (100-byte payloads, 1,000 topics, sealed by the million), then reads it to Spark's `noop` sink
through the source, through `spark.read.parquet` of the same files, and one topic of it. The sides take turns;
the first round warms up and does not count. A log that is there already is used again.
"""

import argparse
import os
import statistics
import time
from collections.abc import Callable
from pathlib import Path

from pyspark.sql import DataFrame

from smbroker.log.log import Log
from smbroker.log.seal import seal_segment
from smbroker.log.settings import LogSettings
from smbroker.model.message import Columns, Dialect, Kind, Origin
from smbroker.spark import decoded
from smbroker.spark.session import session

TOPICS = [b"plant/hall/%d/temperature" % number for number in range(1000)]
ONE = "plant/hall/500/temperature"
ORIGINS = [Origin(Dialect.MQTT, "10.0.0.1", 4000 + number, f"device {number}") for number in range(50)]
APPEND = 2_000  # messages of an append


def build(directory: Path, rows: int) -> None:
    sealed = rows // 1_000_000 * 1_000_000
    log = Log.open(directory / "log", LogSettings(seal_age=0, seal_bytes=1 << 40))
    for first in range(log.next_offset, rows, APPEND):
        payloads = [
            b"%020d" % (number * 7919) + os.urandom(40).hex().encode() for number in range(first, first + APPEND)
        ]
        topics = [TOPICS[number % 1000] for number in range(first, first + APPEND)]
        origins = [ORIGINS[number % 50] for number in range(first, first + APPEND)]
        received = 1_700_000_000_000_000 + first * 10
        log.append([Columns(received, topics, payloads, [Kind.STRING] * APPEND, origins)])
        if log.next_offset % 1_000_000 == 0 and log.next_offset <= sealed:
            log.rotate()
            for base in log.pending_seals:
                seal_segment(log.directory, base)
    log.close()


def seconds(frame: Callable[[], DataFrame]) -> float:
    start = time.perf_counter()
    frame().write.format("noop").mode("overwrite").save()
    return time.perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=5_000_000)
    parser.add_argument("--directory", type=Path, default=Path(__file__).parent / "build" / "spark")
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    build(options.directory, options.rows)
    spark = session("local[2]")
    spark.sparkContext.setLogLevel("ERROR")
    source = spark.read.format("smb").option("path", str(options.directory))
    files = [str(path) for path in sorted((options.directory / "log").glob("*.parquet"))]
    all_of_it = source.load()
    one = spark.read.format("smb").options(path=str(options.directory), topics=ONE).load()
    wild = spark.read.format("smb").options(path=str(options.directory), topics="#").load()
    sides: dict[str, Callable[[], DataFrame]] = {
        "smb, all": lambda: all_of_it,
        "spark.read.parquet": lambda: spark.read.parquet(*files),
        "smb, one topic of 1,000": lambda: one,
        "smb, topics=#": lambda: wild,
        "smb, decoded": lambda: decoded(all_of_it),
    }
    taken: dict[str, list[float]] = {name: [] for name in sides}
    for number in range(options.rounds + 1):
        for name, frame in sides.items():
            found = seconds(frame)
            if number:
                taken[name].append(found)
    print(f"| side | median s | best s | M rows/s (median) | of {options.rows:,} rows")
    for name, times in taken.items():
        middle = statistics.median(times)
        print(f"| {name} | {middle:.2f} | {min(times):.2f} | {options.rows / middle / 1e6:.2f}")


if __name__ == "__main__":
    main()
