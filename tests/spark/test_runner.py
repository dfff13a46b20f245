"""Pipelines as the runner runs them: files to tables, bad files beside good ones, changes, restarts, status."""

import json
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from flow.house import wait_for
from log.logkit import ORIGINS
from smbroker.cli.signals import Stopped
from smbroker.spark.pipelines import files
from smbroker.spark.pipelines.check import check
from spark.runnerkit import PATIENCE, directory, rows_of, run_once, started, wait_rows
from spark.sparkkit import Store

NUMBERS = "-- from: p\n-- table: numbers\nSELECT offset, value FROM messages WHERE value IS NOT NULL\n"


def told(path: Path) -> list[dict[str, Any]]:
    """What the runner has written down of its pipelines for others to read; a moment behind what it knows."""
    return list(json.loads((path / "pipelines.json").read_text())["pipelines"])


def test_bad_files_are_told_with_their_line_and_the_others_run(
    spark: SparkSession, store: Store, tmp_path: Path
) -> None:
    store.publish_payloads([b"1", b"x", b"3.5"], ORIGINS[1])
    pipelines = directory(
        tmp_path,
        numbers_sql=NUMBERS,
        syntax_sql="-- table: s1\nSELECT offset\nFORM messages\n",
        column_sql="-- table: s2\n-- every: 1 second\nSELECT offset,\n       wrong\nFROM messages\n",
        header_sql="-- table: s3\n-- evry: 1 second\nSELECT offset FROM messages\n",
        plan_sql="-- table: s4\nSELECT topic, count(*) AS n FROM messages GROUP BY topic\n",
        key_sql="-- table: s5\n-- key: nothing\nSELECT offset FROM messages\n",
        same_sql="-- from: p\n-- table: numbers\nSELECT offset FROM messages\n",
        static_sql="-- table: s6\nSELECT 1 AS one\n",
        twice_py="TABLE = 's7'\n\ndef transform(messages):\n    return messages.select('offset', 'wrong')\n",
        broken_py="TABLE = 's8'\n\ndef transform(messages):\n    x = 1 / 0\n    return messages\n",
        worker_py=(
            "TABLE = 's9'\nfrom pyspark.sql.functions import udf\n\ndef transform(messages):\n"
            "    @udf('int')\n    def bad(offset):\n        raise ValueError('no number')\n"
            "    return messages.select('offset', bad('offset').alias('bad'))\n"
        ),
        leaves_py="TABLE = 's11'\nimport sys\nsys.exit('enough')\n\ndef transform(messages):\n    return messages\n",
        exits_py="TABLE = 's12'\n\ndef transform(messages):\n    raise SystemExit(3)\n",
        case_sql="-- table: s17\nSELECT offset AS a, topic AS A FROM messages\n",
        field_sql="-- table: s18\nSELECT array(named_struct('x', offset, 'X', 1)) AS s FROM messages\n",
        tick_sql="-- table: s19\n-- key: offset\nSELECT offset, topic AS `a``b` FROM messages\n",
        fine_sql="-- table: s20\nSELECT offset AS `a``b` FROM messages\n",
        interrupts_py="TABLE = 's15'\n\ndef transform(messages):\n    raise KeyboardInterrupt\n",
        own_py=(
            "TABLE = 's16'\n\nclass Enough(BaseException):\n    pass\n\n"
            "def transform(messages):\n    raise Enough('of this')\n"
        ),
        set_py="TABLE = 's13'\nKEY = {['room']}\n\ndef transform(messages):\n    return messages\n",
        deep_py=f"TABLE = 's14'\nX = {'-' * 20_000}1\n\ndef transform(messages):\n    return messages\n",
        divide_sql="-- table: s10\n\nSELECT offset,\n       1 / (offset - offset) AS x\nFROM messages\n",
    )
    running = run_once(spark, store.path, pipelines)
    assert [(row["offset"], row["value"]) for row in rows_of(store.path, "numbers")] == [(0, 1.0), (2, 3.5)]
    assert [row["a`b"] for row in rows_of(store.path, "s20")] == [0, 1, 2]
    errors = {one.name: one.error for one in running.runner.statuses if one.error}
    found = {name: (error["line"], error["reason"]) for name, error in errors.items()}
    wanted = {
        "syntax": (3, "Syntax error at or near"),
        "column": (4, "`wrong` cannot be resolved"),
        "header": (2, "unknown key evry"),
        "plan": (1, "without watermark"),
        "key": (2, "there is no column nothing; the columns are offset"),
        "same": (2, "table numbers is written by numbers.sql; one writer each"),
        "static": (1, "it does not read messages"),
        "twice": (4, "`wrong` cannot be resolved"),
        "broken": (4, "ZeroDivisionError: division by zero"),
        "worker": (7, "ValueError: no number"),
        "leaves": (3, "SystemExit: enough"),
        "exits": (4, "SystemExit: 3"),
        "case": (1, "a and A differ only in case, which a table does not tell apart; rename one"),
        "field": (1, "x and X differ only in case"),
        "tick": (
            1,
            "the column a`b has a backtick in its name, which a table with a key cannot have; rename it with AS",
        ),
        "interrupts": (4, "KeyboardInterrupt"),
        "own": (7, "Enough: of this"),
        "set": (2, "give a text"),
        "deep": (1, "Python cannot read it"),
        "divide": (4, "Division by zero"),
    }
    assert found.keys() == wanted.keys()
    for name, (line, reason) in wanted.items():
        assert found[name][0] == line, (name, found[name])
        assert reason in found[name][1], (name, found[name])
    assert f"{pipelines / 'syntax.sql'}:3: " in "\n".join(running.said)


def test_who_is_told_to_end_while_files_are_checked_ends(spark: SparkSession, tmp_path: Path) -> None:
    text = "from smbroker.cli.signals import Stopped\nTABLE = 't'\ndef transform(messages):\n    raise Stopped\n"
    pipelines = directory(tmp_path, one_py=text)
    with pytest.raises(Stopped):
        list(check(spark, [files.read(pipelines / "one.py")]))


def test_files_are_picked_up_while_the_others_go_on(spark: SparkSession, store: Store, tmp_path: Path) -> None:
    store.publish_payloads([b"1"], ORIGINS[1])
    pipelines = directory(tmp_path, numbers_sql=NUMBERS)
    with started(spark, store.path, pipelines) as running:
        wait_rows(store.path, "numbers", 1)
        began = running.wait_state("numbers", "running").since
        directory(tmp_path, late_sql="-- table: late\nSELECT offset FORM messages\n")
        error = running.wait_state("late", "failed").error
        assert error["line"] == 2
        directory(tmp_path, late_sql="-- table: late\nSELECT offset, 'a' AS v FROM messages\n")
        wait_rows(store.path, "late", 1)
        wait_for(lambda: running.status("late").error is None, "no error any more", PATIENCE)
        directory(tmp_path, late_sql="-- table: late\nSELECT offset, 'changed' AS v FROM messages\n")
        wait_for(lambda: sum("has changed" in line for line in running.said) == 2, "the second change", PATIENCE)
        store.publish_payloads([b"2"], ORIGINS[1])
        assert [row["v"] for row in sorted(wait_rows(store.path, "late", 2), key=lambda row: row["offset"])] == [
            "a",
            "changed",
        ]
        (pipelines / "late.sql").unlink()
        wait_for(lambda: "late: stopped, its file is gone" in running.said, "the end of it is told", PATIENCE)
        assert running.status("late") is None
        wait_rows(store.path, "numbers", 2)
        assert running.status("numbers").since == began
        wait_for(
            lambda: [(one["name"], one["offset"]) for one in told(store.path)] == [("numbers", 2)],
            "the list without it, and how far the other is",
            PATIENCE,
        )
    assert [(one["state"], one["offset"], one["table"]) for one in told(store.path)] == [("stopped", 2, "numbers")]


def test_a_time_with_a_fraction_is_one_like_others(spark: SparkSession, store: Store, tmp_path: Path) -> None:
    store.publish_payloads([b"1"], ORIGINS[1])
    half = "-- every: 0.5 minutes\n-- table: half\nSELECT offset FROM messages\n"
    with started(spark, store.path, directory(tmp_path, half_sql=half, numbers_sql=NUMBERS)):
        wait_rows(store.path, "half", 1)
        wait_rows(store.path, "numbers", 1)


def test_what_was_refused_beside_another_runs_once_that_is_gone(
    spark: SparkSession, store: Store, tmp_path: Path
) -> None:
    store.publish_payloads([b"1"], ORIGINS[1])
    pipelines = directory(tmp_path, numbers_sql=NUMBERS)
    with started(spark, store.path, pipelines) as running:
        running.wait_state("numbers", "running")
        (pipelines / "again.sql").write_text(NUMBERS)
        running.wait_state("again", "failed")
        (pipelines / "numbers.sql").write_text(NUMBERS.replace("value IS", "1.0 * value IS"))  # the table stays its own
        wait_for(lambda: "numbers: numbers.sql has changed" in running.said, "the change", PATIENCE)
        running.wait_state("numbers", "running")
        running.wait_state("again", "failed")
        (pipelines / "numbers.sql").unlink()
        assert running.wait_state("again", "running").error is None


def test_a_query_that_fails_is_started_again_and_loses_nothing(
    spark: SparkSession, store: Store, tmp_path: Path
) -> None:
    """The first try of each process fails, as a flaky service would."""
    flag = tmp_path / "flag"
    store.publish_payloads([b"1", b"2"], ORIGINS[1])
    text = (
        "TABLE = 't'\nfrom pathlib import Path\nfrom pyspark.sql.functions import udf\n\ndef transform(messages):\n"
        "    @udf('int')\n    def flaky(offset):\n"
        f"        assert Path({str(flag)!r}).exists(), 'not yet'\n        return 1\n"
        "    return messages.select('offset', flaky('offset').alias('one'))\n"
    )
    with started(spark, store.path, directory(tmp_path, flaky_py=text)) as running:
        error = running.wait_state("flaky", "waiting").error
        assert (error["line"], "not yet" in error["reason"]) == (8, True)
        flag.touch()
        assert [row["offset"] for row in wait_rows(store.path, "t", 2)] == [0, 1]
        wait_for(lambda: running.status("flaky").error is None, "no error", PATIENCE)


def test_a_batch_spans_as_many_messages_as_the_header_says(spark: SparkSession, store: Store, tmp_path: Path) -> None:
    store.publish(6)
    text = "-- table: t\n-- rows: 2\nSELECT offset FROM messages\n"
    running = run_once(spark, store.path, directory(tmp_path, few_sql=text))
    assert running.status("few").batch == 2
    assert sorted(row["offset"] for row in rows_of(store.path, "t")) == list(range(6))


def test_a_table_that_cannot_be_tidied_up_gets_its_rows_all_the_same(
    spark: SparkSession, store: Store, tmp_path: Path
) -> None:
    """A file that is damaged is in the way of packing, but not of appending."""
    pipelines = directory(tmp_path, all_sql="-- table: t\nSELECT offset FROM messages\n")
    store.publish(1)
    run_once(spark, store.path, pipelines)
    (file,) = (store.path / "tables" / "t").glob("*.parquet")
    file.write_bytes(b"damaged")
    store.publish(1)
    with started(spark, store.path, pipelines) as running:
        wait_for(lambda: any("all: table t cannot be tidied up now: " in line for line in running.said), "", PATIENCE)
        store.publish(1)
        wait_for(lambda: (one := running.status("all")) and one.offset == 3, f"{running.said}", PATIENCE)
        assert running.status("all").state == "running"
    assert len(running.said) == 2, running.said


MAXIMA = (
    "-- table: maxima\n-- mode: update\n-- key: topic\nSELECT topic, max(value) AS high FROM messages GROUP BY topic\n"
)
CHANGES = {  # and what Spark says of each
    MAXIMA.replace("AS high", "AS high, min(value) AS low"): "[STATE_STORE_VALUE_SCHEMA_NOT_COMPATIBLE] ",
    MAXIMA.replace("GROUP BY topic", "GROUP BY topic, offset"): "[STATE_STORE_KEY_SCHEMA_NOT_COMPATIBLE] ",
    NUMBERS.replace("numbers", "maxima"): "[STREAMING_STATEFUL_OPERATOR_NOT_MATCH_IN_STATE_METADATA] ",
    MAXIMA.replace("FROM messages", "FROM (FROM messages UNION ALL FROM messages)"): "",
}


def test_a_change_that_does_not_fit_the_state_fails_for_good_until_it_is_undone(
    spark: SparkSession, store: Store, tmp_path: Path
) -> None:
    store.publish_payloads([b"1", b"2"], ORIGINS[1])
    advice = (
        "what it remembers does not fit the changed query; "
        "undo the change, or begin anew: stop smb, then `smb pipeline reset maxima`"
    )
    changed = "maxima: maxima.sql has changed"
    with started(spark, store.path, directory(tmp_path, maxima_sql=MAXIMA)) as running:
        wait_for(lambda: (one := running.status("maxima")) and one.batch is not None, "a batch that is done", PATIENCE)
        for text, code in CHANGES.items():
            changes = running.said.count(changed)
            directory(tmp_path, maxima_sql=text)
            wait_for(lambda changes=changes: running.said.count(changed) > changes, "the change", PATIENCE)
            store.publish_payloads([b"1"], ORIGINS[1])  # the query as it was does not see this
            wanted = f"{tmp_path}/pipelines/maxima.sql:1: {code}{advice}"
            wait_for(lambda wanted=wanted: running.said[-1] == wanted, f"{wanted}: {running.said}", PATIENCE)
            assert running.status("maxima").state == "failed"
        directory(tmp_path, maxima_sql=MAXIMA)
        store.publish_payloads([b"3"], ORIGINS[1])
        wait_for(lambda: rows_of(store.path, "maxima")[0]["high"] == 3, "the pipeline goes on", PATIENCE)
        assert running.status("maxima").state == "running"
        assert not any("again in" in line for line in running.said)


def test_what_retention_has_taken_is_told_and_the_pipeline_goes_on(
    spark: SparkSession, store: Store, tmp_path: Path
) -> None:
    pipelines = directory(tmp_path, all_sql="-- table: t\nSELECT offset FROM messages\n")
    store.publish(3)
    run_once(spark, store.path, pipelines)
    store.publish(3)
    store.seal()
    store.publish(2)
    store.forget_sealed()
    running = run_once(spark, store.path, pipelines)
    assert any("offset 3 is gone; the first there is is 6; it goes on there" in line for line in running.said)
    assert sorted(row["offset"] for row in rows_of(store.path, "t")) == [0, 1, 2, 6, 7]


def test_the_archive_has_every_message_whatever_it_is(spark: SparkSession, store: Store) -> None:
    payloads = [b"1.5", b"\xff\xfe", b"", b'{"a": 1}', b"x" * 1_000_000]
    store.publish_payloads(payloads, ORIGINS[1])
    run_once(spark, store.path, None, "archive")
    found = sorted(rows_of(store.path, "archive"), key=lambda row: row["offset"])
    assert [row["payload"] for row in found] == payloads
    assert [row["value"] for row in found] == [1.5, None, None, None, None]
    assert [row["text"] for row in found][:4] == ["1.5", None, "", '{"a": 1}']
    assert {row["topic"] for row in found} == {"p"}


def test_variants_are_stored_as_text_and_large_batches_by_way_of_the_disk(
    spark: SparkSession, store: Store, tmp_path: Path
) -> None:
    from smbroker.spark.pipelines import files
    from smbroker.spark.pipelines.frames import Place
    from smbroker.spark.pipelines.query import PipelineQuery, Target

    store.publish_payloads([b'{"a": [1, 2]}', b"no"], ORIGINS[1])
    pipelines = directory(tmp_path, all_sql="-- table: t\nSELECT offset, ts, json, levels FROM messages\n")
    query = PipelineQuery(spark, files.read(pipelines / "all.sql"), Target(store.path, ""), Place(store.path))
    query._write_both = query._write_large  # type: ignore[method-assign]
    query.start(once=True)
    assert query._query is not None
    assert query._query.awaitTermination(60)
    found = sorted(rows_of(store.path, "t"), key=lambda row: row["offset"])
    assert [row["json"] for row in found] == ['{"a":[1,2]}', None]
    assert found[0]["ts"].tzinfo is not None


def test_what_has_begun_is_told_before_the_next_one_begins(spark: SparkSession, store: Store, tmp_path: Path) -> None:
    """The first ones take some seconds each."""
    told_file, seen = store.path / "pipelines.json", tmp_path / "seen.json"
    look = f"import shutil\nshutil.copy({str(told_file)!r}, {str(seen)!r})\n"
    second = f"TABLE = 'second'\n{look}\ndef transform(messages):\n    return messages.select('offset')\n"
    running = run_once(spark, store.path, directory(tmp_path, first_sql=NUMBERS, second_py=second))
    assert [one.error for one in running.runner.statuses] == [None, None]
    told = [(one["name"], one["state"]) for one in json.loads(seen.read_text())["pipelines"]]
    assert told == [("first", "running"), ("second", "starting")]
