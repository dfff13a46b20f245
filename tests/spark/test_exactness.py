"""Exactly once, whoever is killed: Spark's processes and the broker, with `kill -9`, while messages flow.

Each offset of the log is in the table once, and each message that a pipeline derives is in the log once.
SMB_LONG=1: 200,000 messages, Spark killed 10 times and the broker 5 times.
What the pipelines derive is archived by the tests' own Spark, which is one more that goes on where another ended.
"""

import http.client
import json
import os
import random
import signal
import subprocess
import threading
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path

import pyarrow.compute as pc
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from cli.programs import SCRIPTS
from flow.house import Broker, Lines, end_with_the_tests, wait_for
from log.logkit import LONG
from smbroker.log.reader import LogReader
from spark import quick
from spark.runnerkit import rows_of, run_once

MESSAGES, SPARK_KILLS = (200_000, 10) if LONG else (5_000, 1)
PORTION = 100  # messages of one request
PACE = 0.1 if LONG else 0.5  # seconds between two
PATIENCE = 180.0  # seconds, for a Spark that starts on a busy machine
COPY = "-- from: a/#\n-- topic: copy/{topic}\nSELECT topic, CAST(offset AS STRING) AS payload FROM messages\n"
KEPT = "-- from: a/#\n-- table: kept\n-- topic: kept/{topic}\nSELECT topic, offset FROM messages\n"


class Publisher(threading.Thread):
    """Publishes, steadily until `hurry` is set and then all that is left; what was not acknowledged, again.

    (That may then be in the log twice: as two offsets.)"""

    def __init__(self, port: int) -> None:
        super().__init__(daemon=True)
        self.port = port
        self.acknowledged = 0
        self.hurry = threading.Event()

    def run(self) -> None:
        while self.acknowledged < MESSAGES or not self.hurry.is_set():
            lines = [
                json.dumps({"topic": f"a/{number % 7}", "payload": str(number)})
                for number in range(self.acknowledged, self.acknowledged + PORTION)
            ]
            with suppress(OSError, http.client.HTTPException):
                connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=10)
                head = {"Content-Type": "application/x-ndjson"}
                connection.request("POST", "/v1/publish", "\n".join(lines).encode(), head)
                if connection.getresponse().status == 200:
                    self.acknowledged += PORTION
                connection.close()
            self.hurry.wait(PACE)


class Spark:
    """`smb pipeline run` with all that it starts."""

    def __init__(self, data: Path, pipelines: Path, url: str, *options: str) -> None:
        words = ["pipeline", "run", "--data", data, "--pipelines", pipelines, "--url", url, *options]
        self.process = subprocess.Popen(
            [SCRIPTS / "smb", *words],
            stdin=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            start_new_session=True,
            preexec_fn=end_with_the_tests,
            env=quick.environment(),
        )
        self.said = Lines(self.process.stderr)

    def kill(self) -> None:
        """Everything of its session, at once; Python's workers have process groups of their own."""
        while found := _session(self.process.pid):
            for pid in found:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.05)
        self.process.wait()


def _session(leader: int) -> list[int]:
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with suppress(OSError):
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
                if int(fields[3]) == leader and fields[0] != "Z":
                    found.append(int(entry.name))
    return found


def progress(data: Path) -> int:
    """Versions of the tables."""
    return sum(len(list((data / "tables" / name / "_delta_log").glob("*.json"))) for name in ("archive", "kept"))


def _wait_for_work(data: Path, spark: Spark, versions: int) -> None:
    """Until this run of Spark has written so many versions of tables: it is in the middle of it."""
    wanted = progress(data) + versions
    wait_for(
        lambda: progress(data) >= wanted or spark.process.poll() is not None,
        f"work: {spark.said.all[-5:]}",
        PATIENCE,
    )
    assert spark.process.poll() is None, spark.said.all[-20:]


def test_each_message_comes_once_through_all_kills(spark: SparkSession, tmp_path: Path) -> None:
    data, pipelines = tmp_path / "data", tmp_path / "pipelines"
    pipelines.mkdir()
    (pipelines / "copy.sql").write_text(COPY)
    (pipelines / "kept.sql").write_text(KEPT)
    (tmp_path / "smb.toml").write_text('[pipelines]\nbuiltin = ["archive"]\n')
    config = ("--config", str(tmp_path / "smb.toml"))
    broker = Broker(kinds=("web",), data=data)
    port = broker.ports["web"]
    url = f"http://127.0.0.1:{port}"
    publisher = Publisher(port)
    publisher.start()
    chance = random.Random(1)
    for number in range(SPARK_KILLS):
        killed = Spark(data, pipelines, url, *config)
        try:
            _wait_for_work(data, killed, chance.randrange(1, 5))
            if (SPARK_KILLS - number) % 2:  # the broker every other time, and the last
                broker.kill()
                time.sleep(chance.random() / 2)
                broker = Broker("--listen", f"web://127.0.0.1:{port}", kinds=(), data=data)
            time.sleep(chance.random())  # a kill at any moment of a batch
        finally:
            killed.kill()
    publisher.hurry.set()
    publisher.join(PATIENCE)
    assert publisher.acknowledged >= MESSAGES
    last = Spark(data, pipelines, url, *config, "--once", "copy", "kept")
    try:
        assert last.process.wait(PATIENCE) == 0, last.said.all
    finally:
        last.kill()
    run_once(spark, data, None, "archive", url=url)  # it also has what the others publish
    _check(data)
    broker.kill()


def _check(data: Path) -> None:
    reader = LogReader(data / "log")
    published: list[int] = []
    copied: Counter[str] = Counter()
    kept: Counter[str] = Counter()
    everything: list[int] = []
    for batch in reader.read(reader.first_offset):
        for offset, topic, payload in zip(
            *(batch.column(name).to_pylist() for name in ("offset", "topic", "payload")), strict=True
        ):
            everything.append(offset)
            if topic.startswith("a/"):
                published.append(offset)
            elif topic.startswith("copy/"):
                copied[payload.decode()] += 1
            elif topic.startswith("kept/"):
                kept[str(json.loads(payload)["offset"])] += 1
    assert len(published) >= MESSAGES
    once = Counter(map(str, published))
    assert set(once.values()) == {1}
    assert copied == once
    assert kept == once
    archived = DeltaTable(data / "tables" / "archive").to_pyarrow_table(columns=["offset"]).column("offset")
    assert len(archived) == len(everything)
    assert pc.equal(archived.combine_chunks().sort(), everything).false_count == 0
    assert sorted(row["offset"] for row in rows_of(data, "kept")) == published
