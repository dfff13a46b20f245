"""Stands for all tests of this folder where Spark cannot run."""

import pytest

from spark.conftest import MISSING


def test_spark_can_run() -> None:
    if MISSING:
        pytest.skip(MISSING)
