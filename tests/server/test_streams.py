"""Streams that rest, and what wakes them."""

import asyncio
import time
from concurrent.futures import ThreadPoolExecutor

from smbroker.model.filter import parse
from smbroker.model.grant import EVERYTHING
from smbroker.model.message import Columns, Dialect, Kind, Origin
from smbroker.server.recent import Recent
from smbroker.server.streams import Resting, Stream


def commit(recent: Recent, topic: bytes) -> None:
    columns = Columns(1, [topic], [b"x"], [Kind.BYTES], [Origin(Dialect.HTTP)])
    recent.add(recent.next, columns, 1)


async def held_up(topic: bytes) -> tuple[bool, int]:
    """A commit is told of when the stream has rested for as long as it wanted, but does not know that yet."""
    resting, recent = Resting(), Recent(0, 1 << 20)
    stream = Stream(parse("t"), 0, EVERYTHING)
    resting.add(stream, recent)
    commit(recent, topic)
    rests = asyncio.create_task(resting.rest(stream, 0.01))
    await asyncio.sleep(0)
    asyncio.get_running_loop().call_later(0.011, resting.look, recent)
    time.sleep(0.05)  # both are due
    return await rests, stream.cursor


def outcome(topic: bytes) -> tuple[bool, int]:
    """In a thread of its own, since the browser's tests leave a running loop in this one."""
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(asyncio.run, held_up(topic)).result()


def test_what_comes_at_the_last_moment_is_not_passed_over() -> None:
    assert outcome(b"t") == (True, 0)


def test_what_is_not_for_it_does_not_wake_it() -> None:
    assert outcome(b"other") == (False, 1)
