"""The load generators: built with gcc on the spot, and run against a server (load.h tells how they work)."""

import json
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from threading import Timer
from typing import NamedTuple

from rounds import COST, CPU, OUT, Bench, Run, RunFailed
from servers import BUILD, Server, machine_seconds, processor_seconds, started

from smbroker.log.reader import LogReader

HERE = Path(__file__).resolve().parent
SOURCES = {
    "udp_load": ("udp_load.c", "load.c"),
    "typed_load": ("typed_load.c", "load.c"),
    "pipe_load": ("pipe_load.c", "load.c"),
    "padded_load": ("padded_load.c", "load.c"),
    "mqtt_load": ("mqtt_load.c", "load.c"),
    "nats_load": ("nats_load.c", "load.c"),
    "plain_relay": ("plain_relay.c",),
}
FLAGS = ("-O2", "-std=gnu11", "-Wall", "-Wextra")
PREPARE_LIMIT = 60.0  # seconds for subscribing, and for what is under way at the end


def trouble(with_loads: bool) -> str:
    """What keeps the bench from running, in one line; nothing if all is well. Builds what is to be built."""
    if sys.platform != "linux":
        return "the bench needs Linux: it reads processor time from /proc"
    if not with_loads:
        return ""
    if not shutil.which("gcc"):
        return "the bench needs gcc, to build its load generators; on Debian: apt-get install gcc libc6-dev"
    try:
        build(BUILD)
    except subprocess.CalledProcessError as error:
        return f"the load generators cannot be built:\n{error.stderr.decode(errors='replace').rstrip()}"
    return ""


def build(directory: Path, flags: tuple[str, ...] = FLAGS) -> None:
    """What is older than its sources, or not there."""
    directory.mkdir(parents=True, exist_ok=True)
    for program, names in SOURCES.items():
        target, sources = directory / program, [HERE / name for name in names]
        newest = max(source.stat().st_mtime for source in (*sources, HERE / "load.h"))
        if not target.exists() or target.stat().st_mtime < newest:
            subprocess.run(["gcc", *flags, "-o", target, *sources], check=True, capture_output=True)


@dataclass(frozen=True)
class Load:
    program: str
    settings: Mapping[str, int] = field(default_factory=dict)


class Meter:
    """What a server has used and logged so far."""

    def __init__(self, pid: int, log: Path | None) -> None:
        self._pid = pid
        self._reader = LogReader(log) if log else None

    def read(self) -> "Reading":
        return Reading(processor_seconds(self._pid), machine_seconds(), self.logged)

    @property
    def logged(self) -> int:
        """Messages that are on disk."""
        return self._reader.next_offset if self._reader else 0


class Reading(NamedTuple):
    server: float
    machine: float
    logged: int


def measured(server: Server, load: Load, bench: Bench) -> Run:
    """A fresh server, one run, the server's end; then the log, if there is one, must hold what was sent."""
    directory = bench.new_directory()
    try:
        with started(server, directory) as (pid, port):
            meter = Meter(pid, server.log_in(directory))
            line, before, after = generated(load, port, meter, bench)
        run = figures(line, before, after)
        if server.log and meter.logged < before.logged + run["sent"]:
            raise RunFailed(f"of {run['sent']:,} messages the log holds {meter.logged - before.logged:,}")
        return run
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def generated(load: Load, port: int, meter: Meter, bench: Bench) -> tuple[Run, Reading, Reading]:
    """The generator's own line, and what the meter showed before and after."""
    scale = bench.scale
    settings = {"port": port, "warm_ms": scale.warm_ms, "run_ms": scale.run_ms, **load.settings}
    command = [str(BUILD / load.program), *(f"{name}={value}" for name, value in settings.items())]
    process = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True
    )
    limit = Timer(PREPARE_LIMIT + scale.run_ms / 1e3, process.kill)
    limit.start()
    with process:
        try:
            heard(process)
            before = meter.read()
            go_on(process)
            line = json.loads(heard(process))
            after = meter.read()
        finally:
            limit.cancel()
            process.kill()
    if not line["received"]:
        raise RunFailed("nothing was received")
    return line, before, after


def heard(process: subprocess.Popen[bytes]) -> bytes:
    assert process.stdout
    assert process.stderr
    line = process.stdout.readline()
    if not line:
        raise RunFailed(process.stderr.read().decode(errors="replace").strip() or "the generator took too long")
    return line


def go_on(process: subprocess.Popen[bytes]) -> None:
    assert process.stdin
    process.stdin.write(b"\n")
    process.stdin.flush()


def figures(run: Run, before: Reading, after: Reading) -> Run:
    """An answer is a delivery or an acknowledgement."""
    seconds, received = run["seconds"], run["received"]
    server_cpu = after.server - before.server
    others = after.machine - before.machine - server_cpu - run["generator_cpu_s"]
    return {
        **run,
        "in_per_s": run["sent"] / seconds,
        OUT: received / seconds,
        COST: seconds / received * 1e6,
        "lost_share": run["lost"] / (received + run["lost"]),
        "server_cpu_s": server_cpu,
        CPU: server_cpu / received * 1e6,
        "server_share": server_cpu / seconds,
        "generator_share": run["generator_cpu_s"] / seconds,
        "others_share": max(0.0, others) / seconds,
        "logged_share": (after.logged - before.logged) / run["sent"],
    }
