"""`smb up` with the pipelines that come with it and one that passes messages on: how soon, how steadily, how much.

idle     from a publish to the derived message at its subscriber, one at a time
flow     how often `$stats/TOPIC` changes while a topic speaks
load     20,000 messages/s over 1,000 topics: how far behind the pipelines are halfway and at the end
"""

import json
import shutil
import socket
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from statistics import median

from lasting import connected
from loads import Generator, Load
from rounds import Bench, Run, RunFailed
from servers import free_port, running

SMB = Path(sys.executable).parent / "smb"
PASSED_ON = "-- from: bench/idle\n-- topic: derived/idle\nSELECT payload FROM messages\n"
HEARD = 100  # messages whose way is timed
FLOW, PAUSE = 20.0, 0.05  # seconds that a topic speaks, and between its messages
RATE, TOPICS, LOADED = 20_000, 1_000, 60.0
PATIENCE = 180.0


def pipelines(bench: Bench) -> Run:
    directory = bench.new_directory()
    (directory / "pipelines").mkdir()
    (directory / "pipelines" / "passed.sql").write_text(PASSED_ON)
    mqtt, web = free_port(), free_port()
    listen = [word for each in (f"mqtt://127.0.0.1:{mqtt}", f"web://127.0.0.1:{web}") for word in ("--listen", each)]
    places = ["--data", str(directory / "data"), "--pipelines", str(directory / "pipelines")]
    try:
        with running([str(SMB), "up", "--quiet", *places, *listen], directory):
            wait_until(lambda: running_in(web) == 4, "the pipelines do not run")
            return {**idle(mqtt), **flow(mqtt), **load(mqtt, web)}
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def idle(mqtt: int) -> Run:
    with subscribed(mqtt, "derived/#") as heard, connected(mqtt, "publisher") as to:
        waits = []
        for number in range(-10, HEARD):  # the first ones warm up
            began = time.perf_counter()
            publish(to, "bench/idle", f"<{number}>")
            while f"<{number}>".encode() not in (found := heard()):
                if not found:
                    raise RunFailed("a derived message does not come")
            waits.append(time.perf_counter() - began)
    waits = sorted(waits[10:])
    return {"derived_p50_s": median(waits), "derived_p95_s": waits[len(waits) * 95 // 100]}


def flow(mqtt: int) -> Run:
    updates: list[float] = []
    with subscribed(mqtt, "$stats/bench/flow") as heard, connected(mqtt, "publisher") as to:
        deadline = time.perf_counter() + FLOW
        while time.perf_counter() < deadline:
            publish(to, "bench/flow", "21.5")
            if heard(PAUSE):
                updates.append(time.perf_counter())
    if len(updates) < 3:
        raise RunFailed("there are no statistics")
    return {"stats_gap_s": max(later - before for before, later in pairwise(updates))}


def load(mqtt: int, web: int) -> Run:
    settings = {"rate": RATE, "topics": TOPICS, "window": 100_000}
    with Generator(Load("mqtt_load", settings), mqtt, 0, int(LOADED / 2 * 1_000)) as generator:
        generator.go()
        halfway = backlog(web)
        generator.go()
        end = backlog(web)
    began = time.perf_counter()
    wait_until(lambda: backlog(web) == 0, "the pipelines do not catch up")
    return {
        "halfway_s": halfway / RATE,
        "end_s": end / RATE,
        "caught_up_s": time.perf_counter() - began,
    }


# --- what the broker tells ---


def told(web: int) -> list[dict]:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{web}/v1/pipelines", timeout=10) as answer:
            found: list[dict] = json.load(answer)["pipelines"]
            return found
    except OSError:
        return []


def running_in(web: int) -> int:
    return sum(one["state"] == "running" for one in told(web))


def backlog(web: int) -> int:
    """Of the pipeline that is furthest behind."""
    return max(one["backlog"] or 0 for one in told(web))


def wait_until(condition: Callable[[], bool], text: str) -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        if time.monotonic() > deadline:
            raise RunFailed(text)
        time.sleep(0.2)


# --- MQTT ---


def publish(sock: socket.socket, topic: str, text: str) -> None:
    body = len(topic).to_bytes(2, "big") + topic.encode() + text.encode()
    sock.sendall(bytes((0x30, len(body))) + body)


@contextmanager
def subscribed(port: int, filter_: str) -> Iterator[Callable[..., bytes]]:
    with connected(port, "subscriber") as sock:
        body = b"\0\1" + len(filter_).to_bytes(2, "big") + filter_.encode() + b"\0"
        sock.sendall(bytes((0x82, len(body))) + body)
        sock.recv(5)

        def heard(wait: float = PATIENCE) -> bytes:
            """What comes next; nothing if nothing comes."""
            sock.settimeout(wait)
            try:
                return sock.recv(1 << 16)
            except TimeoutError:
                return b""

        yield heard
