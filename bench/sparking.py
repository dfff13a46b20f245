"""Spark beside the broker: how fast it publishes, and hears of a message. Needs Java and pyspark."""

import json
import shutil
import subprocess
import sys
import threading
import time
import urllib.request
from pathlib import Path
from statistics import median

from rounds import Bench, Run, RunFailed
from servers import SMBBROKER, free_port, running

WRITTEN = 100_000
HEARD = 20  # messages whose way is timed
PATIENCE = 60.0


def missing() -> str:
    """For Spark to run."""
    try:
        from smbroker.spark.session import missing_java
    except ImportError:
        return "pyspark is not installed: pip install 'smbroker[spark]'"
    return missing_java() or ""


def by_itself(program: str, directory: Path) -> Run:
    """What one of the files here prints as a program. Spark's JVM lives as long as the process that started it, and
    would be in the way of the cases that follow."""
    done = subprocess.run([sys.executable, program, str(directory)], stdout=subprocess.PIPE)
    if done.returncode:
        raise RunFailed("Spark failed; what it said is above")
    found: Run = json.loads(done.stdout)
    return found


def spark(bench: Bench) -> Run:
    directory = bench.new_directory()
    try:
        return by_itself(__file__, directory)
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def measured(directory: Path) -> Run:
    from smbroker.spark.session import session

    data, web = directory / "data", free_port()
    command = [str(SMBBROKER), "--quiet", "--data", str(data), "--listen", f"web://127.0.0.1:{web}"]
    spark = session("local[2]", **{"spark.log.level": "ERROR"})
    try:
        with running(command, directory):
            wait_for_health(web)
            spark.range(10).count()
            rows = spark.range(WRITTEN).selectExpr("'bench/sink' AS topic", "CAST(id AS STRING) AS payload")
            began = time.perf_counter()
            rows.write.format("smb").option("url", f"http://127.0.0.1:{web}").mode("append").save()
            written = time.perf_counter() - began
            waits = heard_after(spark, data, directory / "checkpoint", web)
    finally:
        spark.stop()
    return {
        "written_per_s": WRITTEN / written,
        "latency_s": median(waits),
        "latency_most_s": max(waits),
    }


def heard_after(spark: object, data: Path, checkpoint: Path, web: int) -> list[float]:
    """Seconds from a publish until foreachBatch has the message, one at a time."""
    heard: dict[str, float] = {}
    came = threading.Event()

    def take(frame: object, _batch: int) -> None:
        for row in frame.select("payload").collect():  # type: ignore[attr-defined]
            heard[bytes(row["payload"]).decode()] = time.time()
        came.set()

    source = spark.readStream.format("smb").options(path=str(data), topics="bench/heard", startingOffset="latest")  # type: ignore[attr-defined]
    query = source.load().writeStream.foreachBatch(take).option("checkpointLocation", str(checkpoint)).start()
    waits = []
    try:
        deadline = time.time() + 3 * PATIENCE
        while "warm" not in heard and time.time() < deadline:  # it begins with what comes after its start
            publish(web, "warm")
            came.wait(1)
        for number in range(HEARD):
            began, deadline = time.time(), time.time() + PATIENCE
            publish(web, f"{number}")
            while str(number) not in heard:
                came.wait(0.01)
                came.clear()
                if time.time() > deadline:
                    raise RunFailed("Spark did not hear of a message")
            waits.append(heard[str(number)] - began)
    finally:
        query.stop()
    return waits


def publish(web: int, text: str) -> None:
    request = urllib.request.Request(f"http://127.0.0.1:{web}/v1/publish/bench/heard", text.encode(), method="POST")
    with urllib.request.urlopen(request, timeout=10) as answer:
        json.load(answer)


def wait_for_health(web: int) -> None:
    deadline = time.monotonic() + PATIENCE
    while True:
        try:
            urllib.request.urlopen(f"http://127.0.0.1:{web}/health", timeout=5).close()
            return
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.1)


if __name__ == "__main__":
    print(json.dumps(measured(Path(sys.argv[1]))))
