"""What the desk reads for others: messages of the log, streams of them, and the list of topics.

Everything that shows an offset comes from what the log has committed. A stream is a cursor and nothing more
(`smbroker.server.streams`). What is long to read comes from the reading process, which also makes the JSON.
"""

import asyncio
import time
from collections.abc import AsyncGenerator, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

from smbroker.log.questions import (
    Answer,
    Backwards,
    Count,
    Failed,
    Form,
    Found,
    Moment,
    Place,
    Question,
    Roll,
    Search,
    Wanted,
)
from smbroker.log.rows import as_text
from smbroker.model.errors import LogError, Refused
from smbroker.model.filter import Filter
from smbroker.model.grant import Grant
from smbroker.model.message import Columns, Dialect
from smbroker.model.rights import ALL, Permit
from smbroker.server.commits import size_of
from smbroker.server.config import Config
from smbroker.server.recent import Recent
from smbroker.server.store import Store
from smbroker.server.streams import Resting, Stream
from smbroker.server.turn import Turn

NEAR = 1_000  # rows from the log's end within which a stream is fed from memory
FAR = 5_000  # rows that a stream asks for at once of the reading process
PACE = 0.02  # seconds between two looks of a stream: it costs the same for one message as for many
PACE_OF_EACH = 0.0001  # … and for each stream there is
SILENCE = 15.0  # seconds after which a stream gives an empty piece
CENSUS = 5.0  # seconds between steps of the census of topics when nobody asks
CENSUS_BUSY = 0.05  # … while it is behind
PATIENCE = 3.0  # seconds that a list of topics waits for the census

Told = TypeVar("Told", Found, Place)


class Reader:
    def __init__(self, config: Config, turn: Turn, store: Store | None) -> None:
        self._config = config
        self._turn = turn
        self._store = store
        self.recent = store.commits.recent if store else Recent(0, config.log.recent_bytes)
        self.streams = 0
        self._resting = Resting()
        self._closing = False
        self._census: asyncio.Task[None] | None = None
        self._replays = 0  # of /v1/messages, under way
        if store:
            store.commits.on_commit = partial(self._resting.look, self.recent)

    def start(self) -> None:
        """The census follows the log, so that a list of topics need not wait."""
        if self._store and not self._census:
            self._census = asyncio.get_running_loop().create_task(self._follow_census())

    def close(self) -> None:
        """Streams end."""
        self._closing = True
        if self._census:
            self._census.cancel()
        self.wake()

    def wake(self) -> None:
        """Streams look whether they may go on."""
        self._resting.wake_all()

    # --- messages ---

    async def messages(
        self,
        who: Grant,
        pattern: Filter | None,
        start: int | None,
        since: int | None,
        before: int | None,
        limit: int,
        short: bool,
    ) -> AsyncGenerator[bytes, None]:
        """Lines of JSON, oldest first; with `before` the last ones before it. Raises LogError, Refused."""
        check_replay(who, pattern)
        self._need_log("history")
        with self._one_replay(), self._reading() as reading:
            await self._all_kept()
            begin = self.first_offset if start is None else start
            if since is not None:
                begin = max(begin, (await self._asked(Moment(reading, since), Place)).offset)
            end = self.recent.next if before is None else min(before, self.recent.next)
            if before is not None:
                begin = await self._backwards(who, reading, pattern, begin, end, limit)
            form = Form.SHORT if short else Form.LINES
            search: Search | None = Search(reading, begin, end, pattern, limit, form, who.replay())
            while search:
                found = await self._asked(search, Found)
                if search.permit != who.replay():  # the rights have changed meanwhile: read this again
                    search = replace(search, permit=who.replay())
                    continue
                if found.data:
                    yield found.data
                search = search.after(found)

    async def _backwards(
        self, who: Grant, reading: int, pattern: Filter | None, first: int, end: int, limit: int
    ) -> int:
        """Where the last `limit` messages of [first, end) begin."""
        if end <= first or not limit:
            return end
        step = Backwards.first_step(reading, first, end, pattern, limit, who.replay())
        while following := step.after(place := await self._asked(step, Place)):
            step = replace(following, permit=who.replay())
        return place.offset

    # --- streams ---

    async def follow(self, who: Grant, pattern: Filter | None, start: int | None) -> AsyncGenerator[bytes, None]:
        """Server-sent events, an empty piece first and when there was nothing for a while; new ones without `start`.

        Raises LogError: what it is to begin with is gone, or it is overtaken; Refused: it may have nothing of it."""
        who.check_subscribe(ALL if pattern is None else pattern)
        if start is not None:
            check_replay(who, pattern)
            self._need_log("history")
            if start < self.first_offset:
                raise LogError("gone", f"offset {start} is gone; the first there is is {self.first_offset}")
        self.count_streams(1)
        stream = Stream(pattern, 0, who)
        try:
            if self._store:
                await self._all_kept()  # what was published before is not new
            stream.cursor, stream.seam = self.recent.next if start is None else start, self.recent.next
            self._resting.add(stream, self.recent)
            with self._reading() as reading:
                yield b""
                silent = time.monotonic() + SILENCE  # what it looks at and may not have, or does not want, is no sound
                while not self._closing and not who.nothing:
                    data = b""
                    if stream.cursor < self.recent.next:
                        data = await self._next_piece(stream, reading)
                    elif await self._resting.rest(stream, silent - time.monotonic()):
                        continue
                    if data or time.monotonic() >= silent:
                        yield data
                        silent = time.monotonic() + SILENCE
                    pace = PACE + PACE_OF_EACH * len(self._resting)
                    await asyncio.sleep(pace if stream.cursor >= self.recent.next else 0)
        finally:
            self._resting.remove(stream)
            self.count_streams(-1)

    async def _next_piece(self, stream: Stream, reading: int) -> bytes:
        recent, delivered = self.recent, self._turn.stats.delivered
        if stream.cursor >= recent.first and (recent.next - stream.cursor <= NEAR or not self._store):
            rows, data = stream.from_memory(recent, kept=self._store is not None)
            delivered[Dialect.HTTP] += rows
            return data
        if not self._store:
            raise LogError("overtaken", "the reader is too slow, and without the log (--no-log) there is no history")
        permit, until = stream.permit()
        end = until or recent.next
        try:
            search = Search(reading, stream.cursor, end, stream.pattern, FAR, Form.EVENTS, permit)
            found = await self._asked(search, Found)
        except _Damaged as error:
            self._turn.stats.dropped["log_damaged"] += 1
            stream.cursor = error.next
            return f"event: gap\ndata: {as_text({'text': error.text, 'next': error.next})}\n\n".encode()
        if stream.permit()[0] != permit:  # the rights have changed meanwhile: read this again
            return b""
        stream.cursor = found.next
        delivered[Dialect.HTTP] += found.rows
        return found.data

    def count_streams(self, step: int) -> None:
        self.streams += step
        self._turn.tell_relayed(self._relayed if self.streams and not self._store else None)
        if self._store:
            self._store.commits.read_by(streams=self.streams)

    def _relayed(self, columns: Columns) -> None:
        self.recent.add(self.recent.next, columns, size_of(columns))
        self._resting.look(self.recent)

    # --- topics ---

    async def topics(
        self, who: Grant, search: str, since: int, most: int, characters: int, busiest: bool = False
    ) -> AsyncGenerator[bytes, None]:
        """The items of a JSON list. Waits a little for the census, if it is behind. Raises Refused, LogError."""
        check_replay(who, None)
        self._need_log("list of topics")
        with self._reading() as reading:
            await self._all_kept()
            deadline, through = time.monotonic() + PATIENCE, self.recent.next
            while await self._advance_census(reading, through) < through and time.monotonic() < deadline:
                pass
            roll: Roll | None = Roll(reading, Wanted(search, since, most, characters, busiest, who.replay()))
            while roll:
                found = await self._asked(roll, Found)
                yield found.data
                roll = roll.after(found)

    async def _follow_census(self) -> None:
        with self._reading() as reading:
            while True:
                try:
                    behind = await self._advance_census(reading, self.recent.next) < self.recent.next
                except LogError:  # who asks for the list is told
                    behind = False
                await asyncio.sleep(CENSUS_BUSY if behind else CENSUS)

    async def _advance_census(self, reading: int, through: int) -> int:
        return (await self._asked(Count(reading, through, self._config.web.max_topics), Place)).offset

    # --- below ---

    @property
    def first_offset(self) -> int:
        return self._store.commits.first_offset if self._store else 0

    async def _all_kept(self) -> None:
        """What came in before is in the log, if it can be: whoever publishes and then asks finds it."""
        assert self._store
        await self._store.all_kept()

    def _need_log(self, what: str) -> None:
        if not self._store:
            raise LogError("no_log", f"without the log (--no-log) there is no {what}")

    @contextmanager
    def _one_replay(self) -> Iterator[None]:
        most = self._config.web.max_replays
        if self._replays >= most:
            raise Refused("too_many_replays", f"{most} answers from history are under way (web.max_replays); try later")
        self._replays += 1
        try:
            yield
        finally:
            self._replays -= 1

    @contextmanager
    def _reading(self) -> Iterator[int]:
        """The number of a reading that is forgotten with whoever asked."""
        history = self._store.history if self._store else None
        reading = history.new_reading() if history else -1
        try:
            yield reading
        finally:
            if history:
                history.forget(reading)

    async def _asked(self, question: Question, kind: type[Told]) -> Told:
        assert self._store
        told: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self._store.history.ask(question, partial(tell, told))
        answer = await told
        if isinstance(answer, Failed):
            raise _Damaged(answer) if answer.code == "damaged" else LogError(answer.code, answer.text)
        assert isinstance(answer, kind)
        return answer


def check_replay(who: Grant, pattern: Filter | None) -> None:
    """Raises Refused if nothing of it could be shown."""
    permit = who.replay()
    if permit is not None and not permit.meets(ALL if pattern is None else pattern) and not _dollars(permit, pattern):
        raise Refused("not_allowed", "not allowed to replay this")


def _dollars(permit: Permit, pattern: Filter | None) -> bool:
    """Without a filter everything is meant, also what begins with `$`, which no wildcard covers."""
    return pattern is None and bool(permit.allow)


class _Damaged(LogError):
    def __init__(self, answer: Failed) -> None:
        super().__init__(answer.code, answer.text)
        self.next = answer.next


def tell(future: "asyncio.Future[Any]", outcome: object) -> None:
    """Whoever asked may have gone."""
    if not future.done():
        future.set_result(outcome)
