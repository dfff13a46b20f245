"""Pipelines' files: header, constants, what is wrong with them and in which line; feedback. No Spark."""

from pathlib import Path

import pytest

from smbroker.spark.pipelines import cycles, files
from smbroker.spark.pipelines.files import Pipeline
from smbroker.spark.pipelines.problem import Problem
from smbroker.spark.pipelines.runner import BUILTIN

HEADER = """\
-- Mean temperature of each room.

-- from: house/+/temperature, garden/#
-- watermark: 10 seconds
-- mode: update
-- every: 2 Seconds
-- rows: 1000
-- table: rooms
-- key: room, start
-- topic: derived/{room}/mean
SELECT 1 AS room
FROM messages
"""
MODULE = """\
FROM = ["house/+/temperature", "garden/#"]
WATERMARK = "10 seconds"
MODE = "update"
EVERY = "2 seconds"
ROWS = 1_000
TABLE = "rooms"
KEY = ("room", "start")
TOPIC = "derived/{room}/mean"
OTHER = 1 + 1

def transform(messages):
    return messages
"""


def pipeline(tmp_path: Path, text: str, name: str = "p.sql") -> Pipeline:
    file = tmp_path / name
    file.write_text(text)
    return files.read(file)


@pytest.mark.parametrize(("name", "text"), [("p.sql", HEADER), ("p.py", MODULE)])
def test_both_kinds_of_file_say_the_same(tmp_path: Path, name: str, text: str) -> None:
    made = pipeline(tmp_path, text, name)
    assert made.filters == "house/+/temperature,garden/#"
    assert (made.watermark, made.mode, made.every) == ("10 seconds", "update", "2 seconds")
    assert (made.rows, made.table, made.key) == (1_000, "rooms", ("room", "start"))
    assert made.topic is not None
    assert made.topic.columns == ("room",)
    assert made.client == "pipeline:p"


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ("10 seconds", "10 seconds"),
        ("1 Minute", "1 minutes"),
        ("0.5 minutes", "30000 milliseconds"),
        ("1.5 seconds", "1500 milliseconds"),
        ("0.5 milliseconds", "0 milliseconds"),
        ("36500 days", "36500 days"),
    ],
)
def test_times_are_such_as_spark_takes(tmp_path: Path, given: str, meant: str) -> None:
    made = pipeline(tmp_path, f"-- table: t\n-- every: {given}\n-- watermark: {given}\nSELECT * FROM messages")
    assert (made.every, made.watermark) == (meant, meant)


def test_what_is_left_out(tmp_path: Path) -> None:
    made = pipeline(tmp_path, "-- table: t\nSELECT * FROM messages")
    assert (made.filters, made.mode, made.key) == ("#", "append", ())
    assert (made.watermark, made.every, made.topic) == (None, None, None)


@pytest.mark.parametrize("query", ["WITH a AS (SELECT 1) SELECT * FROM a", "/* a\ncomment */ select 1", "(SELECT 1)"])
def test_queries_of_any_form(tmp_path: Path, query: str) -> None:
    assert pipeline(tmp_path, f"-- table: t\n{query}")


@pytest.mark.parametrize(
    ("text", "line", "reason"),
    [
        ("SELECT 1", 1, "neither table nor topic"),
        ("-- table: t\n-- tabel: t\nSELECT 1", 2, "unknown key tabel; the keys are from, watermark"),
        ("-- table: t\n\n-- table: u\nSELECT 1", 3, "table is given twice, also in line 1"),
        ("-- table:\nSELECT 1", 1, "table has no value"),
        ("-- table: t-1\nSELECT 1", 1, "table: 't-1' is no name for a table"),
        ("-- table: ../t\nSELECT 1", 1, "no name for a table"),
        ("-- table: t\n-- from: a/#/b\nSELECT 1", 2, "from: a/#/b: # can only be the last level"),
        ("-- table: t\n-- mode: upsert\nSELECT 1", 2, "mode: 'upsert' is none of append, update, complete"),
        ("-- table: t\n-- every: soon\nSELECT 1", 2, "every: 'soon' is no time such as 10 seconds"),
        ("-- table: t\n-- every: １０ seconds\nSELECT 1", 2, "is no time such as 10 seconds"),
        (f"-- table: t\n-- every: {'9' * 20} days\nSELECT 1", 2, "is longer than 100 years"),
        ("-- table: t\n-- watermark: 10\nSELECT 1", 2, "watermark: '10' is no time"),
        ("-- table: t\n-- rows: 0\nSELECT 1", 2, "rows: '0' is no number above 0"),
        ("-- topic: a/{b\nSELECT 1", 1, "topic: a/{b: write columns as {name}"),
        ("-- topic: a/#\nSELECT 1", 1, "+ and # are for filters"),
        ("-- topic: $SYS/x\nSELECT 1", 1, "only $stats/… and $alerts/…"),
        ("-- topic: a\n-- key: b\nSELECT 1", 2, "there is no table"),
        ("-- table: t\n-- key: b\n-- mode: complete\nSELECT 1", 2, "leave out key"),
        ("-- table: t\n-- key: b,,c\nSELECT 1", 2, "no list of columns"),
        ("-- table: t\n\nDROP TABLE x", 3, "a pipeline is one SELECT"),
        ("-- table: t\n-- only comments", 2, "there is no SELECT"),
    ],
)
def test_what_is_wrong_is_told_with_its_line(tmp_path: Path, text: str, line: int, reason: str) -> None:
    with pytest.raises(Problem) as caught:
        pipeline(tmp_path, text)
    assert caught.value.line == line
    assert reason in caught.value.reason
    assert caught.value.text.startswith(f"{tmp_path / 'p.sql'}:{line}: ")


@pytest.mark.parametrize(
    ("text", "line", "reason"),
    [
        ("TABLE = 't'\n\ndef transform(messages:\n", 3, "Python cannot read it"),
        ("TABLE = 't'\n", 2, "there is no function transform"),
        ("TABLE = 't' + str(1)\ndef transform(m): return m\n", 1, "it is read, not computed"),
        ("TABLE = 't'\nKEY = {['room']}\ndef transform(m): return m\n", 2, "it is read, not computed"),
        (f"TABLE = 't'\nX = {'-' * 3_000}1\ndef transform(m): return m\n", 1, "Python cannot read it"),
        ("\nMODE = 'x'\nTABLE = 't'\ndef transform(m): return m\n", 2, "mode: 'x' is none of"),
    ],
)
def test_what_is_wrong_with_a_module(tmp_path: Path, text: str, line: int, reason: str) -> None:
    with pytest.raises(Problem) as caught:
        pipeline(tmp_path, text, "p.py")
    assert (caught.value.line, reason in caught.value.reason) == (line, True), caught.value.text


def test_a_file_that_is_no_text(tmp_path: Path) -> None:
    (tmp_path / "p.sql").write_bytes(b"\xff\xfe")
    with pytest.raises(Problem, match="not UTF-8"):
        files.read(tmp_path / "p.sql")
    with pytest.raises(Problem, match="No such file"):
        files.read(tmp_path / "q.sql")


@pytest.mark.parametrize(("name", "text"), [("p.sql", HEADER), ("p.py", MODULE)])
def test_the_mark_that_some_editors_put_first_is_no_text(tmp_path: Path, name: str, text: str) -> None:
    made = pipeline(tmp_path, f"\ufeff{text}", name)
    assert (made.text, made.table) == (text, "rooms")


def test_which_files_are_pipelines(tmp_path: Path) -> None:
    for name in ("b.sql", "a.py", "_helper.py", ".c.sql", "notes.txt"):
        (tmp_path / name).touch()
    assert [file.name for file in files.files_in(tmp_path)] == ["a.py", "b.sql"]
    assert files.files_in(tmp_path / "missing") == []


def test_the_built_in_ones_are_pipelines() -> None:
    made = {file.stem: files.read(file) for file in files.files_in(BUILTIN)}
    assert sorted(made) == ["archive", "silence", "statistics"]
    assert made["statistics"].key == ("topic", "window_start")


# --- feedback ---


def chain(tmp_path: Path, *steps: tuple[str | None, str]) -> list[Pipeline]:
    made = []
    for number, (source, topic) in enumerate(steps):
        header = f"-- from: {source}\n" if source else ""
        made.append(pipeline(tmp_path, f"{header}-- topic: {topic}\nSELECT 1", f"p{number}.sql"))
    return made


@pytest.mark.parametrize(
    ("steps", "open_ended", "found"),
    [
        ([("a/#", "b/x"), ("b/#", "a/x")], False, ["p1", "p0", "p1"]),
        ([("a/#", "b/{room}"), ("b/+", "c/{room}"), ("c/+", "a/{room}/x")], False, ["p2", "p0", "p1", "p2"]),
        ([("a/#", "b/x"), ("b/y", "a/x")], False, None),
        ([("a/#", "b/{room}"), ("b/y", "a/x")], False, None),  # a room may be called y, but that is not proved
        ([("a/#", "a/x")], False, None),  # its own rows are skipped
        ([(None, "b/x"), (None, "a/x")], True, ["p1", "p0", "p1"]),
        ([(None, "b/x"), (None, "a/x")], False, None),  # each picks its rows
        ([("#", "$stats/{t}"), ("#", "a/x")], True, None),
    ],
)
def test_circles(
    tmp_path: Path, steps: list[tuple[str | None, str]], open_ended: bool, found: list[str] | None
) -> None:
    *before, last = chain(tmp_path, *steps)
    names = dict.fromkeys((each.name for each in (*before, last)), open_ended)
    assert cycles.circle(last, before, names) == found
