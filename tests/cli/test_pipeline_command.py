"""`smb pipeline` and `smb table` where they need no Spark: status, reset, bad words and headers, tables."""

import json
import os
import subprocess
from pathlib import Path

import pyarrow as pa
import pytest

from cli.programs import SCRIPTS, run

pytest.importorskip("deltalake")
STATUS = {
    "pid": 1,
    "updated": "2026-01-31T12:00:00Z",
    "pipelines": [
        {"name": "a", "file": "a.sql", "state": "running", "since": "2026-01-31T12:00:00Z", "rows_per_second": 12.0,
         "batch": 3, "batch_ms": 80, "backlog": 0, "offset": 1234, "error": None, "table": "t", "topic": None},
        {"name": "b", "file": "b.sql", "state": "failed", "since": "2026-01-31T12:00:00Z", "rows_per_second": 0.0,
         "batch": None, "batch_ms": None, "backlog": None, "offset": None, "table": None, "topic": "x/{y}",
         "error": {"file": "b.sql", "line": 3, "reason": "it is bad"}},
    ],
}  # fmt: skip


@pytest.fixture
def data(tmp_path: Path) -> Path:
    made = tmp_path / "data"
    (made / "log").mkdir(parents=True)
    return made


def test_status_shows_each_pipeline_and_its_error(data: Path) -> None:
    assert run("smb", "pipeline", "status", "--data", str(data)).returncode == 1
    (data / "pipelines.json").write_text(json.dumps(STATUS))
    result = run("smb", "pipeline", "status", "--data", str(data))
    lines = result.stdout.decode().splitlines()
    assert lines[1].split() == ["a", "running", "2026-01-31T12:00:00Z", "12", "3", "80", "1,234", "0", "table", "t"]
    assert lines[2].split()[:2] == ["b", "failed"]
    assert result.stderr == b"b.sql:3: it is bad\n"
    assert result.returncode == 1


def test_reset_forgets_how_far_a_pipeline_is_and_keeps_its_table(data: Path) -> None:
    (data / "pipelines.json").write_text(json.dumps(STATUS))
    (data / "checkpoints" / "a").mkdir(parents=True)
    (data / "tables" / "t").mkdir(parents=True)
    result = run("smb", "pipeline", "reset", "a", "--from", "10", "--data", str(data))
    assert result.returncode == 0
    assert b"a begins again at offset 10\n" in result.stderr
    assert b"table t keeps its rows" in result.stderr
    assert [entry.name for entry in (data / "checkpoints").iterdir()] == ["a.start"]
    assert run("smb", "pipeline", "reset", "a", "--drop-table", "--data", str(data)).returncode == 0
    assert list((data / "checkpoints").iterdir()) == list((data / "tables").iterdir()) == []
    again = run("smb", "pipeline", "reset", "a", "--data", str(data))
    assert (again.returncode, b"nothing to reset" in again.stderr) == (1, True)


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["reset"], b"name one pipeline"),
        (["reset", "../a"], b"is no name of a pipeline"),
        (["reset", "a", "--from", "x"], b"--from x: give a whole number"),
        (["check"], b"name the files"),
        (["jump"], b"invalid choice"),
        (["run", "--pipelines", "/no/such"], b"--pipelines /no/such: there is no such directory"),
        (["run", "nothing", "--no-builtin"], b"there is no pipeline nothing; there are: none"),
    ],
)
def test_bad_words_are_named(data: Path, words: list[str], text: bytes) -> None:
    result = subprocess.run(
        [SCRIPTS / "smb", "pipeline", *words, "--data", data], capture_output=True, cwd=data, timeout=60
    )
    assert (result.returncode, text in result.stderr) == (2, True), result
    assert result.stderr.count(b"\n") == 1


def test_a_bad_header_is_told_without_spark(tmp_path: Path) -> None:
    bad = tmp_path / "bad.sql"
    bad.write_text("-- table: t\n-- evry: 1 second\nSELECT 1\n")
    result = run("smb", "pipeline", "check", str(bad))
    assert result.returncode == 1
    assert result.stderr.startswith(f"{bad}:2: unknown key evry".encode())


def test_without_java_one_line_says_what_to_install(data: Path) -> None:
    nowhere = {key: value for key, value in os.environ.items() if key != "JAVA_HOME"} | {"PATH": "/nowhere"}
    result = subprocess.run(
        [SCRIPTS / "smb", "pipeline", "run", "--data", data], env=nowhere, capture_output=True, timeout=60
    )
    assert result.returncode == 3
    assert b"apt-get install" in result.stderr
    assert result.stderr.count(b"\n") == 1


def test_tables_are_listed_and_shown(data: Path) -> None:
    from smbroker.spark.tables import TableWriter

    assert b"there are no tables" in run("smb", "table", "ls", "--data", str(data)).stderr
    TableWriter(data / "tables" / "t").write(pa.table({"offset": [1, 2, 3], "text": ["a", "ä", "c"]}), "q", 0)
    listed = run("smb", "table", "ls", "--data", str(data)).stdout.decode().splitlines()
    assert listed[1].split()[:3] == ["t", "3", "1"]
    shown = run("smb", "table", "show", "t", "--limit", "2", "--data", str(data)).stdout.decode()
    assert shown == '{"offset": 2, "text": "ä"}\n{"offset": 3, "text": "c"}\n'
    missing = run("smb", "table", "show", "x", "--data", str(data))
    assert (missing.returncode, b"there is no table x" in missing.stderr) == (1, True)
    assert run("smb", "table", "show", "--data", str(data)).returncode == 2
