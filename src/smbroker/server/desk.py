"""The desk: what a service such as HTTP may ask of the broker. `smbroker.web.desk` is its other side.

Everything that shows an offset comes from what the log has committed. A stream is a cursor and nothing more
(`smbroker.server.streams`). What is long to read comes from the reading process, which also makes the JSON.
"""

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any, TypeVar

from smbroker.log.format import Note
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
from smbroker.model.grant import TRUSTED, Grant
from smbroker.model.message import Columns, Dialect, Rows
from smbroker.model.rights import ALL, Action, Identity, Permit, Shown
from smbroker.server import pipelines
from smbroker.server.bodies import ArrowBodies
from smbroker.server.commits import size_of
from smbroker.server.config import Config
from smbroker.server.figures import Figures
from smbroker.server.live import FIGURES, MAX_LIVE, TICK, Sampler
from smbroker.server.recent import Recent
from smbroker.server.sink import Sink
from smbroker.server.store import Store
from smbroker.server.streams import Resting, Stream
from smbroker.server.tables import Tables
from smbroker.server.tcp import Connections
from smbroker.server.turn import Turn

RELAYED_ONLY = b"$stats/"
# What the broker tells of itself: whoever may subscribe to the topic may ask for it.
FIGURES_TOPIC, CLIENTS_TOPIC = b"$SYS/broker/figures", b"$SYS/broker/clients"
PIPELINES_TOPIC, TABLES_TOPIC = b"$SYS/broker/pipelines", b"$SYS/broker/tables"
LONGEST_SHOWN = 1_000  # characters of a table's value: what is longer was cut
NEAR = 1_000  # rows from the log's end within which a stream is fed from memory
FAR = 5_000  # rows that a stream asks for at once of the reading process
PACE = 0.02  # seconds between two looks of a stream: it costs the same for one message as for many
PACE_OF_EACH = 0.0001  # … and for each stream there is
SILENCE = 15.0  # seconds after which a stream gives an empty piece
BACKWARDS = 4_000  # offsets that are looked through at first when reading backwards; then ever more
MOST_BACKWARDS = 2_000_000
CENSUS = 5.0  # seconds between steps of the census of topics when nobody asks
CENSUS_BUSY = 0.05  # … while it is behind
PATIENCE = 3.0  # seconds that a list of topics waits for the census

Told = TypeVar("Told", Found, Place)


class Desk:
    def __init__(self, config: Config, turn: Turn, store: Store | None, connections: Connections) -> None:
        self._config = config
        self._turn = turn
        self._store = store
        self._recent = store.commits.recent if store else Recent(0, config.log.recent_bytes)
        self._resting = Resting()
        self._closing = False
        self._streams = 0
        self._live = 0
        self._connections = connections
        self._figures = Figures(turn, connections, store)
        self._census: asyncio.Task[None] | None = None
        self._replays = 0  # of /v1/messages, under way
        self._bodies = ArrowBodies()
        self._tables = Tables(Path(config.data))
        self._sink = Sink(store.data, store.ledger, config.web.max_stage_bytes, self._bodies) if store else None
        if store:
            store.commits.on_commit = partial(self._resting.look, self._recent)

    @property
    def open(self) -> bool:
        """Whether the broker is not about to stop."""
        return not self._closing

    def close(self) -> None:
        """Streams end, and nothing more is published."""
        self._closing = True
        if self._census:
            self._census.cancel()
        self._bodies.stop()
        self._tables.stop()
        self._resting.wake_all()

    def rights_changed(self) -> None:
        """Streams look whether they may go on."""
        self._resting.wake_all()

    def warn(self, code: str, text: str) -> None:
        self._turn.console.warn(code, text)
        self._turn.begin()

    def refused(self, code: str) -> None:
        self._turn.stats.dropped[code] += 1

    def mqtt_connection(self) -> asyncio.Protocol:
        """One that speaks MQTT over the transport that it is given."""
        return self._connections.protocol(Dialect.MQTT)()

    # --- who asks ---

    @property
    def rights_on(self) -> bool:
        return self._turn.access.on

    async def enter(self, host: str, certified: str | None, shown: Shown) -> Grant:
        """Whoever shows nothing is known by its address, or its certificate. Raises Refused."""
        access = self._turn.access
        if shown.token and self.knows_token(shown.token):
            return TRUSTED
        if not access.on:
            return access.grant(Dialect.HTTP, host)
        if shown.user is not None:
            who = Identity(Dialect.HTTP, host, shown.user)
            return access.rights.grant(await access.login(who, shown.password))
        if shown.token:
            return access.rights.grant(access.by_token(host, shown.token))
        session = access.by_session(host, shown.session) if shown.session else None
        return access.rights.grant(session) if session else access.grant(Dialect.HTTP, host, None, certified)

    def begin_session(self, who: Grant) -> str:
        """What a browser shows from here on. Raises Refused."""
        if who.identity is None or not who.identity.proof:
            raise Refused("bad_password", "there are no users here to log in as")
        return self._turn.access.begin_session(who.identity)

    def end_session(self, session: str) -> None:
        self._turn.access.end_session(session)

    # --- publishing ---

    async def publish(self, columns: Columns) -> int | None:
        """Returns the first offset once all is on disk; None without a log. Raises LogError."""
        return await self._published(columns)

    async def publish_batch(self, columns: Columns, query: str, batch: int) -> int | None:
        """A Spark query's batch: once, however often it is tried. Call `last_batch` first, one batch at a time.

        Topics of `$stats` are relayed and not kept: their table is their history. Raises Refused, LogError."""
        assert self._store
        ledger = self._store.ledger
        note = ledger.note(query, batch)
        passing = [row for row, topic in enumerate(columns.topics) if topic.startswith(RELAYED_ONLY)]
        if passing:
            self._turn.relay(columns.rows(passing))
            kept = set(range(len(columns))).difference(passing)
            columns = columns.rows(sorted(kept))
        if not len(columns):
            return None
        rows = len(columns)
        return await self._published(columns, (note,), lambda offset: ledger.published(query, batch, offset + rows))

    async def last_batch(self, query: str) -> int | None:
        return await self._sink_in_use.last(query)

    async def stage(self, body: bytes) -> str:
        return await self._sink_in_use.stage(body)

    def staged_rows(self, stages: Sequence[str], most: int) -> AsyncGenerator[Rows, None]:
        return self._sink_in_use.rows(stages, most)

    async def drop_stages(self, stages: Sequence[str]) -> None:
        await self._sink_in_use.drop(stages)

    def knows_token(self, token: str) -> bool:
        """Whether whoever shows it may publish what only the broker and its pipelines may."""
        return self._sink is not None and self._sink.knows(token)

    @property
    def _sink_in_use(self) -> Sink:
        if self._sink is None:
            raise LogError("no_log", "without the log (--no-log) Spark cannot publish")
        return self._sink

    async def _published(
        self, columns: Columns, notes: Sequence[Note] = (), kept: Callable[[int], None] = lambda _: None
    ) -> int | None:
        """`kept` is called at the commit itself."""
        commits = self._turn.commits
        while commits and commits.behind and not self._closing:
            room: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            commits.when_caught_up(partial(_settle, room, None))
            await room
        if self._closing:
            raise LogError("stopping", "the broker is stopping")
        if commits and commits.failed:
            self.refused("log_unavailable")
            raise LogError("log_unavailable", f"not taken: {commits.failed.text}")
        told: asyncio.Future[int | LogError | None] = asyncio.get_running_loop().create_future()

        def hear(outcome: int | LogError | None) -> None:
            if isinstance(outcome, int):
                kept(outcome)
            _settle(told, outcome)

        self._turn.publish_all(columns, hear, notes)
        outcome = await told
        if isinstance(outcome, LogError):
            raise LogError("log_unavailable", f"relayed, but not kept: {outcome.text}") from outcome
        return outcome

    def arrow_rows(self, body: bytes, most: int) -> AsyncGenerator[Rows, None]:
        """The messages of an Arrow stream, some at a time. Raises Refused."""
        return self._bodies.rows(body, most)

    # --- reading ---

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
        _check_replay(who, pattern)
        self._need_log("history")
        with self._one_replay(), self._reading() as reading:
            begin = self.first_offset if start is None else start
            if since is not None:
                begin = max(begin, (await self._asked(Moment(reading, since), Place)).offset)
            end = self._recent.next if before is None else min(before, self._recent.next)
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
        wanted, size = limit, BACKWARDS
        while end > first and wanted:
            start = max(first, end - size)
            place = await self._asked(Backwards(reading, start, end, pattern, wanted, who.replay()), Place)
            wanted -= place.rows
            end, size = (start if wanted else place.offset), min(2 * size, MOST_BACKWARDS)
        return end

    async def follow(self, who: Grant, pattern: Filter | None, start: int | None) -> AsyncGenerator[bytes, None]:
        """Server-sent events, an empty piece first and when there was nothing for a while; new ones without `start`.

        Raises LogError: what it is to begin with is gone, or it is overtaken; Refused: it may have nothing of it."""
        who.check_subscribe(ALL if pattern is None else pattern)
        if start is not None:
            _check_replay(who, pattern)
            self._need_log("history")
            if start < self.first_offset:
                raise LogError("gone", f"offset {start} is gone; the first there is is {self.first_offset}")
        stream = Stream(pattern, self._recent.next if start is None else start, who, self._recent.next)
        self._count_streams(1)
        self._resting.add(stream, self._recent)
        try:
            with self._reading() as reading:
                yield b""
                while self.open and not who.nothing:
                    if stream.cursor >= self._recent.next:
                        if not await self._resting.rest(stream, SILENCE):
                            yield b""
                        continue
                    data = await self._next_piece(stream, reading)
                    if data:
                        yield data
                    pace = PACE + PACE_OF_EACH * len(self._resting)
                    await asyncio.sleep(pace if stream.cursor >= self._recent.next else 0)
        finally:
            self._resting.remove(stream)
            self._count_streams(-1)

    async def _next_piece(self, stream: Stream, reading: int) -> bytes:
        recent, delivered = self._recent, self._turn.stats.delivered
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

    # --- topics ---

    async def topics(
        self, who: Grant, search: str, since: int, most: int, characters: int, busiest: bool = False
    ) -> AsyncGenerator[bytes, None]:
        """The items of a JSON list. Waits a little for the census, if it is behind. Raises Refused, LogError."""
        _check_replay(who, None)
        self._need_log("list of topics")
        with self._reading() as reading:
            deadline, through = time.monotonic() + PATIENCE, self._recent.next
            while await self._advance_census(reading, through) < through and time.monotonic() < deadline:
                pass
            roll: Roll | None = Roll(reading, Wanted(search, since, most, characters, busiest, who.replay()))
            while roll:
                found = await self._asked(roll, Found)
                yield found.data
                roll = roll.after(found)

    def start(self) -> None:
        """From here on someone may ask. The census follows the log, so that a list of topics need not wait."""
        if self._sink:
            try:
                self._sink.start()
            except LogError as error:
                self.warn(error.code, error.text)
        if self._store and not self._census:
            self._census = asyncio.get_running_loop().create_task(self._follow_census())

    async def _follow_census(self) -> None:
        with self._reading() as reading:
            while True:
                behind = await self._advance_census(reading, self._recent.next) < self._recent.next
                await asyncio.sleep(CENSUS_BUSY if behind else CENSUS)

    async def _advance_census(self, reading: int, through: int) -> int:
        return (await self._asked(Count(reading, through, self._config.web.max_topics), Place)).offset

    # --- figures ---

    async def stats(self, who: Grant) -> dict[str, Any]:
        who.check(Action.SUBSCRIBE, FIGURES_TOPIC)
        return await self._figures.all(self._streams)

    async def clients(self, who: Grant, dialect: str | None, most: int) -> dict[str, Any]:
        who.check(Action.SUBSCRIBE, CLIENTS_TOPIC)
        return await self._figures.clients(dialect, most)

    async def pipelines(self, who: Grant) -> dict[str, Any]:
        who.check(Action.SUBSCRIBE, PIPELINES_TOPIC)
        return await self._pipelines()

    async def _pipelines(self) -> dict[str, Any]:
        return await asyncio.get_running_loop().run_in_executor(None, pipelines.status, Path(self._config.data))

    async def tables(self, who: Grant) -> dict[str, Any]:
        if not who.replays_all:
            who.check(Action.SUBSCRIBE, TABLES_TOPIC)
        return await self._tables.all()

    async def table(self, who: Grant, name: str, most: int, topic: str | None) -> dict[str, Any]:
        """Whoever may not replay everything sees those rows that tell their topic, if he may replay that."""
        _check_replay(who, None)
        found = await self._tables.rows(name, most, topic)
        if not who.replays_all:
            found = {**found, "rows": [row for row in found["rows"] if _may_see(who, row)]}
        return found

    async def health(self, who: Grant) -> tuple[bool, dict[str, Any]]:
        failed = self._store.commits.failed if self._store else None
        log = "off" if not self._store else failed.text if failed else "ok"
        status = "stopping" if self._closing else "log" if failed else "ok"
        if who.limited and not who.subscribes[FIGURES_TOPIC]:
            return status == "ok", {"status": status}
        return status == "ok", {"status": status, "log": log, "pipelines": pipelines.summary(await self._pipelines())}

    async def live(self, who: Grant, pattern: Filter | None, tail: bool) -> AsyncGenerator[bytes, None]:
        """Server-sent events for a page: `figures` once a second, and with `tail` a sample of `messages`."""
        if self._live >= MAX_LIVE:
            raise Refused("too_many_streams", f"there are {MAX_LIVE} pages open already")
        if tail:
            who.check_subscribe(ALL if pattern is None else pattern)
        else:
            who.check(Action.SUBSCRIBE, FIGURES_TOPIC)
        self._live += 1
        self._count_streams(1)
        try:
            sampler = Sampler(pattern, self._recent.next, who, kept=self._store is not None)
            for tick in count():
                if tick % FIGURES == 0:
                    shown = not who.limited or who.subscribes[FIGURES_TOPIC]
                    yield _event("figures", await self.stats(who)) if shown else b""
                sample = sampler.take(self._recent) if tail else None
                if sample and (sample.seen or sample.skipped):
                    yield _event("messages", sample.told)
                await asyncio.sleep(TICK)
                if self._closing or who.nothing:
                    return
        finally:
            self._count_streams(-1)
            self._live -= 1

    # --- below ---

    @property
    def first_offset(self) -> int:
        return self._store.commits.first_offset if self._store else 0

    @property
    def next_offset(self) -> int:
        """The offset after the last one that is on disk."""
        return self._recent.next

    @property
    def streams(self) -> int:
        return self._streams

    def _need_log(self, what: str) -> None:
        if not self._store:
            raise LogError("no_log", f"without the log (--no-log) there is no {what}")

    def _count_streams(self, step: int) -> None:
        self._streams += step
        self._turn.relayed = self._relayed if self._streams and not self._store else None

    def _relayed(self, columns: Columns) -> None:
        self._recent.add(self._recent.next, columns, size_of(columns))
        self._resting.look(self._recent)

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
        self._store.history.ask(question, partial(_settle, told))
        answer = await told
        if isinstance(answer, Failed):
            raise _Damaged(answer) if answer.code == "damaged" else LogError(answer.code, answer.text)
        assert isinstance(answer, kind)
        return answer


def _check_replay(who: Grant, pattern: Filter | None) -> None:
    """Raises Refused if nothing of it could be shown."""
    permit = who.replay()
    if permit is not None and not permit.meets(ALL if pattern is None else pattern) and not _dollars(permit, pattern):
        raise Refused("not_allowed", "not allowed to replay this")


def _dollars(permit: Permit, pattern: Filter | None) -> bool:
    """Without a filter everything is meant, also what begins with `$`, which no wildcard covers."""
    return pattern is None and bool(permit.allow)


def _may_see(who: Grant, row: dict[str, Any]) -> bool:
    topic = row.get("topic")
    return isinstance(topic, str) and len(topic) < LONGEST_SHOWN and who.replays[topic.encode("utf-8", "replace")]


class _Damaged(LogError):
    def __init__(self, answer: Failed) -> None:
        super().__init__(answer.code, answer.text)
        self.next = answer.next


def _event(kind: str, data: dict[str, Any]) -> bytes:
    return f"event: {kind}\ndata: {as_text(data)}\n\n".encode()


def _settle(future: "asyncio.Future[Any]", outcome: object) -> None:
    """Whoever asked may have gone."""
    if not future.done():
        future.set_result(outcome)
