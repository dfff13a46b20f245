"""The load generators: built with gcc on the spot, and run against a server (load.h tells how they work)."""

import json
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from threading import Timer
from typing import NamedTuple

from rounds import COST, CPU, OUT, P99, PIECES, Bench, Run, RunFailed
from servers import BUILD, SETTLED, Server, machine_seconds, processor_seconds, settle, started

from smbroker.log.reader import LogReader
from smbroker.log.segments import TAIL

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
LIMIT = 60.0  # seconds for subscribing, and for what is under way at the end of a piece
GATHERING = 0.05  # seconds that the broker may gather messages for before it writes them
LOG_LIMIT = 10.0  # seconds that a log may go on writing and sealing before others have their turn


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


TELLING = 0.1  # seconds of processor time: it is counted in ticks of a hundredth
LAST_P99 = "last_p99_us"  # of one piece


@dataclass(frozen=True)
class Load:
    program: str
    settings: Mapping[str, int] = field(default_factory=dict)
    before: tuple[str, ...] = ()  # words before its command


class Meter:
    """What a server has used and logged so far."""

    def __init__(self, pid: int, log: Path | None) -> None:
        self._pid, self._log = pid, log
        self._reader = LogReader(log) if log else None

    def read(self) -> "Reading":
        return Reading(processor_seconds(self._pid), machine_seconds())

    @property
    def has_log(self) -> bool:
        return self._reader is not None

    def wait_for(self, offset: int) -> None:
        """Until the log, if there is one, has come so far."""
        deadline = time.monotonic() + LIMIT
        while self.has_log and self.logged < offset:
            if time.monotonic() > deadline:
                raise RunFailed("the log does not come to have what was sent")
            time.sleep(0.001)

    def settle(self) -> None:
        """Until nothing is written, sealed or left to be sealed: that would be others' time."""
        deadline = time.monotonic() + LOG_LIMIT
        if self._log:
            while sum(1 for _ in self._log.glob(f"*{TAIL}")) > 1 and time.monotonic() < deadline:
                time.sleep(SETTLED)
            settle(self._pid, deadline)

    @property
    def logged(self) -> int:
        """Messages that are on disk."""
        return self._reader.next_offset if self._reader else 0


class Reading(NamedTuple):
    server: float
    machine: float


@contextmanager
def up(server: Server, load: Load, bench: Bench) -> Iterator["Sitting"]:
    """A fresh server under load, a piece at a time; after its end the log, if there is one, must hold what was sent."""
    directory = bench.new_directory()
    try:
        with (
            started(server, directory) as (pid, port),
            Generator(load, port, bench.scale.warm_ms, bench.scale.piece_ms) as generator,
        ):
            sitting = Sitting(generator, Meter(pid, server.log_in(directory)))
            yield sitting
        sitting.check_log()
    finally:
        shutil.rmtree(directory, ignore_errors=True)


class Sitting:
    def __init__(self, generator: "Generator", meter: Meter) -> None:
        self._generator, self._meter = generator, meter
        meter.settle()
        self._logged = meter.logged
        self._line: Run = {}
        self._used = Reading(0.0, 0.0)
        self._late = 0.0  # seconds until the log had it
        self._pieces: dict[str, list[float]] = {}

    def go(self) -> None:
        """With a log it ends when the log has what was sent: a rate is one that lasts."""
        before, line = self._meter.read(), self._line
        self._line = self._generator.go()
        ended = time.perf_counter()
        self._meter.wait_for(self._logged + int(self._line["sent"]))
        late = max(0.0, time.perf_counter() - ended - GATHERING)
        self._late += late
        came = self._line["received"] - line.get("received", 0)
        self._piece(OUT, came / (self._line["seconds"] - line.get("seconds", 0.0) + late))
        if LAST_P99 in self._line:
            self._piece(P99, self._line[LAST_P99])
        here = Reading(*(now - then for now, then in zip(self._meter.read(), before, strict=True)))
        self._piece(CPU, here.server / came * 1e6 if came and here.server >= TELLING else 0.0)
        self._used = Reading(*map(sum, zip(self._used, here, strict=True)))
        self._meter.settle()

    def _piece(self, key: str, value: float) -> None:
        self._pieces.setdefault(key, []).append(value)

    def check_log(self) -> None:
        sent, logged = self._line.get("sent", 0), self._meter.logged - self._logged
        if self._meter.has_log and logged < sent:
            raise RunFailed(f"of {sent:,} messages the log holds {logged:,}")

    def figures(self) -> Run:
        run = figures({**self._line, "seconds": self._line["seconds"] + self._late}, self._used)
        return {**run, PIECES: self._pieces}


class Generator:
    """A load generator that has subscribed and warmed up, and goes when it is told."""

    def __init__(self, load: Load, port: int, warm_ms: int, run_ms: int) -> None:
        settings = {"port": port, "warm_ms": warm_ms, "run_ms": run_ms, **load.settings}
        words = (f"{name}={value}" for name, value in settings.items())
        command = [*load.before, str(BUILD / load.program), *words]
        self._limit = LIMIT + run_ms / 1e3
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, start_new_session=True)

    def __enter__(self) -> "Generator":
        try:
            self._heard()
        except RunFailed:
            self._end()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._end()

    def go(self) -> Run:
        """What it has done so far, in all."""
        self.begin()
        return self.done()

    def begin(self) -> None:
        assert self._process.stdin
        self._process.stdin.write(b"\n")
        self._process.stdin.flush()

    def done(self) -> Run:
        line: Run = json.loads(self._heard())
        if not line["received"]:
            raise RunFailed("nothing was received")
        return line

    def _heard(self) -> bytes:
        assert self._process.stdout
        assert self._process.stderr
        limit = Timer(self._limit, self._process.kill)
        limit.start()
        line = self._process.stdout.readline()
        limit.cancel()
        if not line:
            raise RunFailed(self._process.stderr.read().decode(errors="replace").strip() or "it took too long")
        return line

    def _end(self) -> None:
        self._process.kill()
        with self._process:
            pass


def figures(run: Run, used: Reading) -> Run:
    """An answer is a delivery or an acknowledgement."""
    seconds, received, server_cpu = run["seconds"], run["received"], used.server
    others = used.machine - server_cpu - run["generator_cpu_s"]
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
    }
