"""What the tests of pipelines share: a directory of files, a runner on a store, and what is in its tables."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from deltalake import DeltaTable
from deltalake.exceptions import TableNotFoundError
from pyspark.sql import SparkSession

from flow.house import wait_for
from smbroker.spark.pipelines.query import Target
from smbroker.spark.pipelines.runner import Runner, Wanted

PATIENCE = 90.0  # seconds; first batches are slow


class Said:
    def __init__(self) -> None:
        self.lines: list[str] = []

    def say(self, text: str) -> None:
        self.lines.append(text)

    warn = say


class Running:
    """A runner in a thread of its own."""

    def __init__(self, runner: Runner, said: "Said") -> None:
        self.runner = runner
        self.said = said.lines

    def status(self, name: str) -> Any:
        return next((one for one in self.runner.statuses if one.name == name), None)

    def wait_state(self, name: str, state: str) -> Any:
        def found() -> Any:
            one = self.status(name)
            return one if one and one.state == state else None

        return wait_for(found, f"{name} {state}: {self.said}", PATIENCE)


def made(
    spark: SparkSession, data: Path, directory: Path | None, builtin: tuple[str, ...] = (), url: str = ""
) -> Running:
    said = Said()
    return Running(
        Runner(spark, Target(data, url, lambda: token_of(data)), Wanted(directory, builtin), said, patience=PATIENCE),
        said,
    )


def run_once(spark: SparkSession, data: Path, directory: Path | None, *builtin: str, url: str = "") -> Running:
    running = made(spark, data, directory, builtin, url)
    running.runner.run(once=True)
    return running


@contextmanager
def started(spark: SparkSession, data: Path, directory: Path | None, *builtin: str, url: str = "") -> Iterator[Running]:
    running = made(spark, data, directory, builtin, url)
    thread = threading.Thread(target=running.runner.run, daemon=True)
    thread.start()
    try:
        yield running
    finally:
        running.runner.stopping.set()
        thread.join(60)
        assert not thread.is_alive()


def token_of(data: Path) -> str | None:
    file = data / "pipeline.token"
    return file.read_text().strip() if file.exists() else None


def rows_of(data: Path, table: str) -> list[dict[str, Any]]:
    try:
        found: list[dict[str, Any]] = DeltaTable(data / "tables" / table).to_pyarrow_table().to_pylist()
    except TableNotFoundError:
        return []
    return found


def wait_rows(data: Path, table: str, count: int) -> list[dict[str, Any]]:
    wait_for(lambda: len(rows_of(data, table)) >= count, f"{count} rows in {table}", PATIENCE)
    return rows_of(data, table)


def directory(tmp_path: Path, **files: str) -> Path:
    made = tmp_path / "pipelines"
    made.mkdir(exist_ok=True)
    for name, text in files.items():
        stem, _, suffix = name.rpartition("_")
        (made / f"{stem}.{suffix}").write_text(text)
    return made
