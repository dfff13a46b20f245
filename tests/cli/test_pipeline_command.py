"""`smb pipeline` and `smb table` where they need no Spark: status, reset, bad words and headers, tables."""

import json
import os
import subprocess
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from cli.programs import SCRIPTS, run
from smbroker.log.lock import Lock

pytest.importorskip("deltalake")
STATUS: dict[str, Any] = {
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
    (data / "pipelines.json").write_text(json.dumps(STATUS | {"updated": datetime.now(UTC).isoformat()}))
    result = run("smb", "pipeline", "status", "--data", str(data))
    lines = result.stdout.decode().splitlines()
    assert lines[1].split() == ["a", "running", "2026-01-31T12:00:00Z", "12", "3", "80", "1,234", "0", "table", "t"]
    assert lines[2].split()[:2] == ["b", "failed"]
    assert lines[3:] == ["b.sql:3: it is bad"]
    assert (result.returncode, result.stderr) == (1, b"")


def test_pipelines_that_nobody_has_told_of_lately_are_not_shown_as_running(data: Path) -> None:
    (data / "pipelines.json").write_text(json.dumps(STATUS))
    lines = run("smb", "pipeline", "status", "--data", str(data)).stdout.decode().splitlines()
    assert [line.split()[:2] for line in lines[1:3]] == [["a", "stopped"], ["b", "failed"]]
    assert lines[1].split()[3] == "0"


def test_status_names_files_from_the_current_directory(data: Path) -> None:
    error = {"file": str(data / "pipelines" / "b.sql"), "line": 3, "reason": "it is bad"}
    (data / "pipelines.json").write_text(
        json.dumps(STATUS | {"pipelines": [STATUS["pipelines"][1] | {"error": error}]})
    )
    for folder, shown in ((data, "pipelines/b.sql"), (Path("/"), str(data / "pipelines" / "b.sql").lstrip("/"))):
        words = [SCRIPTS / "smb", "pipeline", "status", "--data", data]
        result = subprocess.run(words, capture_output=True, cwd=folder, timeout=60)
        assert result.stdout.decode().splitlines()[2] == f"{shown}:3: it is bad"


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


def test_reset_drops_the_table_of_a_pipeline_whose_file_is_gone(data: Path) -> None:
    (data / "pipelines.json").write_text(json.dumps(STATUS))
    for name in ("gone", "other"):
        (data / "checkpoints" / name).mkdir(parents=True)
    (data / "checkpoints" / "t").mkdir()
    for name in ("gone", "t"):
        (data / "tables" / name).mkdir(parents=True)
    dropped = run("smb", "pipeline", "reset", "gone", "--drop-table", "--data", str(data))
    assert (dropped.returncode, b"table gone is dropped\n" in dropped.stderr) == (0, True)
    none = run("smb", "pipeline", "reset", "other", "--drop-table", "--data", str(data))
    assert (none.returncode, b"no table is dropped: there is no table other; " in none.stderr) == (0, True)
    others = run("smb", "pipeline", "reset", "t", "--drop-table", "--data", str(data))
    assert (others.returncode, b"no table is dropped: table t is written by a\n" in others.stderr) == (0, True)
    assert [entry.name for entry in (data / "tables").iterdir()] == ["t"]


def test_while_pipelines_run_one_is_told_to_stop_them_first(data: Path) -> None:
    with Lock(data / "pipelines.lock"):
        result = run("smb", "pipeline", "reset", "a", "--data", str(data))
    wanted = f"a cannot be reset while pipelines run on {data}: stop `smb up` (or `smb pipeline run`) first\n"
    assert (result.returncode, result.stderr.decode()) == (1, wanted)


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


def test_an_unknown_built_in_pipeline_is_told_before_anything_starts(data: Path) -> None:
    config = data / "smb.toml"
    config.write_text('[pipelines]\nbuiltin = ["archive", "statistic"]\n')
    for words in (["up"], ["demo"], ["pipeline", "run"]):
        result = run("smb", *words, "--config", str(config), "--data", str(data))
        wanted = b"pipelines.builtin: there is no statistic; there are archive, statistics, silence\n"
        assert (result.returncode, result.stderr) == (2, wanted)


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


def test_a_table_that_is_still_to_come_is_told_as_that(data: Path) -> None:
    (data / "pipelines.json").write_text(json.dumps(STATUS))
    result = run("smb", "table", "show", "t", "--data", str(data))
    assert (result.returncode, b"no rows yet; a writes it: ask again" in result.stderr) == (1, True)


def test_before_the_first_table_it_is_told_when_there_will_be_some(data: Path) -> None:
    result = run("smb", "table", "show", "archive", "--data", str(data))
    assert (result.returncode, b"there are no tables in " in result.stderr) == (1, True)
    assert b"half a minute" in result.stderr


@pytest.mark.parametrize("words", ["table ls", "table show archive", "pipeline status", "pipeline reset archive"])
def test_elsewhere_than_the_broker_it_is_told_how_to_say_where_its_data_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: str
) -> None:
    monkeypatch.chdir(tmp_path)
    result = run("smb", *words.split())
    assert result.returncode == 1
    assert result.stderr == b"smb-data: there is no such directory; --data says where it is\n"
