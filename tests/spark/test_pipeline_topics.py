"""From messages at a real broker to tables and derived topics: SQL and Python, built-in ones, feedback."""

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from flow import test_pairs as pairs
from flow.house import Broker, Udp, wait_for
from smbroker.log.reader import LogReader
from smbroker.log.rows import as_json
from smbroker.spark.pipelines.query import PipelineQuery
from smbroker.spark.pipelines.runner import BUILTIN
from spark.runnerkit import PATIENCE, directory, rows_of, run_once, started, wait_rows
from web.calls import post

ROOMS = """\
-- from: house/+/temperature
-- watermark: 10 seconds
-- mode: update
-- table: rooms
-- key: room, start
-- topic: derived/{room}/mean
SELECT levels[1] AS room, window.start AS start, avg(value) AS mean
FROM messages
GROUP BY levels[1], window(ts, '10000 days')
"""
DOUBLED = """\
TOPIC = "doubled/{topic}"

def transform(messages):
    return messages.where("value IS NOT NULL").selectExpr("topic", "2 * value AS payload")
"""


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    with Broker(kinds=("udp", "web"), data=tmp_path / "data") as made:
        yield made


def url(broker: Broker) -> str:
    return f"http://127.0.0.1:{broker.ports['web']}"


def logged(broker: Broker, prefix: str = "") -> list[dict[str, Any]]:
    reader = LogReader(broker.data / "log")
    rows = [row for batch in reader.read(reader.first_offset) for row in as_json(batch)]
    return [row for row in rows if row["topic"].startswith(prefix)]


def publish(broker: Broker, *messages: tuple[str, str]) -> None:
    """Each is in the log when this returns."""
    client = broker.udp()
    for topic, text in messages:
        client.send(f"P|{topic}|{text}".encode())
        assert client.receive() == b"Hello Publisher!"


def test_a_table_and_topics_of_sql_and_python_without_feedback(
    spark: SparkSession, broker: Broker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first batch in memory, the second as if it were too large for that."""
    pipelines = directory(tmp_path, rooms_sql=ROOMS, doubled_py=DOUBLED)
    publish(broker, ("house/kitchen/temperature", "20"), ("house/hall/temperature", "10"), ("house/hall/light", "on"))
    run_once(spark, broker.data, pipelines, url=url(broker))
    monkeypatch.setattr(PipelineQuery, "_write_both", PipelineQuery._write_large)
    publish(broker, ("house/kitchen/temperature", "22"))
    run_once(spark, broker.data, pipelines, url=url(broker))
    run_once(spark, broker.data, pipelines, url=url(broker))  # derived messages are there to be read, but not our own
    means = {row["room"]: row["mean"] for row in rows_of(broker.data, "rooms")}
    assert means == {"kitchen": 21.0, "hall": 10.0}
    derived = [(row["topic"], json.loads(row["text"])["mean"], row["client"]) for row in logged(broker, "derived/")]
    assert sorted(derived) == [
        ("derived/hall/mean", 10.0, "pipeline:rooms"),
        ("derived/kitchen/mean", 20.0, "pipeline:rooms"),
        ("derived/kitchen/mean", 21.0, "pipeline:rooms"),
    ]
    doubled = [(row["topic"], row["text"]) for row in logged(broker, "doubled/")]
    assert sorted(doubled) == [
        ("doubled/house/hall/temperature", "20.0"),
        ("doubled/house/kitchen/temperature", "40.0"),
        ("doubled/house/kitchen/temperature", "44.0"),
    ]


LARGE = """\
TOPIC = "large/{topic}"

def transform(messages):
    messages.sparkSession.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", "2")
    parts = messages.selectExpr("topic", "explode(sequence(1, 40)) AS part")
    return parts.selectExpr("concat(topic, '/', part) AS topic", "repeat('x', 8388608) AS payload")
"""


def test_more_than_the_broker_takes_at_once_fails_until_it_is_less(
    spark: SparkSession, broker: Broker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pipelines = directory(tmp_path, much_py=LARGE)
    monkeypatch.setattr(PipelineQuery, "_write_both", PipelineQuery._write_large)
    publish(broker, ("a", "1"))
    with started(spark, broker.data, pipelines, url=url(broker)) as running:
        error = running.wait_state("much", "failed").error
        assert (error["line"], "a batch has more to publish than the broker takes" in error["reason"]) == (1, True)
        assert not list((broker.data / "stages").iterdir())
        (pipelines / "much.py").write_text(LARGE.replace("8388608", "8"))
        wait_for(lambda: len(logged(broker, "large/")) == 40, f"the pipeline goes on: {running.said}", PATIENCE)
    assert not any("again in" in line for line in running.said)


def test_statistics_are_stored_and_told_live(spark: SparkSession, broker: Broker) -> None:
    watching = broker.udp()
    watching.send(b"s$stats/#")
    wait_for(lambda: time.time() % 60 < 57, "a minute that does not end while we publish", 60)
    publish(broker, *(("lab/ph", str(value)) for value in range(1, 21)), ("lab/note", "no number"))
    with started(spark, broker.data, None, "statistics", "archive", url=url(broker)):
        told = [heard(watching), heard(watching)]
        wait_rows(broker.data, "archive", 21)
        wait_rows(broker.data, "statistics", 2)
    found = {row["topic"]: row for row in rows_of(broker.data, "statistics")}
    ph = found["lab/ph"]
    assert (ph["count"], ph["min"], ph["mean"], ph["max"], ph["p50"], ph["p95"]) == (20, 1.0, 10.5, 20.0, 10.0, 19.0)
    assert ph["rate"] > 0
    assert (found["lab/note"]["count"], found["lab/note"]["mean"]) == (1, None)
    live = dict(told)
    assert live["$stats/lab/ph"]["mean"] == 10.5
    assert live["$stats/lab/note"]["mean"] is None
    assert not logged(broker, "$stats")


def test_silence_and_return_are_told(spark: SparkSession, broker: Broker, tmp_path: Path) -> None:
    """The built-in file, with less patience."""
    pipelines = tmp_path / "pipelines"
    pipelines.mkdir()
    text = (BUILTIN / "silence.py").read_text().replace("LEAST = 10_000", "LEAST = 1_500")
    (pipelines / "silence.py").write_text(text)
    watching = broker.udp()
    watching.send(b"s$alerts/silence/#")
    with started(spark, broker.data, pipelines, url=url(broker)):
        publish(broker, *(("pump/flow", str(value)) for value in range(10)))
        topic, alert = heard(watching)
        assert (topic, alert["state"]) == ("$alerts/silence/pump/flow", "silent")
        publish(broker, ("pump/flow", "11"))
        topic, alert = heard(watching)
        assert (topic, alert["state"]) == ("$alerts/silence/pump/flow", "returned")
    assert [json.loads(row["text"])["state"] for row in logged(broker, "$alerts")] in (
        ["silent", "returned"],
        ["silent", "returned", "silent"],  # if it went on that long
    )


def heard(watching: Udp) -> tuple[str, Any]:
    def received() -> bytes | None:
        try:
            return watching.receive()
        except TimeoutError:
            return None

    datagram = wait_for(received, "a message", PATIENCE)
    topic, _, text = datagram.decode().partition(";")
    return topic, json.loads(text)


def test_a_message_of_every_dialect_is_a_row_of_the_archive(spark: SparkSession, tmp_path: Path) -> None:
    with Broker(kinds=("udp", "padded", "typed", "mqtt", "web"), data=tmp_path / "data") as broker:
        sources = {
            dialect: pairs.publish(broker, dialect, f"of/{dialect}".encode(), b"21.5") for dialect in pairs.DIALECTS
        }
        typed = broker.udp("typed")
        for kind, content, _ in pairs.NUMBERS:
            typed.send(b"of/number".ljust(50, b"\0") + bytes([kind]) + content)
        post(broker, "of/http", b"\xff\0")
        wait_for(lambda: len(logged(broker)) == len(sources) + len(pairs.NUMBERS) + 1, "all in the log")
        run_once(spark, broker.data, None, "archive")
    rows = rows_of(broker.data, "archive")
    assert sorted(row["offset"] for row in rows) == list(range(len(rows)))
    found = {row["topic"]: row for row in rows}
    for dialect, (host, port) in sources.items():
        row = found[f"of/{dialect}"]
        kind = "string" if dialect == "typed" else "bytes"
        assert (row["dialect"], row["source"], row["kind"]) == (dialect, f"{host}:{port}", kind)
        assert (row["payload"], row["text"], row["value"]) == (b"21.5", "21.5", 21.5)
    assert (found["of/http"]["payload"], found["of/http"]["text"], found["of/http"]["value"]) == (b"\xff\0", None, None)
    numbers = [row for row in sorted(rows, key=lambda row: row["offset"]) if row["topic"] == "of/number"]
    assert [row["value"] for row in numbers] == [float(text) for _, _, text in pairs.NUMBERS]
    assert {row["kind"] for row in numbers} == {"int", "short_real", "float"}
