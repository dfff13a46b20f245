"""`smb pipeline check`: whether files would run, told without running them on anything.

First what needs no Spark (header, names); then Spark analyses the file over an empty log and starts it on that, since
some plans are refused only there (an aggregate in append mode without a watermark, say).
"""

import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path

from pyspark.sql import SparkSession

from smbroker.log.log import Log
from smbroker.spark.pipelines import cycles, files, frames
from smbroker.spark.pipelines.files import Pipeline
from smbroker.spark.pipelines.frames import Place
from smbroker.spark.pipelines.problem import Problem
from smbroker.spark.pipelines.query import PipelineQuery, Target


class Checked:
    """Pipelines that are sound by themselves, and whether they are so together: tables and circles."""

    def __init__(self) -> None:
        self._running: dict[str, Pipeline] = {}
        self._open_ended: dict[str, bool] = {}

    def add(self, pipeline: Pipeline, leaves_out: bool) -> None:
        """Raises Problem, and then has not added it."""
        for other in self._running.values():
            if other.name == pipeline.name and other.file != pipeline.file:
                raise Problem(pipeline.file, 1, f"{other.file.name} has the same name")
            if pipeline.table and other.table == pipeline.table and other.name != pipeline.name:
                raise pipeline.problem(
                    "table", f"table {pipeline.table} is written by {other.file.name}; one writer each"
                )
        opened = self._open_ended | {pipeline.name: not leaves_out}
        if found := cycles.circle(pipeline, self._running.values(), opened):
            way = " → ".join(found)
            key = "from" if "from" in pipeline.lines else "topic"
            raise pipeline.problem(key, f"it would feed itself: {way}; narrow `from`, or publish elsewhere")
        self._running[pipeline.name] = pipeline
        self._open_ended = opened

    def remove(self, name: str) -> None:
        self._running.pop(name, None)
        self._open_ended.pop(name, None)


def read_all(paths: Iterable[Path]) -> Iterator[Pipeline | Problem]:
    for path in paths:
        try:
            yield files.read(path)
        except Problem as problem:
            yield problem


def check(spark: SparkSession, pipelines: Iterable[Pipeline]) -> Iterator[tuple[Pipeline, Problem | None]]:
    together = Checked()
    with tempfile.TemporaryDirectory(prefix="smb-check-", ignore_cleanup_errors=True) as scratch:
        data = Path(scratch)
        Log.open(data / "log").close()
        for pipeline in pipelines:
            try:
                query = PipelineQuery(spark, pipeline, Target(data, ""), Place(data))
                together.add(pipeline, frames.leaves_out(query.frame))
                query.start()
                query.stop()
                yield pipeline, None
            except Problem as problem:
                yield pipeline, problem
