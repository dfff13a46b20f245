"""What an open page costs the broker, and how the page fares while much flows: `python bench/page.py --help`.

Cost: every topic changes once a second, all in one write so that the messages themselves cost little, in rounds that
take turns between no page and each view. A page is read here as Chromium would read it (its stream, and what the view
asks every two seconds) but by a plain socket, so that the figure is the broker's alone. Told is the broker's processor
time for a second beyond that without a page, as a share of a core: the share of the broker's throughput, which one
core bounds, that the page takes. What a page costs does not grow with the rate of messages.

Page: a real Chromium (needs playwright) while messages flow at a rate: the time from a click or key to the next paint,
as the browser itself tells it, the page's memory, and whether the broker kept the rate.
"""

import argparse
import http.client
import json
import shutil
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import median

import loads
from servers import SMBBROKER, free_port, processor_seconds, running, settle

from smbroker.dialects.mqtt.packets import Connect, Publish

TOPICS = 5_000
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
def broker(directory: Path, *, log: bool) -> Iterator[tuple[int, int, int]]:
    """Process, port of MQTT, port of the page."""
    mqtt, web = free_port(), free_port()
    kept = ["--data", str(directory / "data")] if log else ["--no-log"]
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


def cost(rounds: int, seconds: float, log: bool, directory: Path) -> None:
    taken: dict[str, list[float]] = {name: [] for name in ("no page", *VIEWS)}
    with broker(directory, log=log) as (pid, mqtt, web), changing(mqtt):
        for number in range(rounds + 1):
            for name in taken:
                with ExitStack() as open_:
                    if name in VIEWS:
                        open_.callback(Reader(web, *VIEWS[name]).close)
                    before, since = processor_seconds(pid), time.monotonic()
                    time.sleep(seconds)
                    used = (processor_seconds(pid) - before) / (time.monotonic() - since)
                if number:  # the first one warms up
                    taken[name].append(used * 100)
            say(f"round {number}/{rounds}")
    base = taken["no page"]
    print(f"\n| page ({'log on' if log else 'log off'}) | broker, % of a core | more than with no page |")
    print("|---|--:|--:|")
    for name, runs in taken.items():
        more = spread([run - other for run, other in zip(runs, base, strict=True)])
        print(f"| {name} | {median(runs):.2f} | {more} |")


def spread(values: list[float]) -> str:
    return f"**{median(values):.2f}** ({min(values):.2f}–{max(values):.2f})"


# --- the page itself ---

WATCH = """
window.delays = [];
new PerformanceObserver((list) => {
  for (const one of list.getEntries()) if (one.interactionId) window.delays.push(one.duration);
}).observe({ type: "event", durationThreshold: 16, buffered: true });
"""


def page(rate: int, seconds: float, log: bool, directory: Path) -> None:
    from playwright.sync_api import sync_playwright

    chromium = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    with broker(directory, log=log) as (_, mqtt, web), sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        tab = browser.new_page()
        tab.goto(f"http://127.0.0.1:{web}/#/")
        tab.evaluate(WATCH)
        session = tab.context.new_cdp_session(tab)
        session.send("Performance.enable")
        session.send("HeapProfiler.enable")
        sizes: dict[str, list[tuple[float, int]]] = {}
        count = 0
        with flowing(mqtt, seconds, subscribers=0, rate=rate) as ended:
            until = time.monotonic() + seconds - 1
            while time.monotonic() < until:
                for name in ("Overview", "Topics", "Tail", "Clients"):
                    count += used(tab, name)
                    session.send("HeapProfiler.collectGarbage")
                    found = {one["name"]: one["value"] for one in session.send("Performance.getMetrics")["metrics"]}
                    sizes.setdefault(name, []).append((found["JSHeapUsedSize"], int(found["Nodes"])))
            line = ended()
        delays = sorted(tab.evaluate("window.delays"))
        told = asked(web, "/v1/stats")
        browser.close()
    slow = [delay for delay in delays if delay > 100]
    known = delays or [0.0]
    print(
        f"\n{rate:,} messages/s over {TOPICS:,} topics offered for {seconds:g} s, {'log on' if log else 'log off'}: "
        f"{line['sent'] / line['seconds']:,.0f}/s were sent, {told['received'].get('mqtt', 0):,} received"
    )
    print(
        f"interactions: {count}; those of 16 ms or more: {len(delays)}; to the next paint, of these: median "
        f"{median(known):.0f} ms, p99 {known[int(len(known) * 0.99) - 1]:.0f} ms, "
        f"most {known[-1]:.0f} ms; above 100 ms: {len(slow)}"
    )
    for name, each in sizes.items():
        heaps, nodes = [heap / 1e6 for heap, _ in each], [nodes for _, nodes in each]
        print(
            f"{name}: heap {heaps[0]:.1f} MB at first, {heaps[-1]:.1f} at last, {max(heaps):.1f} at most; "
            f"nodes {nodes[0]}, {nodes[-1]}, {max(nodes)}"
        )


def used(tab: "object", name: str) -> int:
    """Goes to a view by clicking, and uses it as people do; how many clicks and keys that were."""
    tab.get_by_role("link", name=name, exact=True).click()  # type: ignore[attr-defined]
    count = 1
    if name == "Topics":
        box = tab.get_by_label("Search topics")  # type: ignore[attr-defined]
        for key in "0001":
            box.press(key)
            tab.wait_for_timeout(60)  # type: ignore[attr-defined]
            count += 1
    if name == "Tail":
        for _ in range(2):
            tab.locator(".bar button").first.click()  # type: ignore[attr-defined]
            count += 1
    tab.wait_for_timeout(1_000)  # type: ignore[attr-defined]
    return count


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(prog="bench/page.py", description=__doc__.partition("\n")[0])
    add = parser.add_argument
    add("what", choices=("cost", "page"))
    add("--rounds", type=int, default=10, help="of cost")
    add("--seconds", type=float, help="of one run (cost: 8, page: 30)")
    add("--rate", type=int, default=100_000, help="messages a second, for page")
    add("--no-log", action="store_true")
    add("--directory", type=Path, default=loads.BUILD, help="on the disk that the log goes to")
    options = parser.parse_args()
    if trouble := loads.trouble(True):
        sys.exit(trouble)
    options.directory.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=options.directory, prefix="page-") as directory:
        if options.what == "cost":
            cost(options.rounds, options.seconds or 8, not options.no_log, Path(directory))
        else:
            page(options.rate, options.seconds or 30, not options.no_log, Path(directory))


if __name__ == "__main__":
    main()
