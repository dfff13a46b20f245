"""The load generators: built with gcc on the spot, and run against a server (load.h tells how they work)."""

import json
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from threading import Timer

from rounds import CPU, Bench, Run, RunFailed
from servers import BUILD, Broker, Relay, machine_seconds, processor_seconds, started

HERE = Path(__file__).resolve().parent
SOURCES = {
    "semicolon_load": ("semicolon_load.c", "load.c"),
    "typed_load": ("typed_load.c", "load.c"),
    "pipe_load": ("pipe_load.c", "load.c"),
    "padded_load": ("padded_load.c", "load.c"),
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


def measured(server: Broker | Relay, load: Load, bench: Bench) -> Run:
    """A fresh server, one run, the server's end."""
    directory = bench.new_directory()
    try:
        with started(server, directory) as (pid, port):
            return generated(load, pid, port, bench)
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def generated(load: Load, server: int, port: int, bench: Bench) -> Run:
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
            before = processor_seconds(server), machine_seconds()
            go_on(process)
            line = heard(process)
            after = processor_seconds(server), machine_seconds()
        finally:
            limit.cancel()
            process.kill()
    run = json.loads(line)
    if not run["received"]:
        raise RunFailed("nothing was received")
    return figures(run, after[0] - before[0], after[1] - before[1])


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


def figures(run: Run, server_cpu: float, machine_cpu: float) -> Run:
    """An answer is a delivery or an acknowledgement."""
    seconds, received = run["seconds"], run["received"]
    others = machine_cpu - server_cpu - run["generator_cpu_s"]
    return {
        **run,
        "in_per_s": run["sent"] / seconds,
        "out_per_s": received / seconds,
        "us_per_answer": seconds / received * 1e6,
        "lost_share": run["lost"] / (received + run["lost"]),
        "server_cpu_s": server_cpu,
        CPU: server_cpu / received * 1e6,
        "server_share": server_cpu / seconds,
        "generator_share": run["generator_cpu_s"] / seconds,
        "others_share": max(0.0, others) / seconds,
    }
