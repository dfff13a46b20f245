"""What the tutorial and the how-to of tables tell is what happens: their files and lines are run as they stand."""

import json
import re
import shlex
from pathlib import Path

from pyspark.sql import SparkSession

from cli.programs import run
from flow.house import Broker, wait_for
from log.logkit import ORIGINS
from smbroker.log.reader import LogReader
from smbroker.log.rows import as_json
from smbroker.spark.pipelines import files
from spark.runnerkit import PATIENCE, rows_of, run_once, started, wait_rows
from spark.sparkkit import Store

DOCS = Path(__file__).parents[2] / "docs"
_code = re.compile(r"^```(\w*)\n(.*?)^```$", re.DOTALL | re.MULTILINE).findall


def blocks(page: str, language: str) -> list[str]:
    return [code for kind, code in _code((DOCS / page).read_text()) if kind == language]


def publish_as_told(broker: Broker) -> None:
    lines = [shlex.split(line) for code in blocks("tutorial-pipelines.md", "sh") for line in code.splitlines()]
    calls = [words for words in lines if words[0] == "smbpublish"]
    assert len(calls) == 4
    for program, *words in calls:
        assert run(program, "-p", broker.ports["udp"], *words).returncode == 0


def derived(data: Path, topic: str) -> list[str]:
    reader = LogReader(data / "log")
    rows = (row for batch in reader.read(reader.first_offset, None, {topic.encode()}) for row in as_json(batch))
    return [row["text"] for row in rows]


def test_the_tutorial(spark: SparkSession, tmp_path: Path) -> None:
    pipelines = tmp_path / "pipelines"
    pipelines.mkdir()
    (sql,) = blocks("tutorial-pipelines.md", "sql")
    (python,) = blocks("tutorial-pipelines.md", "python")
    with Broker(kinds=("udp", "web"), data=tmp_path / "smb-data") as broker:
        publish_as_told(broker)
        with started(spark, broker.data, pipelines, url=f"http://127.0.0.1:{broker.ports['web']}") as running:
            (pipelines / "rooms.sql").write_text(sql)
            (pipelines / "warm.py").write_text(python)
            rows = wait_rows(broker.data, "rooms", 2)
            assert {row["room"] for row in rows} == {"kitchen", "hall"}
            assert sum(row["readings"] for row in rows) == 3
            wait_for(lambda: derived(broker.data, "derived/kitchen/temperature"), "a derived message", PATIENCE)
            told = json.loads(derived(broker.data, "derived/hall/temperature")[0])
            assert told.keys() == {"minute", "mean", "readings"}
            assert told["mean"] == 18.5
            run("smbpublish", "-p", broker.ports["udp"], "house/hall/temperature", "31")
            assert wait_for(lambda: derived(broker.data, "alarm/hall"), "an alarm", PATIENCE) == ["31 °C"]
            (pipelines / "rooms.sql").write_text(sql.replace("avg(value)", "averge(value)"))
            error = running.wait_state("rooms", "failed").error
            assert (error["line"], error["reason"].startswith("[UNRESOLVED_ROUTINE]")) == (9, True)
            assert running.status("warm").state == "running"
            run("smbpublish", "-p", broker.ports["udp"], "house/hall/temperature", "19")
            (pipelines / "rooms.sql").write_text(sql.replace("avg(value)", "max(value) AS high, avg(value)"))
            failed = "[STATE_STORE_VALUE_SCHEMA_NOT_COMPATIBLE] what it remembers does not fit the changed query"
            told_again = lambda: failed in (running.status("rooms").error or {"reason": ""})["reason"]  # noqa: E731
            wait_for(told_again, "an error", PATIENCE)
        _read_as_told(tmp_path)
        assert run("smb", "pipeline", "reset", "rooms", "--data", str(broker.data)).returncode == 0


def test_the_example_with_another_time(spark: SparkSession, store: Store, tmp_path: Path) -> None:
    (sql,) = blocks("reference/pipelines.md", "sql")
    (tmp_path / "pipelines").mkdir()
    (tmp_path / "pipelines" / "samples.sql").write_text(sql.replace("lab/#", "p"))
    times = ["2026-01-31T12:00:10Z", "2026-01-31T12:00:20Z", "noon", "2026-01-31T12:05:00Z"]
    payloads = [json.dumps({"time": time, "ph": ph}).encode() for ph, time in enumerate(times)]
    store.publish_payloads([*payloads, b"no JSON"], ORIGINS[1])
    running = run_once(spark, store.path, tmp_path / "pipelines")
    assert running.status("samples").error is None
    assert [(row["minute"].isoformat(), row["ph"]) for row in rows_of(store.path, "samples")] == [
        ("2026-01-31T12:00:00+00:00", 1.0)
    ]


def test_the_tutorial_names_every_key() -> None:
    text = (DOCS / "tutorial-pipelines.md").read_text()
    assert all(f"`{key}`" in text for key in files.KEYS)


def _read_as_told(folder: Path) -> None:
    code = "\n".join(blocks("howto/tables.md", "python")).replace('"smb-data', f'"{folder}/smb-data')
    exec(compile(code, "tables.md", "exec"), {})
    shown = run("smb", "table", "show", "rooms", "--data", str(folder / "smb-data"))
    assert {json.loads(line)["room"] for line in shown.stdout.splitlines()} == {"kitchen", "hall"}
