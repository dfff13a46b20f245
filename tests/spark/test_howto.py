"""The examples of docs/howto/spark.md run, in their order, on a small log."""

import re
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from log.logkit import ORIGINS
from spark.sparkkit import Store

PAGE = Path(__file__).parent.parent.parent / "docs" / "howto" / "spark.md"


def test_the_examples_run(spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store = Store(tmp_path / "smb-data")
    store.publish(2, b"house/hall/door")
    store.publish_payloads([b"21.5", b"22.5", b'{"unit": "C"}'], ORIGINS[1])
    examples = "\n".join(re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(), re.DOTALL | re.MULTILINE))
    made = str(tmp_path)  # the workers' own directory is the session's, not this one
    for name in ("smb-data", "numbers-checkpoint", "numbers"):
        examples = examples.replace(f'"{name}"', f'"{made}/{name}"')
    exec(compile(examples, str(PAGE), "exec"), {})
    assert "house/hall/door" in capsys.readouterr().out
    assert [row.value for row in spark.read.parquet(f"{made}/numbers").orderBy("offset").collect()] == [21.5, 22.5]
    store.log.close()
