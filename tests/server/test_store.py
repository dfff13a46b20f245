"""The store at work, in this process: what is sealed and when."""

import asyncio
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from smbroker.log.segments import Segment
from smbroker.model.message import Columns, Dialect, Kind, Origin
from smbroker.server import store
from smbroker.server.broker import Broker
from smbroker.server.config import Config

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
    monkeypatch.setattr(broker.turn.console, "warn", lambda code, text: said.append(f"{code}: {text}"))
    monkeypatch.setattr(broker.store._log, "append", lambda *_: 1 // 0)
    broker.store.commits.submit(Columns(1, [b"t"] * 2, [b"x"] * 2, [Kind.BYTES] * 2, [ORIGIN] * 2), ())
    await broker.store.stop()
    await broker.store.close()
    return said, broker.turn.stats.not_logged


def test_messages_that_a_bug_keeps_from_the_log_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with ThreadPoolExecutor(1) as thread:
        said, count = thread.submit(asyncio.run, not_kept(tmp_path, monkeypatch)).result()
    assert count == 2
    assert said == [
        "bug: a bug in the log: ZeroDivisionError('integer division or modulo by zero'); 2 messages not kept"
    ]


async def all_sealed(data: Path, tails: int, monkeypatch: pytest.MonkeyPatch) -> int:
    """How often it paused."""
    broker = Broker(asyncio.get_running_loop(), replace(Config(), data=str(data), quiet=True), {})
    assert broker.store
    log, pauses = broker.store._log, 0
    for _ in range(tails):
        log.append([Columns(1, [b"t"], [b"x" * 1_000], [Kind.BYTES], [ORIGIN])])
        log.rotate()

    sleep = asyncio.sleep

    async def counted(seconds: float) -> None:
        nonlocal pauses
        pauses += seconds > 0
        await sleep(seconds and 0.01)

    monkeypatch.setattr(store.asyncio, "sleep", counted)
    monkeypatch.setattr(store, "SEALED_AT_ONCE", 2)
    broker.store.start()
    while log.pending_seals:
        await sleep(0.01)
    monkeypatch.undo()
    await broker.store.stop()
    await broker.store.close()
    return pauses


def test_sealing_goes_on_without_a_pause_until_all_is_sealed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with ThreadPoolExecutor(1) as thread:
        assert thread.submit(asyncio.run, all_sealed(tmp_path, 5, monkeypatch)).result() == 1
