"""What takes long or many: idle connections, and the soak."""

import shutil
import socket
import threading
import time
from pathlib import Path
from statistics import median

from loads import LAST_P99, Generator, Load, Meter
from rounds import Bench, Run, RunFailed
from servers import Broker, Server, started

CONNECTIONS = 2_000
MOST_MS = 2_000  # to find out what the broker can do, before the soak
PARTS = 10  # of the soak; the first and the last are compared
PIECE = 5.0  # seconds: a part's p99 and memory are the medians of its pieces', to tell of drift and not of a moment
WINDOW = 2_000
CHURN = 0.05  # seconds between clients that come and go
PAGE = 4_096


def connect(name: str) -> bytes:
    body = b"\0\4MQTT\4\2\0\0" + len(name).to_bytes(2, "big") + name.encode()
    return bytes((0x10, len(body))) + body


def memory(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * PAGE


def connections(server: Server, bench: Bench) -> Run:
    """Connects them one after the other, each as soon as the one before it is known."""
    directory = bench.new_directory()
    try:
        with started(server, directory) as (pid, port):
            before, begun = memory(pid), time.perf_counter()
            open_ = [connected(port, f"idle{number}") for number in range(CONNECTIONS)]
            seconds = time.perf_counter() - begun
            grown = memory(pid) - before
            for sock in open_:
                sock.close()
    finally:
        shutil.rmtree(directory, ignore_errors=True)
    return {"per_s": CONNECTIONS / seconds, "bytes_each": grown / CONNECTIONS}


def connected(port: int, name: str) -> socket.socket:
    sock = socket.create_connection(("127.0.0.1", port), timeout=10)
    sock.sendall(connect(name))
    if sock.recv(4) != b"\x20\2\0\0":
        raise RunFailed("a connection was refused")
    return sock


class Comers:
    """Clients that come, subscribe, and go."""

    def __init__(self, port: int) -> None:
        self._port, self.count, self._over = port, 0, threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._over.wait(CHURN):
            with connected(self._port, f"comer{self.count}") as sock:
                sock.sendall(b"\x82\x0a\0\1\0\5other\0")
                sock.recv(5)
            self.count += 1

    def stop(self) -> None:
        self._over.set()
        self._thread.join(10)


def soak(bench: Bench) -> Run:
    """First what it can do, then half of that for so many minutes, in parts."""
    server, directory = Broker("mqtt", log=True), bench.new_directory()
    try:
        with started(server, directory) as (pid, port):
            meter = Meter(pid, server.log_in(directory))
            with Generator(Load("mqtt_load", {"qos": 1, "window": WINDOW}), port, bench.scale.warm_ms, MOST_MS) as best:
                most = best.go()
            rate = int(most["received"] / most["seconds"] / 2)
            comers, logged = Comers(port), meter.logged
            runs = []
            for part in range(1, PARTS + 1):
                run = part_of(pid, port, rate, bench.soak * 60 / PARTS)
                runs.append(run)
                p99, worst, size = run["p99_us"], run["worst_us"], run["memory"] / 1e6
                told = f"p99 {p99:,.0f} µs, at its worst {worst:,.0f}, {size:.0f} MB, {run['lost']} lost"
                bench.say(f"  part {part}/{PARTS}: {told}")
            comers.stop()
            missing = sum(run["sent"] for run in runs) - (meter.logged - logged)
    finally:
        shutil.rmtree(directory, ignore_errors=True)
    first, last = runs[1], runs[-1]  # the first part fills caches
    p99s = [run["p99_us"] for run in runs[1:]]
    third = len(p99s) // 3
    return {
        "offered_per_s": rate,
        "lost": sum(run["lost"] for run in runs),
        "missing": max(0, missing),
        "memory_growth": last["memory"] / first["memory"],
        "p99_first_us": median(p99s[:third]),
        "p99_last_us": median(p99s[-third:]),
        "p99_growth": median(p99s[-third:]) / median(p99s[:third]),
        "p99_worst_us": max(run["worst_us"] for run in runs),
        "came_and_went": comers.count,
    }


def part_of(pid: int, port: int, rate: int, seconds: float) -> Run:
    load, pieces = Load("mqtt_load", {"qos": 1, "rate": rate, "window": 50_000}), max(1, round(seconds / PIECE))
    with Generator(load, port, 0, max(int(seconds / pieces * 1000), 200)) as generator:
        lines = [generator.go() | {"memory": memory(pid)} for _ in range(pieces)]
    p99s = [line[LAST_P99] for line in lines]
    return lines[-1] | {
        "p99_us": median(p99s),
        "worst_us": max(p99s),
        "memory": median(line["memory"] for line in lines),
    }
