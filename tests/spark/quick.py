"""How Spark's Java starts soonest: these tests run little of each code, so compiling it well is waste."""

import os

OPTIONS = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"


def environment() -> dict[str, str]:
    """For programs that start Spark themselves."""
    return {**os.environ, "SPARK_SUBMIT_OPTS": OPTIONS}
