"""Figures of the broker for people and programs: counters, the log, clients. Made only when someone asks.

A look at all clients goes a few thousand at a time, with a look at the loop in between.
"""

import asyncio
import heapq
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

from smbroker.core.sessions import Session
from smbroker.model.filter import Filter
from smbroker.model.message import Dialect
from smbroker.model.stats import TIMES, Timing
from smbroker.server.client import Client
from smbroker.server.mqtt.session import MqttSession
from smbroker.server.mqtt.subscriptions import Subscription
from smbroker.server.store import Store
from smbroker.server.tcp import Connections
from smbroker.server.turn import Turn

SIZE_AGE = 5.0  # seconds that the size of the log is not measured again
STEP = 2_000  # clients that are looked at in one go
MOST_FILTERS = 100  # that are shown of a client
LONGEST_FILTER = 1_000  # characters


class Figures:
    def __init__(self, turn: Turn, connections: Connections, store: Store | None) -> None:
        self._turn = turn
        self._connections = connections
        self._store = store
        self._started = time.time()
        self._size = 0
        self._measured = 0.0

    async def all(self, streams: int) -> dict[str, Any]:
        self._turn.lanes.account()
        counts, sessions = self._turn.stats, self._turn.sessions
        by_dialect = Counter(connection.origin.dialect for connection in self._connections.open)
        return {
            "uptime": round(time.time() - self._started, 3),
            "received": _named(counts.received),
            "delivered": _named(counts.delivered),
            "bytes_in": counts.bytes_in,
            "bytes_out": counts.bytes_out,
            "dropped": dict(counts.dropped),
            "undeliverable": [
                {"dialect": dialect.value, "reason": reason, "count": count}
                for (dialect, reason), count in counts.undeliverable.items()
            ],
            "ended": dict(counts.ended),
            "not_logged": counts.not_logged,
            "connections": len(self._connections.open),
            "connections_by_dialect": _named(by_dialect),
            "outbox_bytes": sum(connection.waiting for connection in self._connections.open),
            "subscriptions": _named(sessions.by_dialect),
            "streams": streams,
            "log": await self._log(),
        }

    async def _log(self) -> dict[str, Any] | None:
        if not self._store:
            return None
        commits, counts = self._store.commits, self._turn.stats
        if time.monotonic() - self._measured > SIZE_AGE or not self._measured:
            self._measured = time.monotonic()
            self._size = await asyncio.get_running_loop().run_in_executor(None, _size, self._store.data / "log")
        return {
            "first_offset": commits.first_offset,
            "next_offset": commits.recent.next,
            "bytes": self._size,
            "queued_bytes": commits.queued_bytes,
            "durable_after": round(counts.commits.last, 6),
            "append_seconds": _histogram(counts.appends),
            "durable_seconds": _histogram(counts.commits),
            "error": commits.failed.text if commits.failed else None,
        }

    async def clients(self, dialect: str | None, most: int) -> dict[str, Any]:
        """Those that are the furthest behind, `most` of them."""
        slowest: list[_Seen] = []
        count = 0
        async for seen in self._seen(dialect):
            count += len(seen)
            slowest = heapq.nlargest(most, slowest + seen, key=lambda one: (one.lag or 0, one.queue, one.dropped))
        return {"count": count, "clients": [_shown(one) for one in slowest]}

    async def _seen(self, dialect: str | None) -> AsyncIterator[list["_Seen"]]:
        sessions = [*self._turn.sessions.subscribed, *self._connections.mqtt.sessions.values()]
        known = set(sessions)
        others = [one for one in self._connections.open if one.session not in known]
        everyone: list[Session | Client] = [*sessions, *others]
        for start in range(0, len(everyone), STEP):
            yield [self._look(one) for one in everyone[start : start + STEP] if dialect in (None, _dialect(one).value)]
            await asyncio.sleep(0)

    def _look(self, one: "Session | Client") -> "_Seen":
        if isinstance(one, Client):
            return _Seen(one.session, one, one.waiting, None, one.dropped)
        client = one.outbox if isinstance(one.outbox, Client) else None
        queue = (client.waiting if client else 0) + (one.queued if isinstance(one, MqttSession) else 0)
        return _Seen(one, client, queue, self._lag(one), client.dropped if client else 0)

    def _lag(self, session: Session) -> int | None:
        """Messages between its cursor and the log's end; None if the log does not feed it."""
        if isinstance(session, MqttSession):
            return session.replay.commits.recent.next - session.replay.position if session.replay else None
        return self._turn.followers.lag(session) if self._turn.followers else None


class _Seen(NamedTuple):
    session: Session | None
    client: Client | None  # None: it is away
    queue: int
    lag: int | None
    dropped: int


def _dialect(one: Session | Client) -> Dialect:
    return one.origin.dialect if isinstance(one, Client) else one.dialect


def _shown(one: _Seen) -> dict[str, Any]:
    someone = one.session or one.client
    assert someone
    count, subscriptions = _subscriptions(one.session) if one.session else (0, iter(()))
    source = one.client.origin.source if one.client else ""
    return {
        "dialect": _dialect(someone).value,
        "name": one.session.name if one.session else source,
        "source": source,
        "here": one.client is not None,
        "subscription_count": count,
        "subscriptions": [{"filter": shown, "keep": keep} for shown, keep in islice(subscriptions, MOST_FILTERS)],
        "queue_bytes": one.queue,
        "lag": one.lag,
        "dropped": one.dropped,
    }


def _subscriptions(session: Session) -> tuple[int, Iterator[tuple[str, bool]]]:
    """How many there are, and each in MQTT's notation with whether messages are kept while the client is away."""
    if isinstance(session, MqttSession):
        all_ = session.known.all.values()
        return len(all_), ((_share(one) + shown_filter(one.pattern), session.lasting and one.qos > 0) for one in all_)
    held = session.subscriptions
    return len(held), ((shown_filter(pattern), keep) for pattern, keep in held.items())


def _share(one: Subscription) -> str:
    return f"$share/{one.share}/" if one.share else ""


def shown_filter(pattern: Filter) -> str:
    """In MQTT's notation."""
    levels = (level.decode() if isinstance(level, bytes) else level.value for level in pattern)
    return "/".join(levels)[:LONGEST_FILTER]


def _named(counts: Mapping[Dialect, int]) -> dict[str, int]:
    return {dialect.value: count for dialect, count in counts.items() if count}


def _histogram(timing: Timing) -> dict[str, Any]:
    return {"bounds": TIMES, "counts": list(timing.counts), "sum": round(timing.total, 6)}


def _size(directory: Path) -> int:
    return sum(_bytes_of(directory.iterdir()))


def _bytes_of(files: Iterable[Path]) -> Iterable[int]:
    for file in files:
        try:
            yield file.stat().st_size
        except OSError:  # removed meanwhile
            continue
