"""The examples of docs/howto/spark.md run, in their order, on a broker with a few messages."""

import re
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from flow.lasting import Home
from web.calls import KINDS, get, post_lines

PAGE = Path(__file__).parent.parent.parent / "docs" / "howto" / "spark.md"


def test_the_examples_run(spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    examples = "\n".join(re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(), re.DOTALL | re.MULTILINE))
    for name in re.findall(r'"([a-z]+-checkpoint|numbers)"', examples):
        examples = examples.replace(f'"{name}"', f'"{tmp_path}/{name}"')  # the workers' directory is the session's
    home = Home(tmp_path, kinds=KINDS)
    examples = examples.replace('"smb-data"', f'"{home.data}"').replace(":8090", f":{home.ports['web']}")
    with home.broker() as broker:
        payloads = {"house/hall/door": "open", "house/p": "21.5", "house/q": "31.5", "r": '{"unit": "C"}'}
        post_lines(broker, *({"topic": topic, "payload": payload} for topic, payload in payloads.items()))
        exec(compile(examples, str(PAGE), "exec"), {})
        assert "house/hall/door" in capsys.readouterr().out
        numbers = spark.read.parquet(f"{tmp_path}/numbers")
        assert [row.value for row in numbers.orderBy("offset").collect()] == [21.5, 31.5]
        for query in spark.streams.active:
            query.processAllAvailable()
            query.stop()
        published = {row["topic"]: row["text"] for row in get(broker, "/v1/messages").rows[len(payloads) :]}
    assert published["alarm/house/q"] == "31.5"
    assert published["mean/house/p"] == "21.5"
    assert "alarm/house/p" not in published
