"""One Spark session for all of these tests. Without Java (or pyspark) they are left out, with one line that says so."""

import importlib.util
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from spark import quick

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from spark.sparkkit import Store


def missing() -> str | None:
    if importlib.util.find_spec("pyspark") is None:
        return "there is no pyspark: pip install '.[spark]'"
    from smbroker.spark.session import missing_java

    return missing_java()


MISSING = missing()
collect_ignore_glob = ["test_[!w]*.py"] if MISSING else []  # test_whether_spark_runs.py stays, and is skipped


def pytest_terminal_summary(terminalreporter: Any) -> None:
    if MISSING:
        terminalreporter.write_line(f"tests/spark is left out: {MISSING}")


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator["SparkSession"]:
    from smbroker.spark.session import session

    logging.getLogger("py4j").setLevel(logging.ERROR)
    warehouse = str(tmp_path_factory.mktemp("warehouse"))
    made = session("local[2]", **{"spark.sql.warehouse.dir": warehouse, "spark.driver.extraJavaOptions": quick.OPTIONS})
    made.sparkContext.setLogLevel("OFF")  # queries that are meant to fail do so loudly
    yield made
    made.stop()


@pytest.fixture
def store(tmp_path: Path) -> Iterator["Store"]:
    from spark.sparkkit import Store

    made = Store(tmp_path / "data")
    yield made
    made.log.close()
