"""`smb up` and `smb demo` with pipelines: rows and derived topics come, one Ctrl-C ends it all."""

import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from cli.programs import SCRIPTS
from cli.test_demo import Demo
from flow.house import Udp, end_with_the_tests, wait_for
from spark import quick
from spark.runnerkit import PATIENCE, rows_of

KINDS = ("udp", "padded", "typed", "web")
STOP_LIMIT = 60.0  # seconds in which Ctrl-C ends everything, on a busy machine too


@contextmanager
def running(folder: Path, *words: str, path: str | None = None, kinds: tuple[str, ...] = KINDS) -> Iterator[Demo]:
    listen = [word for kind in kinds for word in ("--listen", f"{kind}://127.0.0.1:0")]
    environment = quick.environment() if path is None else {**os.environ, "PATH": path, "JAVA_HOME": ""}
    process = subprocess.Popen(
        [SCRIPTS / "smb", *words, "--data", folder / "data", *listen],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
        preexec_fn=end_with_the_tests,
        cwd=folder,
        env=environment,
    )
    with process:
        one = Demo(process)
        try:
            yield one
        finally:
            for pid in one.living():
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)


def test_the_demo_fills_tables_and_derives_topics_and_ends_with_one_signal(tmp_path: Path) -> None:
    with running(tmp_path, "demo", "--seed", "1") as one:
        ports = one.wait_until_ready()
        watching = Udp(ports["udp"])
        watching.send(b"sderived/#")
        wait_for(lambda: rows_of(tmp_path / "data", "archive"), "rows in archive", PATIENCE)
        assert watching.receive(PATIENCE).startswith(b"derived/house/")
        (tmp_path / "pipelines").mkdir()
        (tmp_path / "pipelines" / "own.sql").write_text("-- topic: derived/own\nSELECT value FROM messages\n")
        for first in (b"derived/own;", b"derived/house/"):  # beside the demo's own
            wait_for(lambda first=first: watching.receive(PATIENCE).startswith(first), first, PATIENCE)
        os.killpg(one.process.pid, signal.SIGINT)  # as a terminal does
        assert one.process.wait(STOP_LIMIT) == 0
        wait_for(lambda: not one.living(), f"no process: {one.living()}")
        assert not one.err.has("Traceback"), "\n".join(one.err.all[-60:])


def java_of(one: Demo) -> int:
    found = []
    for pid in one.living():
        with suppress(OSError):  # it has ended meanwhile
            found += [pid] if Path(f"/proc/{pid}/comm").read_text().strip() == "java" else []
    (java,) = found
    return java


def test_up_starts_spark_again_and_ends_when_it_alone_is_told_to(tmp_path: Path) -> None:
    """Without a directory of pipelines those that are built in run; one that comes later is found."""
    with running(tmp_path, "up") as one:
        wait_for(lambda: one.err.has("archive: running"), f"pipelines: {one.err.all}", PATIENCE)
        (tmp_path / "pipelines").mkdir()
        (tmp_path / "pipelines" / "bad.sql").write_text("-- table: t\nSELECT x FROM messages\n")
        wait_for(lambda: one.err.has("bad.sql:2: "), f"the error: {one.err.all}", PATIENCE)
        assert any(line.startswith("pipelines/bad.sql:2: [UNRESOLVED_COLUMN") for line in one.err.all), one.err.all
        assert not one.err.has("SQLQueryContextLogger"), one.err.all
        os.kill(java_of(one), signal.SIGKILL)
        wait_for(lambda: one.err.has("starting again in 1 s"), f"the end of Spark: {one.err.all}", PATIENCE)
        running_again = lambda: sum("archive: running" in line for line in one.err.all) >= 2  # noqa: E731
        wait_for(running_again, f"pipelines again: {one.err.all}", PATIENCE)
        one.process.send_signal(signal.SIGTERM)
        assert one.process.wait(STOP_LIMIT) == 0
        wait_for(lambda: not one.living(), f"no process: {one.living()}")


def test_without_java_the_broker_runs_and_says_what_to_install(tmp_path: Path) -> None:
    with running(tmp_path, "up", path="/nowhere") as one:
        wait_for(lambda: one.out.has("ready"), "ready", PATIENCE)
        one.err.wait("apt-get install", PATIENCE)
        udp = Udp(int(next(line.split()[3] for line in one.out.all if line.startswith("listening udp"))))
        udp.send(b"P|a|b")
        assert udp.receive() == b"Hello Publisher!"
        one.process.send_signal(signal.SIGINT)
        assert one.process.wait(STOP_LIMIT) == 0


def builtin(folder: Path, *names: str) -> str:
    """A file of settings with these built-in pipelines."""
    file = folder / "smb.toml"
    file.write_text(f"[pipelines]\nbuiltin = {list(names)}\n")
    return str(file)


def test_up_waits_for_a_first_pipeline_without_spark(tmp_path: Path) -> None:
    with running(tmp_path, "up", "--config", builtin(tmp_path)) as one:
        one.err.wait("no pipelines in pipelines yet", PATIENCE)
        assert len(one.living()) == 2
        (tmp_path / "pipelines").mkdir()
        (tmp_path / "pipelines" / "all.sql").write_text("-- table: t\nSELECT offset FROM messages\n")
        wait_for(lambda: one.err.has("all: running"), f"the pipeline: {one.err.all}", PATIENCE)
        assert not one.err.has("starting again")
        one.process.send_signal(signal.SIGTERM)
        assert one.process.wait(STOP_LIMIT) == 0


@pytest.mark.parametrize("moment", ["ready", "waiting"])
def test_to_stop_before_spark_runs_is_no_failure(tmp_path: Path, moment: str) -> None:
    with running(tmp_path, "up", "--config", builtin(tmp_path)) as one:
        wait_for(lambda: one.out.has("ready"), "ready", PATIENCE)
        if moment == "waiting":
            one.err.wait("no pipelines in pipelines yet", PATIENCE)
        os.killpg(one.process.pid, signal.SIGINT)  # as a terminal does
        assert one.process.wait(STOP_LIMIT) == 0
        one.err.wait_end()
        assert not one.err.has("ended badly"), one.err.all


@pytest.mark.parametrize("moment", ["begin", "java", "check"])
def test_to_stop_while_spark_starts_or_checks_leaves_nothing(tmp_path: Path, moment: str) -> None:
    for place in ("log", "scratch"):
        (tmp_path / place).mkdir()
    files = [tmp_path / f"p{number}.sql" for number in range(20)]
    for file in files:
        file.write_text(f"-- table: {file.stem}\nSELECT offset FROM messages\n")
    words = ["check", *files] if moment == "check" else ["run", "--data", tmp_path, "--url", ""]
    with subprocess.Popen(
        [SCRIPTS / "smb", "pipeline", *words],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
        preexec_fn=end_with_the_tests,
        env=quick.environment() | {"TMPDIR": str(tmp_path / "scratch")},
    ) as process:
        one = Demo(process)
        try:
            if moment == "check":
                wait_for(lambda: one.out.has("p0.sql: sound"), f"a first answer: {one.err.all}", PATIENCE)
            else:
                one.err.wait("starting Spark", PATIENCE)
            if moment == "java":
                wait_for(lambda: b"SparkSubmit" in commands(one), "Java", PATIENCE)
            process.send_signal(signal.SIGINT)
            assert process.wait(STOP_LIMIT) == (130 if moment == "check" else 0), one.err.all
            assert not one.living()
            one.err.wait_end()
            assert not one.err.has("Traceback"), one.err.all
            assert [entry for entry in (tmp_path / "scratch").iterdir() if entry.name.startswith("smb-")] == []
        finally:
            for pid in one.living():
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)


def commands(one: Demo) -> bytes:
    found = b""
    for pid in one.living():
        with suppress(OSError):  # it has ended meanwhile
            found += Path(f"/proc/{pid}/cmdline").read_bytes()
    return found


def test_a_spark_that_does_not_start_may_be_tried_again(tmp_path: Path) -> None:
    (tmp_path / "log").mkdir()
    words = [SCRIPTS / "smb", "pipeline", "run", "--master", "nonsense", "--data", tmp_path]
    result = subprocess.run(words, env=quick.environment(), capture_output=True, timeout=PATIENCE)
    assert (result.returncode, b"Spark does not start: " in result.stderr) == (4, True), result.stderr


def test_without_a_web_listener_tables_are_written_and_what_only_publishes_says_why_not(tmp_path: Path) -> None:
    with running(tmp_path, "up", "--config", builtin(tmp_path, "statistics", "silence"), kinds=("udp",)) as one:
        one.err.wait("there is no web listener: pipelines can write tables, but no topics", PATIENCE)
        wait_for(lambda: one.out.has("ready"), "ready", PATIENCE)
        udp = Udp(int(next(line.split()[3] for line in one.out.all if line.startswith("listening udp"))))
        for batch, topic in enumerate((b"a", b"b"), 1):
            udp.send(b"P|" + topic + b"|1")
            assert udp.receive() == b"Hello Publisher!"
            wait_for(lambda batch=batch: len(rows_of(tmp_path / "data", "statistics")) == batch, "a row", PATIENCE)
        wanted = "silence.py:19: there is no web listener (--url), so nothing can be published"
        wait_for(lambda: one.err.has(wanted), f"why silence does not run: {one.err.all}", PATIENCE)
        one.process.send_signal(signal.SIGTERM)
        assert one.process.wait(STOP_LIMIT) == 0
