"""Between the turn and the log: columns go in, and come back once they are on disk.

A turn's columns are handed to the writing thread with the acknowledgements that wait for them. When
they are committed, the acknowledgements are released, those who are fed from the log get them, and they
stay in memory for a while (`recent`). While the log cannot take messages (`failed`) nothing is handed
over, and what wants an acknowledgement is refused before it is routed.
"""

from asyncio import AbstractEventLoop
from collections import deque
from collections.abc import Callable, Sequence
from typing import TypeAlias

from smbroker.log.log import Log
from smbroker.log.writer import Entry, Writer
from smbroker.model.errors import LogError
from smbroker.model.message import Columns
from smbroker.model.stats import Stats
from smbroker.server.client import Client
from smbroker.server.console import Console
from smbroker.server.recent import Recent

Ack: TypeAlias = tuple[Client, bytes]

BEHIND = 64 << 20  # bytes that wait to be written when reading from publishers pauses
CAUGHT_UP = 16 << 20  # … and goes on


class Commits:
    """`deliver` feeds those who live from the log; `release` and `refuse` answer publishers."""

    def __init__(
        self,
        loop: AbstractEventLoop,
        log: Log,
        stats: Stats,
        console: Console,
        *,
        deliver: Callable[[Columns], None],
        release: Callable[[Sequence[Ack]], None],
        refuse: Callable[[Client, LogError], None],
    ) -> None:
        self.log = log
        self.stats = stats
        self.recent = Recent(log.next_offset)
        self.failed: LogError | None = None
        self._loop = loop
        self._console = console
        self._deliver = deliver
        self._release = release
        self._refuse = refuse
        self._submitted: deque[Sequence[Ack] | Callable[[], None]] = deque()  # callbacks wait for those before them
        self._paused: list[Callable[[], None]] = []
        told = loop.call_soon_threadsafe
        self._writer = Writer(
            log,
            lambda entries: _ignore(told(self._committed, entries)),
            lambda entries, error: _ignore(told(self._refused, entries, error)),
            lambda error: _ignore(told(self._state, error)),
        )

    @property
    def first_offset(self) -> int:
        return self.log.first_offset

    @property
    def behind(self) -> bool:
        return self._writer.queued_bytes > BEHIND

    def submit(self, columns: Columns, acks: Sequence[Ack]) -> None:
        if self.failed:
            self.stats.not_logged += len(columns)
            for client, _ in acks:
                self._refuse(client, self.failed)
            return
        self._submitted.append(acks)
        self._writer.submit(columns)

    def after(self, callback: Callable[[], None]) -> None:
        """Calls back when everything submitted so far is committed or has failed."""
        if self._submitted:
            self._submitted.append(callback)
        else:
            callback()

    def when_caught_up(self, callback: Callable[[], None]) -> None:
        self._paused.append(callback)

    def close(self) -> None:
        """Waits for what is being written; what comes of it is told as always."""
        self._writer.close()

    def _committed(self, entries: list[Entry]) -> None:
        for entry in entries:
            self.recent.add(entry.offset, entry.columns)
            self._deliver(entry.columns)
            self._release(self._next_acks())
            self._call_back()
        self._resume()

    def _refused(self, entries: list[Entry], error: LogError) -> None:
        for entry in entries:
            self.stats.not_logged += len(entry.columns)
            for client, _ in self._next_acks():
                self._refuse(client, error)
            self._call_back()
        self._resume()

    def _next_acks(self) -> Sequence[Ack]:
        """Entries come back in the order in which they were submitted."""
        acks = self._submitted.popleft()
        assert not callable(acks)
        return acks

    def _call_back(self) -> None:
        while self._submitted and callable(callback := self._submitted[0]):
            self._submitted.popleft()
            callback()

    def _resume(self) -> None:
        if self._paused and self._writer.queued_bytes < CAUGHT_UP:
            paused, self._paused = self._paused, []
            for resume in paused:
                resume()

    def _state(self, error: LogError | None) -> None:
        if error and not self.failed:
            self._console.error(f"{error.text}; messages that want an acknowledgement are refused until it can")
        elif self.failed and not error:
            self._console.note("the log takes messages again")
        self.failed = error
        self._console.write()


def _ignore(_handle: object) -> None:
    """For callbacks that return nothing."""
