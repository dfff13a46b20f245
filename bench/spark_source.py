"""How fast Spark reads the log, beside `spark.read.parquet` of the same files, to Spark's `noop` sink. Needs Java.

The log has 100-byte payloads over 1,000 topics and is sealed by the million. The sides take turns; the first turn
warms up and does not count. It is built once for all rounds.
"""

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

from inside import turns_of
from rounds import Bench, Run, RunFailed
from sparking import by_itself

from smbroker.log.log import Log
from smbroker.log.seal import seal_segment
from smbroker.log.settings import LogSettings

ROWS = 5_000_000
SEALED = 1_000_000
TURNS = 5
ONE = "bench/0500"


def source(bench: Bench) -> Run:
    data = bench.directory / "spark-source"
    build(data)
    return by_itself(__file__, data)


def measured(data: Path) -> Run:
    from smbroker.spark import decoded
    from smbroker.spark.session import session

    spark = session("local[2]", **{"spark.log.level": "ERROR"})
    try:
        of_log = spark.read.format("smb").option("path", str(data))
        files = [str(path) for path in sorted((data / "log").glob("*.parquet"))]
        whole, one = of_log.load(), of_log.option("topics", ONE).load()
        if (found := one.count()) != ROWS // 1_000:
            raise RunFailed(f"of one topic there are {found:,} messages")
        sides: dict[str, Callable[[], Any]] = {
            "all": lambda: whole,
            "parquet": lambda: spark.read.parquet(*files),
            "one": lambda: one,
            "decoded": lambda: decoded(whole),
        }
        taken: dict[str, list[float]] = {name: [] for name in sides}
        for turn in range(TURNS + 1):
            for name, frame in sides.items():
                began = time.perf_counter()
                frame().write.format("noop").mode("overwrite").save()
                if turn:
                    taken[name].append(time.perf_counter() - began)
    finally:
        spark.stop()
    seconds = {name: median(times) for name, times in taken.items()}
    return {
        "rows_per_s": ROWS / seconds["all"],
        "of_parquet": median(parquet / all_ for parquet, all_ in zip(taken["parquet"], taken["all"], strict=True)),
        "one_topic": seconds["all"] / seconds["one"],
        "decoded_per_s": ROWS / seconds["decoded"],
    }


def build(data: Path) -> None:
    if data.exists():
        return
    log = Log.open(data / "log", LogSettings(seal_age=0, seal_bytes=1 << 40))
    for turn in turns_of(ROWS):
        log.append([turn])
        if log.next_offset % SEALED == 0:
            log.rotate()
            for base in log.pending_seals:
                seal_segment(log.directory, base)
    log.close()


if __name__ == "__main__":
    print(json.dumps(measured(Path(sys.argv[1]))))
