"""The store at work, in this process: what is sealed and when."""

import asyncio
import errno
import json
import os
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path

import pytest

from smbroker.log.seal import LOW_PRIORITY
from smbroker.log.segments import Segment
from smbroker.log.settings import LogSettings
from smbroker.log.state import State
from smbroker.model.message import Columns, Dialect, Kind, Origin
from smbroker.server import pipelines, store
from smbroker.server.broker import Broker
from smbroker.server.commits import BESIDE
from smbroker.server.config import Config
from smbroker.server.mqtt import keeping

ORIGIN = Origin(Dialect.HTTP)


async def closed_while_notes_are_applied(data: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[list[int], list[bytes]]:
    """The closed tails that are left after a seal, and the notes."""
    broker = Broker(asyncio.get_running_loop(), replace(Config(), data=str(data), quiet=True), {})
    assert broker.store
    log, applied, sealed = broker.store._log, broker.store._notes_applied, asyncio.Event()

    def close_a_tail(note: bytes) -> None:
        log.append([Columns(1, [b"t"], [b"x"], [Kind.BYTES], [ORIGIN])], [("test", note)])
        log.rotate()

    async def applied_late() -> bool:
        monkeypatch.setattr(broker.store, "_notes_applied", applied)
        done = await applied()
        close_a_tail(b"after")
        return done

    seal = broker.store._seal

    async def seal_once(closed: Sequence[Segment]) -> bool:
        await seal(closed)
        sealed.set()
        await asyncio.Event().wait()  # for ever: this one seal is looked at
        return True

    close_a_tail(b"before")
    monkeypatch.setattr(store, "CARE", 0.01)
    monkeypatch.setattr(broker.store, "_notes_applied", applied_late)
    monkeypatch.setattr(broker.store, "_seal", seal_once)
    broker.store.start()
    await asyncio.wait_for(sealed.wait(), 60)
    left, notes = log.pending_seals, [value for _, notes in log.notes() for _, value in notes]
    await broker.store.stop()
    await broker.store.close()
    return left, notes


def test_a_tail_that_is_closed_after_the_notes_were_applied_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its notes are nowhere else yet."""
    with ThreadPoolExecutor(1) as thread:  # in this one a browser's loop may be running
        left, notes = thread.submit(asyncio.run, closed_while_notes_are_applied(tmp_path, monkeypatch)).result()
    assert left == [1]
    assert notes == [b"after"]


async def not_kept(data: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[list[str], int]:
    """What is said of messages that a bug keeps from the log, and how many there were."""
    broker = Broker(asyncio.get_running_loop(), replace(Config(), data=str(data), quiet=True), {})
    assert broker.store
    said: list[str] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: said.append(str(context)))
    monkeypatch.setattr(broker.store._log, "append", lambda *_: 1 // 0)
    broker.store.commits.submit(Columns(1, [b"t"] * 2, [b"x"] * 2, [Kind.BYTES] * 2, [ORIGIN] * 2), ())
    await broker.store.stop()
    await broker.store.close()
    return said, broker.turn.stats.not_logged


def test_messages_that_a_bug_keeps_from_the_log_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with ThreadPoolExecutor(1) as thread:
        said, count = thread.submit(asyncio.run, not_kept(tmp_path, monkeypatch)).result()
    assert count == 2
    assert len(said) == 1
    assert "2 messages could not be kept" in said[0]
    assert "ZeroDivisionError" in said[0]


async def waits(data: Path, monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """How long messages gather without pipelines, while they run, and after that."""
    broker = Broker(asyncio.get_running_loop(), replace(Config(), data=str(data), quiet=True), {})
    assert broker.store
    monkeypatch.setattr(store, "CARE", 0.01)
    broker.store.start()
    found = [broker.store.commits.linger]
    for updated in (datetime.now(UTC), datetime.now(UTC) - timedelta(hours=1)):
        (data / pipelines.FILE).write_text(json.dumps({"updated": updated.isoformat(), "pipelines": []}))
        async with asyncio.timeout(60):
            while broker.store.commits.linger == found[-1]:
                await asyncio.sleep(0.01)
        found.append(broker.store.commits.linger)
    await broker.store.stop()
    await broker.store.close()
    return found


def test_while_pipelines_run_messages_gather_for_less(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with ThreadPoolExecutor(1) as thread:
        found = thread.submit(asyncio.run, waits(tmp_path, monkeypatch)).result()
    assert found == [LogSettings().linger, BESIDE, LogSettings().linger]


async def left_at_the_second_pause(data: Path, tails: int, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Of so many closed tails, which are sealed one by one; the first pause comes before."""
    broker = Broker(asyncio.get_running_loop(), replace(Config(), data=str(data), quiet=True), {})
    assert broker.store
    log, seal, sleep, pauses = broker.store._log, broker.store._seal, asyncio.sleep, 0
    for _ in range(tails):
        log.append([Columns(1, [b"t"], [b"x"], [Kind.BYTES], [ORIGIN])])
        log.rotate()

    async def counted(seconds: float) -> None:
        nonlocal pauses
        pauses += seconds > 0
        await sleep(seconds and 0.01)

    with monkeypatch.context() as patch:
        patch.setattr(store.asyncio, "sleep", counted)
        patch.setattr(broker.store, "_seal", lambda closed: seal(closed[:1]))
        task = asyncio.get_running_loop().create_task(
            broker.store._repeat(broker.store._seal_closed, "nothing can be sealed")
        )
        async with asyncio.timeout(60):
            while pauses < 2:
                await sleep(0.001)
        left = log.pending_seals
        task.cancel()
    await broker.store.stop()
    await broker.store.close()
    return left


def test_sealing_goes_on_without_a_pause_until_all_is_sealed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with ThreadPoolExecutor(1) as thread:
        assert thread.submit(asyncio.run, left_at_the_second_pause(tmp_path, 3, monkeypatch)).result() == []


async def seen_of_a_seal(data: Path, monkeypatch: pytest.MonkeyPatch) -> set[tuple[bool, int, str]]:
    """Of the process that seals, while it runs: whether it has its own session, its priority, and the session's."""
    broker = Broker(asyncio.get_running_loop(), replace(Config(), data=str(data), quiet=True), {})
    assert broker.store
    log, start, pids = broker.store._log, asyncio.create_subprocess_exec, list[int]()
    log.append([Columns(1, [b"t"], [b"x"], [Kind.BYTES], [ORIGIN])])
    log.rotate()

    async def started(*command: str, **options: int) -> asyncio.subprocess.Process:
        process = await start(*command, **options)
        pids.append(process.pid)
        return process

    monkeypatch.setattr(store.asyncio, "create_subprocess_exec", started)
    task = asyncio.get_running_loop().create_task(broker.store._seal_closed())
    seen = set()
    while not task.done():
        await asyncio.sleep(0.001)
        for pid in pids:
            try:
                group = Path(f"/proc/{pid}/autogroup")
                of_session = group.read_text().rpartition(" nice ")[2].strip() if group.exists() else ""
                seen.add((os.getsid(pid) == pid, os.getpriority(os.PRIO_PROCESS, pid), of_session))
            except (ProcessLookupError, FileNotFoundError):
                pass
    assert task.result() == 0, "there may be more"
    await broker.store.stop()
    await broker.store.close()
    return seen


def test_sealing_gives_way_to_the_broker_and_does_not_hear_its_ctrl_c(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its session has a priority too, where the system knows that (autogroups): the other is of no account then."""
    with ThreadPoolExecutor(1) as thread:
        seen = thread.submit(asyncio.run, seen_of_a_seal(tmp_path, monkeypatch)).result()
    known = Path("/proc/self/autogroup").exists()
    low = os.getpriority(os.PRIO_PROCESS, 0) + LOW_PRIORITY
    assert (True, low, str(LOW_PRIORITY) if known else "") in seen
    assert {own for own, _, _ in seen} == {True}


async def tried_twice(data: Path, error: Exception, monkeypatch: pytest.MonkeyPatch) -> tuple[list[str], list[int]]:
    """What is said when the first process cannot be started and the second finds damage, and what is left to seal."""
    broker = Broker(asyncio.get_running_loop(), replace(Config(), data=str(data), quiet=True), {})
    assert broker.store
    log, console, said = broker.store._log, broker.turn.console, list[str]()
    monkeypatch.setattr(console, "warn", lambda code, text: said.append(f"{code}: {text}"))
    monkeypatch.setattr(console, "error", said.append)
    asyncio.get_running_loop().set_exception_handler(lambda _, context: said.append(f"bug: {context['message']}"))
    for payload in (b"kept", b"damaged"):
        log.append([Columns(1, [b"t"], [payload], [Kind.BYTES], [ORIGIN])])
    log.rotate()
    tail = data / "log" / f"{0:020}.arrow"
    tail.write_bytes(tail.read_bytes().replace(b"damaged", b"Damaged"))
    start = asyncio.create_subprocess_exec

    async def refused(*_command: str, **_options: int) -> asyncio.subprocess.Process:
        monkeypatch.setattr(store.asyncio, "create_subprocess_exec", start)
        raise error

    monkeypatch.setattr(store.asyncio, "create_subprocess_exec", refused)
    monkeypatch.setattr(store, "CARE", 0.01)
    task = asyncio.get_running_loop().create_task(
        broker.store._repeat(broker.store._seal_closed, "nothing can be sealed")
    )
    async with asyncio.timeout(60):
        while len(said) < 2:
            await asyncio.sleep(0.01)
    left = log.pending_seals
    task.cancel()
    await broker.store.stop()
    await broker.store.close()
    return said, left


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (OSError(errno.EMFILE, "No more"), "log_care: nothing can be sealed: [Errno 24] No more; it is tried again"),
        (LookupError(), "bug: nothing can be sealed"),
    ],
)
def test_sealing_goes_on_after_any_failure_and_tells_of_damage(
    tmp_path: Path, error: Exception, told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with ThreadPoolExecutor(1) as thread:
        said, left = thread.submit(asyncio.run, tried_twice(tmp_path, error, monkeypatch)).result()
    assert said[0] == told
    assert "sealed up to offset 1, a copy is in" in said[1]
    assert left == []


async def sealed_of(data: Path, tails: int, settings: LogSettings) -> list[int]:
    """The segments that so many tails of one message become: their first offsets."""
    broker = Broker(asyncio.get_running_loop(), replace(Config(), data=str(data), quiet=True, log=settings), {})
    assert broker.store
    log = broker.store._log
    for _ in range(tails):
        log.append([Columns(1, [b"t"], [b"x"], [Kind.BYTES], [ORIGIN])])
        log.rotate()
    assert await broker.store._seal_closed() == 0
    await broker.store.stop()
    await broker.store.close()
    return sorted(int(path.stem) for path in (data / "log").glob("*.parquet"))


def test_small_tails_are_put_together_up_to_what_a_segment_may_have(tmp_path: Path) -> None:
    """Retention removes whole segments."""
    with ThreadPoolExecutor(1) as thread:
        assert thread.submit(asyncio.run, sealed_of(tmp_path, 5, LogSettings(seal_rows=2))).result() == [0, 2, 4]


async def sealed_in_a_flood(data: Path, tails: int, messages: int, monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The pauses after three looks: so many tails were closed, and so many messages came, before the first."""
    broker = Broker(asyncio.get_running_loop(), replace(Config(), data=str(data), quiet=True), {})
    assert broker.store
    log, seen = broker.store._log, 0
    for _ in range(tails):
        log.append([Columns(1, [b"t"], [b"x"], [Kind.BYTES], [ORIGIN])])
        log.rotate()
    pauses = []
    for _ in range(3):
        broker.store._seen = (time.monotonic() - 0.5, seen)
        seen = messages
        with monkeypatch.context() as patch:
            patch.setattr(broker.store._commits.recent, "next", messages)
            patch.setattr(broker.store, "_notes_applied", partial(asyncio.sleep, 0, True))
            pauses.append(await broker.store._seal_closed())
    await broker.store.stop()
    await broker.store.close()
    return pauses


@pytest.mark.parametrize(
    ("tails", "messages", "pauses"),
    [
        (3, 100 * store.FLOOD, [store.FLOOD_CARE, 0, store.CARE]),
        (3, store.FLOOD // 2, [0, store.CARE, store.CARE]),
        (store.FLOOD_TAILS, 100 * store.FLOOD, [0, store.CARE, store.CARE]),
        (0, 100 * store.FLOOD, [store.CARE] * 3),
    ],
    ids=["in a flood", "in no flood", "in one that lasts", "nothing to seal"],
)
def test_sealing_gives_way_to_a_flood_but_not_for_ever(
    tmp_path: Path, tails: int, messages: int, pauses: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    with ThreadPoolExecutor(1) as thread:
        found = thread.submit(asyncio.run, sealed_in_a_flood(tmp_path, tails, messages, monkeypatch)).result()
    assert found == pauses


async def looks_and_passes(data: Path, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How often the directory was listed in each of five passes, of which the third finds a closed tail."""
    broker = Broker(asyncio.get_running_loop(), replace(Config(), data=str(data), quiet=True), {})
    assert broker.store
    log, names = broker.store._log, broker.store._log._disk.names
    looks, found = 0, list[int]()

    def counted(directory: Path) -> list[str]:
        nonlocal looks
        looks += 1
        return names(directory)

    monkeypatch.setattr(log._disk, "names", counted)
    for number in range(5):
        looks = 0
        if number == 2:
            log.append([Columns(1, [b"t"], [b"x"], [Kind.BYTES], [ORIGIN])])
            log.rotate()
        await broker.store._seal_closed()
        found.append(looks)
    await broker.store.stop()
    await broker.store.close()
    return found


def test_the_directory_is_listed_only_when_a_tail_may_have_been_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has thousands of segments after a year."""
    with ThreadPoolExecutor(1) as thread:
        looks = thread.submit(asyncio.run, looks_and_passes(tmp_path, monkeypatch)).result()
    assert list(map(bool, looks)) == [True, False, True, True, False]


async def completeness(data: Path, monkeypatch: pytest.MonkeyPatch) -> list[int | None]:
    """Up to where the state says that it is complete: at first, after each of three messages, and at the end."""
    monkeypatch.setattr(keeping, "FAR_ROWS", 2)
    broker = Broker(asyncio.get_running_loop(), replace(Config(), data=str(data), quiet=True), {})
    assert broker.store
    store, found = broker.store, list[int | None]()
    for messages in (0, 1, 1, 1):
        row = Columns(1, [b"t"], [b"x"], [Kind.BYTES], [ORIGIN])
        if messages:
            store.commits.submit(row, ())
            await store.all_kept()
        await store._care()
        assert store._state.flush(10)
        found.append(store._state.load_fact(keeping.FACT))
    await store.stop()
    await store.close()
    state = State(data / "state.db")
    found.append(state.load_fact(keeping.FACT))
    state.close()
    return found


def test_how_far_the_state_is_complete_is_not_saved_each_second(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While messages come and nothing else changes it would be a sync for nothing."""
    with ThreadPoolExecutor(1) as thread:
        found = thread.submit(asyncio.run, completeness(tmp_path, monkeypatch)).result()
    assert found == [0, 0, 2, 2, 3]
