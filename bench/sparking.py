"""Spark beside the broker: how fast it publishes, and hears of a message. Needs Java and pyspark."""

import json
import shutil
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


def spark(bench: Bench) -> Run:
    from smbroker.spark.session import missing_java, session

    if missing := missing_java():
        raise RunFailed(missing)
    directory = bench.new_directory()
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
        shutil.rmtree(directory, ignore_errors=True)
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
