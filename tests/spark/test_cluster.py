"""Pipelines on a real standalone cluster: a master and two workers, each a process of its own, on this machine."""

import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pyspark
import pytest

from cli.programs import SCRIPTS
from flow.house import Broker, Lines, end_with_the_tests, wait_for
from log.logkit import LONG
from smbroker.log.reader import LogReader
from smbroker.log.rows import as_json
from spark.runnerkit import rows_of

PATIENCE = 240.0  # seconds: five JVMs start
COPY = "-- from: a/#\n-- topic: copy/{topic}\nSELECT topic, text AS payload FROM messages\n"
COUNT = "-- from: a/#\n-- mode: complete\n-- table: counts\nSELECT topic, count(*) AS n FROM messages GROUP BY topic\n"


@contextmanager
def daemon(folder: Path, *words: str) -> Iterator[Lines]:
    """A process of the cluster, and what it says."""
    folder.mkdir(parents=True, exist_ok=True)
    process = subprocess.Popen(
        [Path(pyspark.__path__[0]) / "bin" / "spark-class", *words],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        start_new_session=True,
        preexec_fn=end_with_the_tests,
        cwd=folder,
        env=os.environ | {"SPARK_NO_DAEMONIZE": "1", "SPARK_LOCAL_IP": "127.0.0.1"},
    )
    try:
        yield Lines(process.stderr)
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGTERM)  # a worker ends its executors
        process.wait(30)


@pytest.fixture
def master(tmp_path: Path) -> Iterator[str]:
    deploy = "org.apache.spark.deploy"
    words = (f"{deploy}.master.Master", "--host", "127.0.0.1", "--port", "0", "--webui-port", "0")
    with daemon(tmp_path / "master", *words) as said:
        url = said.wait("Starting Spark master at ", PATIENCE).split()[-1]
        worker = (
            f"{deploy}.worker.Worker",
            "--host",
            "127.0.0.1",
            "--cores",
            "1",
            "--memory",
            "1g",
            "--webui-port",
            "0",
        )
        with (
            daemon(tmp_path / "one", *worker, "-d", str(tmp_path / "one"), url) as first,
            daemon(tmp_path / "two", *worker, "-d", str(tmp_path / "two"), url) as second,
        ):
            for each in (first, second):
                each.wait("Successfully registered with master", PATIENCE)
            yield url


@pytest.mark.skipif(not LONG, reason="five JVMs take minutes; make long runs it")
def test_pipelines_run_on_the_workers_of_a_cluster(master: str, tmp_path: Path) -> None:
    pipelines = tmp_path / "pipelines"
    pipelines.mkdir()
    (pipelines / "copy.sql").write_text(COPY)
    (pipelines / "counts.sql").write_text(COUNT)
    with Broker(kinds=("udp", "web"), data=tmp_path / "data") as broker:
        client = broker.udp()
        for number in range(60):
            assert client.ask(f"P|a/{number % 3}|{number}".encode()) == b"Hello Publisher!"
        url = f"http://127.0.0.1:{broker.ports['web']}"
        words = ["--data", broker.data, "--pipelines", pipelines, "--url", url, "--master", master]
        result = subprocess.run(
            [SCRIPTS / "smb", "pipeline", "run", "--once", "copy", "counts", *words],
            capture_output=True,
            timeout=PATIENCE,
            env=os.environ | {"SPARK_LOCAL_IP": "127.0.0.1"},
        )
        assert result.returncode == 0, result.stderr.decode()
        assert {row["topic"]: row["n"] for row in rows_of(broker.data, "counts")} == {"a/0": 20, "a/1": 20, "a/2": 20}
        reader = LogReader(broker.data / "log")
        rows = [row for batch in reader.read(0) for row in as_json(batch) if row["topic"].startswith("copy/")]
        assert sorted(int(row["text"]) for row in rows) == list(range(60))
    for worker in ("one", "two"):
        wait_for(lambda worker=worker: list((tmp_path / worker).glob("app-*/*")), f"work of {worker}")  # type: ignore[misc]
