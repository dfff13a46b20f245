import time
from pathlib import Path
from threading import Event, Thread

import pytest
from logkit import FailingDisk, QuickDisk, texts_of, turn

from smbroker.log import arrays, few
from smbroker.log import writer as writer_module
from smbroker.log.disk import Disk
from smbroker.log.log import Log
from smbroker.log.settings import LogSettings
from smbroker.log.writer import Entry, Writer
from smbroker.model.errors import LogError


class Heard:
    """What the callbacks were told."""

    def __init__(self) -> None:
        self.commits: list[list[Entry]] = []
        self.refused: list[tuple[list[Entry], LogError]] = []
        self.states: list[LogError | None] = []
        self.changed = Event()

    def on_commit(self, entries: list[Entry]) -> None:
        self.commits.append(entries)
        self.changed.set()

    def on_refuse(self, entries: list[Entry], error: LogError) -> None:
        self.refused.append((entries, error))
        self.changed.set()

    def on_state(self, error: LogError | None) -> None:
        self.states.append(error)
        self.changed.set()

    def wait(self) -> None:
        assert self.changed.wait(60)
        self.changed.clear()


def until_it_rests(writer: Writer) -> None:
    deadline = time.monotonic() + 60
    while not writer.rests:
        assert time.monotonic() < deadline
        time.sleep(0.0005)


def begun(directory: Path, disk: Disk, heard: Heard, settings: LogSettings | None = None) -> tuple[Log, Writer]:
    log = Log.open(directory, settings, disk)
    return log, Writer(log, heard.on_commit, heard.on_refuse, heard.on_state, retry=0.01)


def test_what_queues_up_is_committed_together_and_in_order(tmp_path: Path) -> None:
    class SlowDisk(QuickDisk):
        gate = Event()

        def sync_data(self, handle: int) -> None:  # noqa: ARG002
            assert self.gate.wait(60)

    disk, heard = SlowDisk(), Heard()
    disk.gate.set()
    log, writer = begun(tmp_path, disk, heard)
    disk.gate.clear()
    entries = [writer.submit(turn([f"{number}", "x"]), ticket=number) for number in range(50)]
    assert writer.queued_bytes == sum(entry.size for entry in entries)
    disk.gate.set()
    writer.close()
    assert len(heard.commits) <= 3
    assert [entry for commit in heard.commits for entry in commit] == entries
    assert [entry.offset for entry in entries] == list(range(0, 100, 2))
    assert [entry.ticket for entry in entries] == list(range(50))
    assert writer.queued_bytes == 0
    assert texts_of(log)[::2] == [f"{number}" for number in range(50)]
    with pytest.raises(LogError):
        writer.submit(turn(["late"]))
    log.close()


def test_many_threads_may_submit(tmp_path: Path) -> None:
    heard = Heard()
    log, writer = begun(tmp_path, QuickDisk(), heard, LogSettings(seal_rows=100, seal_age=0))
    threads = [
        Thread(target=lambda n=number: [writer.submit(turn([f"{n}.{i}"])) for i in range(100)]) for number in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    writer.close()
    texts = texts_of(log)
    for number in range(4):
        assert [text for text in texts if text.startswith(f"{number}.")] == [f"{number}.{i}" for i in range(100)]
    assert log.pending_seals, "the writer rotates"
    log.close()


@pytest.mark.parametrize("hurried", [False, True])
def test_the_thread_rests_during_a_commit_only_if_nobody_waits_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hurried: bool
) -> None:
    monkeypatch.setattr(writer_module, "REST", 600.0)
    heard = Heard()
    log, writer = begun(tmp_path, QuickDisk(), heard)
    with writer._changed:  # both go into one commit
        writer.submit(turn(["a"]), hurried=False)
        writer.submit(turn(["b"]), hurried=hurried)
    rests, deadline = 0, time.monotonic() + 60
    while not heard.changed.wait(0.001):
        assert time.monotonic() < deadline
        if writer.rests:
            rests += 1
            writer.gap()
    assert bool(rests) is not hurried
    writer.close()
    assert texts_of(log) == ["a", "b"]
    log.close()


def test_without_a_gap_the_thread_goes_on_by_itself(tmp_path: Path) -> None:
    heard = Heard()
    log, writer = begun(tmp_path, QuickDisk(), heard)
    writer.submit(turn(["a"]), hurried=False)
    heard.wait()
    writer.close()
    log.close()


@pytest.mark.parametrize("way", ["an entry", "a word", "the end"])
def test_the_thread_does_not_rest_while_somebody_waits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    monkeypatch.setattr(writer_module, "REST", 600.0)
    heard = Heard()
    log, writer = begun(tmp_path, QuickDisk(), heard)
    writer.submit(turn(["a"]), hurried=False)
    until_it_rests(writer)
    closing = Thread(target=writer.close, daemon=True)
    if way == "an entry":
        writer.submit(turn(["b"]), hurried=True)
    elif way == "a word":
        writer.hurry()
    else:
        closing.start()
    heard.wait()
    if way != "the end":
        closing.start()
    closing.join(60)
    assert not closing.is_alive()
    log.close()


def test_rests_are_not_counted_as_time_of_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer_module, "REST", 0.2)
    seconds: list[float] = []
    heard, log = Heard(), Log.open(tmp_path, None, QuickDisk())
    writer = Writer(log, heard.on_commit, heard.on_refuse, appended=seconds.append)
    writer.submit(turn(["a"]), hurried=False)
    heard.wait()
    assert seconds[0] < writer._rested
    writer.close()
    log.close()


def test_a_gap_that_comes_when_a_rest_is_over_harms_nothing(tmp_path: Path) -> None:
    log, writer = begun(tmp_path, QuickDisk(), Heard())
    for _ in range(2):  # as if the thread had just given up waiting
        writer.rests = True
        writer.gap()
    assert not writer.rests
    writer.close()
    log.close()


def test_a_failing_disk_refuses_at_once_and_recovers_by_itself(tmp_path: Path) -> None:
    disk, heard = FailingDisk(), Heard()
    log, writer = begun(tmp_path, disk, heard)
    writer.submit(turn(["before"]))
    heard.wait()
    disk.at, disk.sticky = disk.calls + 1, True
    writer.submit(turn(["failed"]))
    while not heard.refused:
        heard.wait()
    assert writer.failed
    assert writer.failed.code == "disk"
    assert isinstance(heard.states[0], LogError)
    writer.submit(turn(["refused"]))
    while len(heard.refused) < 2:
        heard.wait()
    disk.heal()
    while len(heard.states) < 2:
        heard.wait()
    assert heard.states[1] is None
    writer.submit(turn(["after"]))
    writer.close()
    assert texts_of(log) == ["before", "after"]
    assert writer.queued_bytes == 0
    log.close()


def test_a_clock_that_is_set_back_does_not_keep_a_disk_from_being_tried_again(tmp_path: Path) -> None:
    disk, heard, ahead = FailingDisk(), Heard(), 3_600.0
    log = Log.open(tmp_path, None, disk)
    clock = lambda: time.time() + ahead  # noqa: E731
    writer = Writer(log, heard.on_commit, heard.on_refuse, heard.on_state, retry=0.01, clock=clock)
    disk.at, disk.sticky = disk.calls + 1, True
    writer.submit(turn(["failed"]))
    while not heard.refused:
        heard.wait()
    ahead = 0.0
    disk.heal()
    while len(heard.states) < 2:
        heard.wait()
    writer.close()
    log.close()


def test_a_message_too_large_for_the_log_is_refused_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arrays, "MAX_MESSAGE", 100)
    monkeypatch.setattr(arrays, "MAX_BYTES", 50)
    monkeypatch.setattr(few, "SOON_BYTES", 50)
    heard = Heard()
    log, writer = begun(tmp_path, QuickDisk(), heard)
    for text in ("a", "x" * 200, "b"):
        writer.submit(turn([text]))
    writer.close()
    assert texts_of(log) == ["a", "b"]
    ((entries, error),) = heard.refused
    assert (len(entries), error.code) == (1, "too_large")
    assert not heard.states
    log.close()


def test_a_bug_with_one_message_is_told_and_the_others_are_kept(tmp_path: Path) -> None:
    heard = Heard()
    log, writer = begun(tmp_path, QuickDisk(), heard)
    impossible = turn(["x"])
    impossible.payloads[0] = object()  # type: ignore[call-overload]
    for columns in (turn(["a"]), impossible, turn(["b"])):
        writer.submit(columns, size=1)
    writer.close()
    ((entries, error),) = heard.refused
    assert (entries[0].columns, error.code) == (impossible, "bug")
    assert texts_of(log) == ["a", "b"]
    assert not writer.failed
    log.close()
