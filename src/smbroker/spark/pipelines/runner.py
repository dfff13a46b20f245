"""All pipelines in one Spark process: started, watched, restarted; files that change are picked up meanwhile.

    with Runner(spark, data, …) as runner:
        runner.run()                   until `stop` is set; or, with `once`, until all is read

Each turn of its loop looks at the files and at the queries, and writes DIR/pipelines.json. A pipeline whose file is bad
has failed until the file changes; one whose query ended badly waits, longer each time, and is started again. They are
started one after another; from then on no pipeline waits for another.
"""

import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession

from smbroker.log.reader import LogReader
from smbroker.model.errors import LogError
from smbroker.spark.pipelines import files, frames, status
from smbroker.spark.pipelines.check import Checked
from smbroker.spark.pipelines.files import Pipeline
from smbroker.spark.pipelines.frames import Place
from smbroker.spark.pipelines.problem import Problem
from smbroker.spark.pipelines.query import PipelineQuery, Target
from smbroker.spark.pipelines.status import PipelineStatus, State
from smbroker.spark.process import has_ended

TURN = 0.5  # seconds
WAITS = (1, 2, 4, 8, 15, 30, 60)  # seconds before a failed query is started again
FRESH = 10.0  # seconds for which a batch says how fast it goes
STOP_PATIENCE = 1.0  # seconds; what is cut short is repeated at the next start
BUILTIN = Path(__file__).parent.parent / "builtin"
START_PATIENCE = 30.0  # seconds for a query to start before the next is started all the same
TOO_SLOW = "failed to connect back"  # what Spark says of its own workers on a busy machine
ONCE_RETRIES = 3
GONE = " is gone; the first there is is "  # what the source says when retention was faster

Signature = tuple[int, int, int]  # of a file: when it changed, its size and its inode


class Talk(Protocol):
    """Where the runner tells what happens, and what goes wrong."""

    def say(self, text: str) -> None: ...

    def warn(self, text: str) -> None: ...


@dataclass(frozen=True, slots=True)
class Wanted:
    """Which pipelines."""

    directory: Path | None  # of the user's files
    builtin: Sequence[str] = ()
    names: Sequence[str] = ()  # only these; none: all
    examples: Path | None = None  # the directory of further files; the user's take the place of those of the same name


@dataclass(slots=True)
class _Entry:
    file: Path
    builtin: bool
    signature: Signature
    status: PipelineStatus
    pipeline: Pipeline | None = None
    query: PipelineQuery | None = None
    failures: int = 0  # in a row
    retry_at: float | None = None
    batch: int | None = None  # the last one that was seen
    refused: bool = False  # beside another one; once that has changed or gone, it may run
    lossy: bool = False  # what is gone is gone: go on after it
    done: bool = field(default=False)


class Runner:
    def __init__(
        self, spark: SparkSession, target: Target, wanted: Wanted, talk: Talk, patience: float = STOP_PATIENCE
    ) -> None:
        self._patience = patience
        self._spark, self._target, self._wanted, self._talk = spark, target, wanted, talk
        self._entries: dict[str, _Entry] = {}
        self._checked = Checked()
        self._log: LogReader | None = None
        self.stopping = threading.Event()
        self._writing = threading.Lock()
        self._untold = False

    @property
    def statuses(self) -> list[PipelineStatus]:
        return [entry.status for _, entry in sorted(self._entries.items())]

    def run(self, once: bool = False, shown: Callable[[list[PipelineStatus]], None] = lambda _: None) -> int:
        """The number of pipelines that have failed."""
        try:
            while not self.stopping.is_set():
                self._look_at_files(once)
                for name in list(self._entries):
                    self._look_at(self._entries[name], once)
                self._write_status()
                shown(self.statuses)
                if once and all(entry.done for entry in self._entries.values()):
                    break
                self.stopping.wait(TURN)
        finally:
            self._stop_all()
        return sum(entry.status.error is not None for entry in self._entries.values())

    # --- files ---

    def _files(self) -> dict[str, tuple[Path, bool]]:
        """By the pipeline's name, and whether it is built in."""
        ours = {name: (next(BUILTIN.glob(f"{name}.*")), True) for name in self._wanted.builtin}
        ours |= {file.stem: (file, False) for file in files.files_in(self._wanted.examples)}
        theirs: dict[str, tuple[Path, bool]] = {}
        for file in files.files_in(self._wanted.directory):
            theirs[file.name if file.stem in theirs else file.stem] = (file, False)  # a second file of one name
        return ours | theirs

    def _look_at_files(self, once: bool) -> None:
        found = self._files()
        new: list[_Entry] = []
        changed = False
        for name in list(self._entries):
            if name not in found:
                self._remove(name)
                self._talk.say(f"{name}: stopped, its file is gone")
                changed = True
        for name, (file, builtin) in found.items():
            if self._wanted.names and name not in self._wanted.names:
                continue
            signature = _signature(file)
            entry = self._entries.get(name)
            if signature is None or (entry and (entry.file, entry.signature) == (file, signature)):
                continue
            if entry:
                self._remove(name)
                self._talk.say(f"{name}: {file.name} has changed")
                changed = True
            new.append(self._entered(name, file, builtin, signature))
        if changed:  # after the changed ones: what was theirs stays theirs
            new += self._entered_again()
        for entry in new:
            if self.stopping.is_set():
                return
            self._write_status()  # the first ones take some seconds each: nobody should think that none runs
            self._begin(entry, once)

    def _entered(self, name: str, file: Path, builtin: bool, signature: Signature) -> _Entry:
        self._entries[name] = _Entry(file, builtin, signature, PipelineStatus(name, str(file), since=status.now()))
        return self._entries[name]

    def _entered_again(self) -> list[_Entry]:
        refused = [(name, entry) for name, entry in self._entries.items() if entry.refused]
        return [self._entered(name, entry.file, entry.builtin, entry.signature) for name, entry in refused]

    def _remove(self, name: str) -> None:
        entry = self._entries.pop(name)
        if entry.query:
            entry.query.stop()
        self._checked.remove(name)

    # --- queries ---

    def _begin(self, entry: _Entry, once: bool) -> None:
        """Reads the file and starts its query."""
        entry.retry_at = None
        try:
            query = self._framed(entry)
        except Exception as error:  # whatever a file does, the others run
            if has_ended():
                raise
            reason = f"{type(error).__name__}: {error}"
            self._tell(entry, "failed", error if isinstance(error, Problem) else Problem(entry.file, 1, reason))
            entry.done = True
            return
        try:
            query.start(once)
        except Problem as problem:
            if isinstance(problem.__cause__, AnalysisException):  # Spark does not run such a plan
                self._tell(entry, "failed", problem)
                entry.done = True
            else:
                self._fail(entry, problem, once)
            return
        entry.query = query
        self._wait_for_start(query)
        self._tell(entry, "running", None)

    def _framed(self, entry: _Entry) -> PipelineQuery:
        pipeline = files.read(entry.file, entry.builtin)
        entry.pipeline = pipeline
        entry.status.table = pipeline.table
        entry.status.topic = pipeline.topic.text if pipeline.topic else None
        place = Place(self._target.data, fail_on_data_loss=not entry.lossy)
        query = PipelineQuery(self._spark, pipeline, self._target, place, self._talk.warn)
        leaves_out = frames.leaves_out(query.frame)
        try:
            self._checked.add(pipeline, leaves_out)
        except Problem:
            entry.refused = True
            raise
        return query

    def _wait_for_start(self, query: PipelineQuery) -> None:
        """One after another: Spark gives the workers of a query ten seconds to come up, too little for all at once."""
        deadline = time.monotonic() + START_PATIENCE
        while query.is_starting and time.monotonic() < deadline and not self.stopping.wait(0.1):
            pass

    def _look_at(self, entry: _Entry, once: bool) -> None:
        if entry.retry_at is not None and time.monotonic() >= entry.retry_at:
            self._begin(entry, once)
        if entry.query is None:
            return
        self._note_progress(entry)
        if entry.query.is_active:
            return
        problem = entry.query.problem()
        entry.query = None
        if problem:
            self._fail(entry, problem, once)
        else:  # its end was reached, or somebody stopped it
            entry.done = True
            self._tell(entry, "stopped", None)

    def _fail(self, entry: _Entry, problem: Problem, once: bool) -> None:
        if GONE in problem.reason and not entry.lossy:
            entry.lossy = True
            problem = Problem(problem.file, problem.line, f"{problem.reason.partition(' (')[0]}; it goes on there")
        elif problem.lasting or (once and not (TOO_SLOW in problem.reason and entry.failures < ONCE_RETRIES)):
            entry.done = True
            self._tell(entry, "failed", problem)
            return
        wait_for = WAITS[min(entry.failures, len(WAITS) - 1)]
        entry.failures += 1
        entry.retry_at = time.monotonic() + wait_for
        self._tell(entry, "waiting", problem)

    def _note_progress(self, entry: _Entry) -> None:
        assert entry.query
        progress = entry.query.progress()
        shown = entry.status
        if progress:
            if progress["batchId"] != entry.batch:
                if entry.batch is not None or progress["numInputRows"]:
                    entry.failures, shown.error = 0, None
                entry.batch = progress["batchId"]
            end = (progress["sources"] or [{}])[0].get("endOffset") or {}
            fresh = status.age(progress["timestamp"]) < FRESH + progress["batchDuration"] / 1000
            shown.batch, shown.batch_ms = progress["batchId"], progress["batchDuration"]
            shown.offset = end.get("offset", shown.offset)
            shown.rows_per_second = round(_number(progress.get("inputRowsPerSecond")), 1) if fresh else 0.0
        shown.backlog = self._backlog(shown.offset)

    def _backlog(self, offset: int | None) -> int | None:
        try:
            self._log = self._log or LogReader(self._target.data / "log")
            return None if offset is None else max(self._log.next_offset - offset, 0)
        except LogError:
            return None

    def _tell(self, entry: _Entry, state: State, problem: Problem | None) -> None:
        shown = entry.status
        shown.state, shown.since = state, status.now()
        if problem:
            shown.error = problem.as_json()
            again = f"; again in {WAITS[min(entry.failures, len(WAITS)) - 1]} s" if state == "waiting" else ""
            self._talk.warn(f"{problem.text}{again}")
        elif state == "running":
            self._talk.say(f"{shown.name}: running")

    def _stop_all(self) -> None:
        queries = [entry.query for entry in self._entries.values() if entry.query]
        pool = ThreadPoolExecutor(max(len(queries), 1))
        wait([pool.submit(query.stop) for query in queries], self._patience)
        pool.shutdown(wait=False, cancel_futures=True)
        self.tell_stopped()

    def tell_stopped(self) -> None:
        """Errors stay: they are why someone will look."""
        self.stopping.set()
        for entry in list(self._entries.values()):
            entry.status.state, entry.status.since, entry.status.rows_per_second = "stopped", status.now(), 0.0
        self._write_status()

    def _write_status(self) -> None:
        with self._writing:
            try:
                status.write(self._target.data, self.statuses)
                self._untold = False
            except OSError as error:  # a full disk, say: the pipelines are told by their own errors
                if not self._untold:
                    self._talk.warn(f"{status.FILE} cannot be written: {error.strerror}")
                self._untold = True


def _signature(file: Path) -> Signature | None:
    try:
        found = file.stat()
    except OSError:  # it has just gone
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino


def _number(value: Any) -> float:
    """Of Spark's JSON, where a rate may be missing, or not a number."""
    try:
        number = float(value)
    except (TypeError, ValueError):
        return 0.0
    return number if 0 <= number < float("inf") else 0.0
