"""padded history from end to end: SubAck, then all stored messages of the title, then live ones, none twice, none
missing, however fast others publish and however slowly one reads."""

import os
import random
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from flow.house import Broker, wait_for
from flow.lasting import (
    LONG,
    Home,
    PipePublisher,
    Reader,
    SemicolonPublisher,
    helper,
    numbered,
    resident,
    send_all,
    until,
    wait_idle,
)
from flow.test_pairs import DIALECTS, publish
from flow.wires import SUBACK, SmallTcp, alive, delivery, padded, padded_publish, padded_subscriber
from web.calls import get

MB = 1 << 20
SECONDS = 8 if LONG else 2  # that publishers go at full speed


# --- what history is ---


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker() as broker:
        yield broker


def test_history_comes_after_the_suback_in_order_and_then_what_is_live(broker: Broker) -> None:
    expected = []
    for number in range(20):
        for dialect in DIALECTS:
            payload = b"%b %d" % (dialect.encode(), number)
            publish(broker, dialect, b"room/t", payload)
            publish(broker, "pipe", b"room/other", payload)  # acknowledged: the one before it is in its place
            expected.append(payload)
    subscriber = broker.tcp("padded")
    subscriber.send(padded(b"Subscribe", b"room/t"))
    whole = SUBACK + b"".join(delivery(b"room/t", payload) for payload in expected)
    assert subscriber.receive(len(whole)) == whole
    for dialect in DIALECTS:
        publish(broker, dialect, b"room/t", b"live")
        assert subscriber.receive(196) == delivery(b"room/t", b"live")
    assert alive(subscriber), "and nothing else"


def test_typed_numbers_are_their_text_in_history_too(broker: Broker) -> None:
    broker.udp("typed").send(b"n".ljust(50, b"\0") + b"\0\1\0\0\0\x0a")
    broker.udp("typed").send(b"n".ljust(50, b"\0") + b"\1\0\xe6")
    first = Reader(broker, b"n")
    assert first.wait(2)[b"n"] == [b"-10", b"2.30"]
    assert Reader(broker, b"n").wait(2)[b"n"] == [b"-10", b"2.30"]


SIZES = [0, 1, 100, 1_400, 60_000, 600_000, 3 * MB]


def test_large_payloads_come_whole_and_in_order(tmp_path: Path) -> None:
    home = Home(tmp_path)
    payloads = [bytes([65 + number % 26]) * SIZES[number * 5 % len(SIZES)] for number in range(35)]
    with home.broker() as broker:
        send_all(broker, b"large", payloads)
        assert Reader(broker, b"large").wait(len(payloads))[b"large"] == payloads, "from memory and disk"
    with home.broker() as broker:
        assert Reader(broker, b"large").wait(len(payloads))[b"large"] == payloads, "from disk"


def test_history_goes_through_sealed_segments_closed_tails_and_what_is_in_memory(tmp_path: Path) -> None:
    home = Home(tmp_path, "[log]\nseal_rows = 500\n")
    payloads = numbered(range(4_000))
    with home.broker() as broker:
        for number in range(0, 4_000, 1_000):
            sealed = home.sealed()
            send_all(broker, b"t", payloads[number : number + 1_000])
            send_all(broker, b"noise", payloads[:600])
            if number < 2_000:
                wait_for(lambda sealed=sealed: home.sealed() > sealed, "another sealed segment")
        assert Reader(broker, b"t").wait(4_000)[b"t"] == payloads
    with home.broker() as broker:
        send_all(broker, b"t", [b"live"])
        assert Reader(broker, b"t").wait(4_001)[b"t"] == [*payloads, b"live"]


def test_history_outlives_a_restart_and_a_kill(tmp_path: Path) -> None:
    home = Home(tmp_path)
    for round_number in range(2):
        broker = home.broker()
        send_all(broker, b"t", numbered(range(round_number * 100, round_number * 100 + 100)))
        expected = numbered(range(round_number * 100 + 100))
        assert Reader(broker, b"t").wait(len(expected))[b"t"] == expected
        broker.kill()
    with home.broker() as broker:
        assert Reader(broker, b"t").wait(200)[b"t"] == numbered(range(200))


def test_without_a_log_there_is_no_history(tmp_path: Path) -> None:
    home = Home(tmp_path)
    with home.broker("--no-log") as broker:
        send_all(broker, b"t", numbered(range(10)))
        subscriber = padded_subscriber(broker, b"t")
        padded_publish(publisher := broker.tcp("padded"), b"t", b"live")
        assert subscriber.receive(196) == delivery(b"t", b"live"), "and nothing before it"
        padded_publish(publisher, b"t", b"more")
        assert subscriber.receive(196) == delivery(b"t", b"more")
    assert not home.data.exists(), "nothing is written"


def test_subscribing_again_brings_no_history_again_but_a_new_connection_does(broker: Broker) -> None:
    send_all(broker, b"t", numbered(range(5)))
    subscriber = Reader(broker, b"t")
    subscriber.wait(5)
    subscriber.client.send(padded(b"Subscribe", b"t"))
    wait_for(lambda: subscriber.acknowledged == 2, "the second SubAck")
    send_all(broker, b"t", [b"live"])
    assert subscriber.wait(6)[b"t"] == [*numbered(range(5)), b"live"]
    assert Reader(broker, b"t").wait(6)[b"t"] == [*numbered(range(5)), b"live"]


def test_several_titles_on_one_connection_each_with_its_history(tmp_path: Path) -> None:
    """Together they are far more than may wait for a client, and this one does not read at first."""
    home = Home(tmp_path, "[tcp]\noutbox_bytes = 3000000\n")
    titles = [b"title/%d" % number for number in range(40)]
    payloads = numbered(range(200), size=2_000)
    with home.broker() as broker:
        for title in titles:
            send_all(broker, title, payloads)
        subscriber = Reader(broker, *titles, reading=False, client=SmallTcp(broker.ports["padded"]))
        wait_idle(helper(broker))
        subscriber.go_on()
        got = subscriber.wait(len(titles) * len(payloads))
        assert all(got[title] == payloads for title in titles)
        for title in titles:
            send_all(broker, title, [b"live"])
        got = subscriber.wait(len(titles) * (len(payloads) + 1))
        assert all(got[title][-1] == b"live" for title in titles)
        assert not broker.err.has("disconnected"), broker.err.all


# --- the seam ---


class Crowd:
    """Publishers in threads, at full speed until told to stop; each numbers its payloads."""

    def __init__(self, broker: Broker, title: bytes, *kinds: type[PipePublisher]) -> None:
        self.counts: dict[bytes, int] = {}
        self._stop = threading.Event()
        self._threads = [
            threading.Thread(target=self._run, args=(kind(broker.ports["udp"]), title, b"%d" % number), daemon=True)
            for number, kind in enumerate(kinds)
        ]
        for thread in self._threads:
            thread.start()

    def _run(self, publisher: PipePublisher, title: bytes, name: bytes) -> None:
        with publisher:
            number = 0
            while not self._stop.is_set():
                publisher.publish(title, b"%b %d" % (name, number))
                number += 1
        self.counts[name] = number

    def stop(self) -> int:
        """How many there are in all; each was taken by the broker."""
        self._stop.set()
        for thread in self._threads:
            thread.join(30)
        assert len(self.counts) == len(self._threads), "a publisher failed"
        return sum(self.counts.values())

    def complete(self, got: list[bytes]) -> None:
        """Each publisher's messages once, in order, from the first to the last."""
        by_name: dict[bytes, list[int]] = {name: [] for name in self.counts}
        for payload in got:
            name, number = payload.split()
            by_name[name].append(int(number))
        for name, numbers in by_name.items():
            assert numbers == list(range(self.counts[name])), first_difference(numbers, self.counts[name])


def first_difference(numbers: list[int], count: int) -> str:
    wrong = next((at for at, number in enumerate(numbers) if number != at), len(numbers))
    before, after = numbers[max(0, wrong - 3) : wrong], numbers[wrong : wrong + 5]
    return f"of {count} messages {len(numbers)} came; after {before}: {after}"


LITTLE = "[log]\nrecent_bytes = 1000000\n"  # in memory, so that most of it comes from the reading process
SEAM = {"many segments": f"{LITTLE}seal_rows = 3000\n"} | ({"one tail": LITTLE} if LONG else {})


@pytest.mark.parametrize("settings", SEAM.values(), ids=SEAM)
def test_none_is_missing_and_none_comes_twice_across_the_seam(tmp_path: Path, settings: str) -> None:
    home = Home(tmp_path, settings)
    chance = random.Random(11)
    with home.broker() as broker:
        crowd = Crowd(broker, b"seam", PipePublisher, SemicolonPublisher, SemicolonPublisher)
        begin = time.monotonic()
        subscribers = []
        for moment in sorted(chance.uniform(0, SECONDS) for _ in range(5 * SECONDS)):
            until(begin + moment)
            subscribers.append(Reader(broker, b"seam"))
        count = crowd.stop()
        for subscriber in subscribers:
            crowd.complete(subscriber.wait(count, 60)[b"seam"])


# --- slow readers ---


def test_a_slow_reader_falls_back_to_its_cursor_and_slows_nobody(tmp_path: Path) -> None:
    home = Home(tmp_path)
    payloads = numbered(range(30_000), size=1_000)
    with home.broker() as broker:
        slow = Reader(broker, b"t", reading=False, client=SmallTcp(broker.ports["padded"]))
        fast = Reader(broker, b"t")
        wait_for(lambda: fast.acknowledged, "the SubAck")
        before, most = broker.memory(), 0
        for number in range(0, len(payloads), 1_000):
            send_all(broker, b"t", payloads[number : number + 1_000])
            most = max(most, broker.memory())
            fast.wait_some(number + 1_000)
        assert fast.wait(len(payloads))[b"t"] == payloads
        assert most - before < 30 * MB, f"{(most - before) / MB:.0f} MB more for 30 MB that nobody read"
        slow.go_on()
        assert slow.wait(len(payloads))[b"t"] == payloads
        assert broker.memory() - before < 30 * MB
        send_all(broker, b"t", [b"live"])
        assert slow.wait(len(payloads) + 1)[b"t"][-1] == b"live"


def test_a_reader_that_stops_and_goes_on_again_and_again_gets_everything(tmp_path: Path) -> None:
    chance = random.Random(3)
    with Home(tmp_path, f"{LITTLE}seal_rows = 20000\n").broker() as broker:
        crowd = Crowd(broker, b"t", PipePublisher, SemicolonPublisher)
        subscriber = Reader(broker, b"t", client=SmallTcp(broker.ports["padded"]))
        begin = time.monotonic()
        for moment in sorted(chance.uniform(0, SECONDS) for _ in range(10 * SECONDS)):
            until(begin + moment)
            (subscriber.pause if chance.random() < 0.5 else subscriber.go_on)()
        subscriber.go_on()
        count = crowd.stop()
        crowd.complete(subscriber.wait(count, 60)[b"t"])


def test_many_subscribers_at_once_get_the_same_history_while_live_traffic_goes_on(tmp_path: Path) -> None:
    """Most of it is in memory. How long live messages wait meanwhile is for the bench."""
    with Home(tmp_path).broker() as broker:
        send_all(broker, b"t", numbered(range(500)))
        send_all(broker, b"noise", numbered(range(19_000)))
        listener = broker.udp()
        assert listener.ask(b"S|live") == b"Hello Subscriber!"
        readers = []
        for _ in range(200):
            readers.append(Reader(broker, b"t"))
            listener.send(b"plive;x")
            assert listener.receive() == b"TOPIC: live - MESSAGE: x"
        assert all(reader.wait(500)[b"t"] == numbered(range(500)) for reader in readers)


# --- the reading process ---


def test_the_reading_process_may_be_killed_at_any_time(tmp_path: Path) -> None:
    home = Home(tmp_path, f"{LITTLE}seal_rows = 10000\n")
    payloads = numbered(range(40_000), size=300)
    with home.broker() as broker:
        send_all(broker, b"t", payloads)
        readers = [Reader(broker, b"t", client=SmallTcp(broker.ports["padded"])) for _ in range(2)]
        for part in (0.1, 0.7):
            readers[0].wait_some(int(part * len(payloads)))
            os.kill(helper(broker), signal.SIGKILL)
        send_all(broker, b"t", [b"live"])
        for reader in readers:
            assert reader.wait(len(payloads) + 1)[b"t"] == [*payloads, b"live"]
        broker.err.wait("the process that reads history ended")
        assert resident(helper(broker)) < 300 * MB


DEADLY = """
import os, sys
if "smbroker.log.history" in sys.orig_argv:
    from smbroker.log import sealed
    class Deadly(sealed.SealedFile):
        def __init__(self, disk, directory, base, plain=True):
            if not base:
                os.abort()
            super().__init__(disk, directory, base, plain)
    sealed.SealedFile = Deadly
"""


def test_damage_that_ends_the_reading_process_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first segment does, as one whose Parquet footer is damaged may; what follows it can be read."""
    home = Home(tmp_path, "[log]\nseal_rows = 100\n[web]\nmetric_topics = 5\n", kinds=("udp", "padded", "web"))
    payloads = numbered(range(100))
    with home.broker() as broker:
        send_all(broker, b"t", payloads)
        wait_for(lambda: home.sealed() == 1, "a sealed segment")
        send_all(broker, b"t", payloads)
    (tmp_path / "sitecustomize.py").write_text(DEADLY)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")]))
    with home.broker() as broker:
        reader = Reader(broker, b"t")
        assert reader.wait(100)[b"t"] == payloads
        said = get(broker, "/v1/messages")
        assert (said.status, said.code) == (503, "damaged")
        said = get(broker, "/v1/topics")
        assert (said.status, said.code) == (503, "damaged")
        broker.err.wait("history from offset 0 on ended the process that reads it twice: it is given up")
        broker.err.wait("cannot count the topics")
        wait_idle(process := helper(broker))
        assert [row["text"].encode() for row in get(broker, "/v1/messages?from=100").rows] == payloads
        assert get(broker, "/v1/topics").status == 503
        assert get(broker, "/metrics").status == 200
        send_all(broker, b"t", [b"live"])
        assert reader.wait(101)[b"t"] == [*payloads, b"live"]
        assert helper(broker) == process, "and it runs on"


DEADLY_ONCE = """
import os, sys
if "smbroker.log.history" in sys.orig_argv:
    from smbroker.log.census import Census
    advance = Census.advance
    def deadly(*arguments):
        if os.path.exists(os.environ["DEADLY"]):
            os.unlink(os.environ["DEADLY"])
            os.abort()
        advance(*arguments)
    Census.advance = deadly
"""


def test_a_count_of_the_topics_that_went_on_after_a_death_is_not_given_up_at_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = Home(tmp_path, kinds=("udp", "padded", "web"))
    (tmp_path / "sitecustomize.py").write_text(DEADLY_ONCE)
    deadly = tmp_path / "deadly"
    monkeypatch.setenv("DEADLY", str(deadly))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")]))
    with home.broker() as broker:
        send_all(broker, b"t", numbered(range(10)))
        for _ in range(3):
            deadly.touch()
            assert get(broker, "/v1/topics").status == 200
            assert not deadly.exists()


def test_the_reading_process_ends_with_the_broker(tmp_path: Path) -> None:
    home = Home(tmp_path)
    for end in ("stop", "kill"):
        broker = home.broker()
        process = helper(broker)
        getattr(broker, end)()
        wait_for(lambda process=process: not Path(f"/proc/{process}").exists(), "the end of the reading process")


# --- the end ---


def test_stopping_under_load_keeps_all_that_was_acknowledged(tmp_path: Path) -> None:
    home = Home(tmp_path)
    acknowledged = []
    with home.broker() as broker:
        publishers = [broker.tcp("padded") for _ in range(4)]
        subscriber = Reader(broker, b"t")

        def publish_on(index: int) -> None:
            try:
                for count in range(100_000):
                    payload = b"%d %d" % (index, count)
                    padded_publish(publishers[index], b"t", payload)
                    acknowledged.append(payload)
            except (OSError, AssertionError):
                pass  # the broker has gone

        threads = [threading.Thread(target=publish_on, args=(index,), daemon=True) for index in range(4)]
        for thread in threads:
            thread.start()
        subscriber.wait_some(2_000)
        assert broker.stop() == 0
        for thread in threads:
            thread.join(10)
        assert not broker.err.has("a bug in the broker"), broker.err.all
    kept = [payload for (payload,) in home.rows("payload")]
    assert set(acknowledged) <= set(kept)
    assert len(kept) == len(set(kept))
