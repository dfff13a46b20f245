"""The desk: what a service such as HTTP may ask of the broker. `smbroker.web.desk` is its other side.

Who asks is known by its grant, which says what it may. What is read of the log is `smbroker.server.reader`'s.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

from smbroker.log.format import Note
from smbroker.log.rows import as_text
from smbroker.model.errors import LogError, Refused
from smbroker.model.filter import Filter
from smbroker.model.grant import TRUSTED, Grant
from smbroker.model.message import Columns, Dialect, Rows
from smbroker.model.rights import ALL, Action, Identity, Shown
from smbroker.server import pipelines
from smbroker.server.bodies import ArrowBodies
from smbroker.server.config import Config
from smbroker.server.figures import Figures
from smbroker.server.live import FIGURES, MAX_LIVE, TICK, Sampler
from smbroker.server.reader import Reader, check_replay, tell
from smbroker.server.sink import Sink
from smbroker.server.store import Store
from smbroker.server.tables import Tables
from smbroker.server.tcp import Connections
from smbroker.server.turn import Turn

RELAYED_ONLY = b"$stats/"
# What the broker tells of itself: whoever may subscribe to the topic may ask for it.
FIGURES_TOPIC, CLIENTS_TOPIC = b"$SYS/broker/figures", b"$SYS/broker/clients"
PIPELINES_TOPIC, TABLES_TOPIC = b"$SYS/broker/pipelines", b"$SYS/broker/tables"
LONGEST_SHOWN = 1_000  # characters of a table's value: what is longer was cut


class Desk:
    def __init__(self, config: Config, turn: Turn, store: Store | None, connections: Connections) -> None:
        self._config = config
        self._turn = turn
        self._store = store
        self._reader = Reader(config, turn, store)  # these three are its own
        self.messages = self._reader.messages
        self.follow = self._reader.follow
        self.topics = self._reader.topics
        self._closing = False
        self._live = 0
        self._connections = connections
        self._figures = Figures(turn, connections, store)
        self._bodies = ArrowBodies()
        self._tables = Tables(Path(config.data))
        self._sink = Sink(store.data, store.ledger, config.web.max_stage_bytes, self._bodies) if store else None

    @property
    def open(self) -> bool:
        """Whether the broker is not about to stop."""
        return not self._closing

    def start(self) -> None:
        """From here on someone may ask, and the token is there: a program that waits for `ready` may read it."""
        if self._sink:
            try:
                self._sink.start()
            except LogError as error:
                self.warn(error.code, error.text)
        self._reader.start()

    def close(self) -> None:
        """Streams end, and nothing more is published."""
        self._closing = True
        self._bodies.stop()
        self._tables.stop()
        self._reader.close()

    def rights_changed(self) -> None:
        """Streams look whether they may go on."""
        self._reader.wake()

    @property
    def first_offset(self) -> int:
        return self._reader.first_offset

    @property
    def next_offset(self) -> int:
        """The offset after the last one that is on disk."""
        return self._reader.recent.next

    @property
    def streams(self) -> int:
        return self._reader.streams

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
            commits.when_caught_up(partial(tell, room, None))
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
            tell(told, outcome)

        self._turn.publish_all(columns, hear, notes)
        outcome = await told
        if isinstance(outcome, LogError):
            raise LogError("log_unavailable", f"relayed, but not kept: {outcome.text}") from outcome
        return outcome

    def arrow_rows(self, body: bytes, most: int) -> AsyncGenerator[Rows, None]:
        """The messages of an Arrow stream, some at a time. Raises Refused."""
        return self._bodies.rows(body, most)

    # --- figures ---

    async def stats(self, who: Grant) -> dict[str, Any]:
        who.check(Action.SUBSCRIBE, FIGURES_TOPIC)
        return await self._figures.all(self.streams)

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
        check_replay(who, None)
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
        self._reader.count_streams(1)
        try:
            sampler = Sampler(pattern, self._reader.recent.next, who, kept=self._store is not None)
            for tick in count():
                if tick % FIGURES == 0:
                    shown = not who.limited or who.subscribes[FIGURES_TOPIC]
                    yield _event("figures", await self.stats(who)) if shown else b""
                sample = sampler.take(self._reader.recent) if tail else None
                if sample and (sample.seen or sample.skipped):
                    yield _event("messages", sample.told)
                await asyncio.sleep(TICK)
                if self._closing or who.nothing:
                    return
        finally:
            self._reader.count_streams(-1)
            self._live -= 1


def _may_see(who: Grant, row: dict[str, Any]) -> bool:
    topic = row.get("topic")
    return isinstance(topic, str) and len(topic) < LONGEST_SHOWN and who.replays[topic.encode("utf-8", "replace")]


def _event(kind: str, data: dict[str, Any]) -> bytes:
    return f"event: {kind}\ndata: {as_text(data)}\n\n".encode()
