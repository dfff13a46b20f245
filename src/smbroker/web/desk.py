"""What the web needs of the broker; the server's desk has it. Errors are the model's."""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from smbroker.model.filter import Filter
from smbroker.model.grant import Grant
from smbroker.model.message import Columns, Rows
from smbroker.model.rights import Shown


@dataclass(frozen=True, slots=True)
class Settings:
    max_body: int  # bytes
    max_payload: int  # bytes
    hosts: tuple[str, ...]  # names for us, besides loopback's and the listener's address; `*`: any
    max_connections: int
    max_streams: int
    metric_topics: int  # that `/metrics` has a series of


class Gate(Protocol):
    """Counts connections; whoever has entered must leave."""

    def enter(self, host: str) -> None:
        """Raises ProtocolError: no room."""

    def leave(self, host: str) -> None: ...


class Desk(Protocol):
    @property
    def open(self) -> bool:
        """Whether the broker is not about to stop."""

    @property
    def streams(self) -> int: ...

    @property
    def first_offset(self) -> int: ...

    @property
    def next_offset(self) -> int: ...

    @property
    def rights_on(self) -> bool:
        """Whether there are rules, and so users."""

    async def enter(self, host: str, certified: str | None, shown: Shown) -> Grant:
        """What whoever asks may do: by what is shown, else by certificate or address. Raises Refused."""

    def begin_session(self, who: Grant) -> str:
        """What a browser shows from here on. Raises Refused."""

    def end_session(self, session: str) -> None: ...

    async def publish(self, columns: Columns) -> int | None:
        """The first offset, once all is on disk; None without a log. Raises LogError."""

    async def publish_batch(self, columns: Columns, query: str, batch: int) -> int | None:
        """As `publish`, of a Spark query's batch that `last_batch` does not know yet; one at a time."""

    async def last_batch(self, query: str) -> int | None: ...

    async def stage(self, body: bytes) -> str:
        """The name of rows that wait for their commit."""

    def staged_rows(self, stages: Sequence[str], most: int) -> AsyncGenerator[Rows, None]:
        """Raises Refused: one of them is missing."""

    async def drop_stages(self, stages: Sequence[str]) -> None: ...

    def knows_token(self, token: str) -> bool:
        """Whether whoever shows it may publish what only the broker and its pipelines may."""

    def arrow_rows(self, body: bytes, most: int) -> AsyncGenerator[Rows, None]:
        """The messages of an Arrow stream, some at a time. Raises Refused."""

    def messages(
        self,
        who: Grant,
        pattern: Filter | None,
        start: int | None,
        since: int | None,
        before: int | None,
        limit: int,
        short: bool,
    ) -> AsyncGenerator[bytes, None]:
        """Lines of JSON; `short`: with the beginnings of payloads. Raises LogError."""

    def follow(self, who: Grant, pattern: Filter | None, start: int | None) -> AsyncGenerator[bytes, None]:
        """Server-sent events; an empty piece first, and after silence. Raises LogError."""

    def topics(
        self, who: Grant, search: str, since: int, most: int, characters: int, busiest: bool = False
    ) -> AsyncGenerator[bytes, None]:
        """The items of a JSON list: topics that hold `search`, with a message at `since` or later. Raises LogError."""

    async def stats(self, who: Grant) -> dict[str, Any]: ...

    async def clients(self, who: Grant, dialect: str | None, most: int) -> dict[str, Any]:
        """`most` of them, those that are the furthest behind."""

    async def pipelines(self, who: Grant) -> dict[str, Any]: ...

    async def tables(self, who: Grant) -> dict[str, Any]:
        """Raises Refused."""

    async def table(self, who: Grant, name: str, most: int, topic: str | None) -> dict[str, Any]:
        """The last rows; with `topic` of that topic. Raises Refused."""

    def live(self, who: Grant, pattern: Filter | None, tail: bool) -> AsyncGenerator[bytes, None]:
        """Server-sent events at a bounded rate: figures, and with `tail` a sample of messages. Raises Refused."""

    async def health(self, who: Grant) -> tuple[bool, dict[str, Any]]:
        """Whether all is well, and what to say."""

    def mqtt_connection(self) -> asyncio.Protocol:
        """One that speaks MQTT over the transport that it is given."""

    def warn(self, code: str, text: str) -> None:
        """On the broker's console."""

    def refused(self, code: str) -> None:
        """Counts a request that was declined."""
