"""What an open page costs the broker, and how the page fares while much flows; the log is on.

Cost: every topic changes once a second, all in one write so that the messages themselves cost little, in rounds that
take turns between no page and each view. A page is read here as Chromium would read it (its stream, and what the view
asks every two seconds) but by a plain socket, so that the figure is the broker's alone. Told is the broker's processor
time for a second beyond that without a page, as a share of a core: the share of the broker's throughput, which one
core bounds, that the page takes. What a page costs does not grow with the rate of messages.

Page: a real Chromium (needs playwright) while messages flow at a rate: the time from a click or key to the next paint,
as the browser itself tells it, the page's memory, and whether the broker kept the rate.
"""

import http.client
import json
import shutil
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

import loads
from rounds import Bench, Run, RunFailed
from servers import SMBBROKER, free_port, processor_seconds, running, settle

from smbroker.dialects.mqtt.packets import Connect, Publish

if TYPE_CHECKING:
    from playwright.sync_api import Page

TOPICS = 5_000
RATE = 100_000  # messages a second while the page is used …
FLOWING = 30.0  # … for so many seconds
WATCHED = 8.0  # seconds of processor time of one view
NO_PAGE = "no page"
POLL = 2.0  # seconds between the questions of a view
VIEWS = {  # the stream that a view opens, and what it asks for every two seconds
    "overview": ("/v1/live?", ""),
    "tail": ("/v1/live?tail=1", ""),
    "tail, filter": ("/v1/live?filter=bench/%2B&tail=1", ""),
    "topics": ("/v1/live?", "/v1/topics?since_offset={}&limit=20000&characters=120"),
    "clients": ("/v1/live?", "/v1/clients?limit=500"),
}


class Reader:
    """A page without a browser."""

    def __init__(self, port: int, stream: str, asked: str) -> None:
        self._port, self._asked = port, asked
        self._over = threading.Event()
        self._connection = http.client.HTTPConnection("127.0.0.1", port)
        self._connection.request("GET", stream)
        self._answer = self._connection.getresponse()
        assert self._answer.status == 200, self._answer.read()
        self._threads = [threading.Thread(target=self._read, daemon=True)]
        if asked:
            self._threads.append(threading.Thread(target=self._poll, daemon=True))
        for thread in self._threads:
            thread.start()

    def _read(self) -> None:
        try:
            while not self._over.is_set() and self._answer.readline():
                pass
        except (OSError, ValueError, AttributeError):
            pass

    def _poll(self) -> None:
        since = 0
        while not self._over.is_set():
            connection = http.client.HTTPConnection("127.0.0.1", self._port)
            connection.request("GET", self._asked.format(since))
            found = json.loads(connection.getresponse().read())
            connection.close()
            if isinstance(found, list):
                since = max([since, *(one["last_offset"] + 1 for one in found)])
            self._over.wait(POLL)

    def close(self) -> None:
        self._over.set()
        if self._connection.sock:
            self._connection.sock.shutdown(2)


@contextmanager
def broker(directory: Path) -> Iterator[tuple[int, int, int]]:
    """Process, port of MQTT, port of the page."""
    mqtt, web = free_port(), free_port()
    kept = ["--data", str(directory / "data")]
    listen = ["--listen", f"mqtt://127.0.0.1:{mqtt}", "--listen", f"web://127.0.0.1:{web}"]
    with running([str(SMBBROKER), "--quiet", *kept, *listen], directory) as process:
        deadline = time.monotonic() + 20
        while time.monotonic() < deadline:
            try:
                asked(web, "/health")
                break
            except OSError:
                time.sleep(0.05)
        settle(process.pid, deadline)
        yield process.pid, mqtt, web


def asked(port: int, path: str) -> dict:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    connection.request("GET", path)
    found: dict = json.loads(connection.getresponse().read())
    connection.close()
    return found


@contextmanager
def flowing(port: int, seconds: float, **settings: int) -> Iterator[Callable[[], dict]]:
    """Messages for so long; gives what tells, at their end, how many there were."""
    load = loads.Load("mqtt_load", {"topics": TOPICS, **settings})
    with loads.Generator(load, port, 500, int(seconds * 1000)) as generator:
        generator.begin()
        yield generator.done


# --- cost ---


@contextmanager
def changing(port: int) -> Iterator[None]:
    """Every topic gets a message once a second."""
    over = threading.Event()
    batch = b"".join(Publish(b"bench/%d" % number, b"%064d" % number).encode(4) for number in range(TOPICS))
    with socket.create_connection(("127.0.0.1", port)) as client:
        client.sendall(Connect(4, "changing").encode())
        client.recv(4)

        def send() -> None:
            while not over.wait(1):
                client.sendall(batch)

        thread = threading.Thread(target=send)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()


def cost(bench: Bench) -> Run:
    """Of each view the share of a core that it takes, by the medians of the rounds."""
    directory = bench.new_directory()
    taken: dict[str, list[float]] = {name: [] for name in (NO_PAGE, *VIEWS)}
    try:
        with broker(directory) as (pid, mqtt, web), changing(mqtt):
            for number in range(bench.rounds + 1):
                for name in taken:
                    with ExitStack() as open_:
                        if name in VIEWS:
                            open_.callback(Reader(web, *VIEWS[name]).close)
                        before, since = processor_seconds(pid), time.monotonic()
                        time.sleep(WATCHED)
                        used = (processor_seconds(pid) - before) / (time.monotonic() - since)
                    if number:  # the first one warms up
                        taken[name].append(used)
    finally:
        shutil.rmtree(directory, ignore_errors=True)
    without = taken.pop(NO_PAGE)
    return {
        name: max(0.0, median(run - other for run, other in zip(runs, without, strict=True)))
        for name, runs in taken.items()
    }


# --- the page itself ---

WATCH = """
window.delays = [];
new PerformanceObserver((list) => {
  for (const one of list.getEntries()) if (one.interactionId) window.delays.push(one.duration);
}).observe({ type: "event", durationThreshold: 16, buffered: true });
"""


def missing() -> str:
    if not chromium():
        return "there is no Chromium; on Debian: apt-get install chromium"
    return "" if find_spec("playwright") else "playwright is not installed: pip install playwright"


def chromium() -> str | None:
    return next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


def page(bench: Bench) -> Run:
    from playwright.sync_api import Error, sync_playwright

    directory = bench.new_directory()
    heaps: list[float] = []
    try:
        with broker(directory) as (_, mqtt, web), sync_playwright() as playwright:
            browser = playwright.chromium.launch(executable_path=chromium(), args=["--no-sandbox"])
            tab = browser.new_page()
            tab.goto(f"http://127.0.0.1:{web}/#/")
            tab.evaluate(WATCH)
            session = tab.context.new_cdp_session(tab)
            session.send("Performance.enable")
            session.send("HeapProfiler.enable")
            with flowing(mqtt, FLOWING, rate=RATE, window=100_000) as ended:
                until = time.monotonic() + FLOWING - 1
                while time.monotonic() < until:
                    for name in ("Overview", "Topics", "Tail", "Clients"):
                        use(tab, name)
                        session.send("HeapProfiler.collectGarbage")
                        found = {one["name"]: one["value"] for one in session.send("Performance.getMetrics")["metrics"]}
                        heaps.append(found["JSHeapUsedSize"])
                line = ended()
            delays = tab.evaluate("window.delays")
            browser.close()
    except Error as error:
        raise RunFailed(f"the browser failed: {error.message}") from error
    finally:
        shutil.rmtree(directory, ignore_errors=True)
    return {
        "slowest_ms": max(delays, default=0.0),
        "heap_bytes": max(heaps),
        "kept_share": line["sent"] / line["seconds"] / RATE,
    }


def use(tab: "Page", name: str) -> None:
    """Goes to a view by clicking, and does there what people do."""
    tab.get_by_role("link", name=name, exact=True).click()
    if name == "Topics":
        box = tab.get_by_label("Search topics")
        for key in "0001":
            box.press(key)
            tab.wait_for_timeout(60)
    if name == "Tail":
        for _ in range(2):
            tab.locator(".bar button").first.click()
    tab.wait_for_timeout(1_000)
