"""Between the turn and the log: columns go in, and come back once they are on disk.

A turn's columns are handed to the writing thread at once if someone waits for them: an acknowledgement,
or a subscriber that is fed from the log, here or away. Otherwise they gather (`linger`), because a
commit holds up the messages that come in meanwhile, whether it is of one or of a thousand; the rows of
small turns become one. And what is done for such a commit begins when a message has just left (`gap`).
When they are committed, the acknowledgements are released, those who are fed from the log get them, and
they stay in memory for a while (`recent`). While the log cannot take messages (`failed`) nothing is handed
over, and what wants an acknowledgement is refused before it is routed.
"""

import time
from asyncio import AbstractEventLoop, TimerHandle
from collections import deque
from collections.abc import Callable, Sequence
from typing import TypeAlias

from smbroker.core.delivery import Delivery
from smbroker.log.few import MOST_ROWS
from smbroker.log.format import Note
from smbroker.log.log import Log
from smbroker.log.writer import Entry, Writer
from smbroker.model.errors import LogError
from smbroker.model.message import Columns, Origin
from smbroker.model.stats import Stats
from smbroker.model.topic import Topic
from smbroker.server.client import Client
from smbroker.server.console import Console
from smbroker.server.recent import Recent

Ack: TypeAlias = tuple[Client, bytes]
Told: TypeAlias = Callable[[int | LogError | None], None]
"""Hears the first offset of columns, or why they were not kept; None: there is no log."""

BEHIND = 64 << 20  # bytes that wait to be written when reading from publishers pauses
CAUGHT_UP = 16 << 20  # … and goes on
SOON = 0.05  # seconds that messages gather while streams of HTTP are open, or while many come: there are …
FEW = MOST_ROWS  # … as many as the log can lay out without holding up others …
MUCH = 1 << 20  # … or so many bytes of payloads, or there were the last time; and then …
STILL = 8  # … an eighth of that is enough
BESIDE = 0.1  # seconds, while pipelines run
RIPE = 0.001  # seconds that what has gathered long enough waits for a gap at most
ROW_BYTES = 100  # what a message takes besides its topic and payload
WIRE_BYTES = 200  # what one or several that came as packets take besides
FLUSH_ROWS, FLUSH_BYTES = 500, 1 << 20  # delivered before outboxes are flushed
ENOUGH, ENOUGH_BYTES = 10_000, 16 << 20  # messages, or bytes of their payloads, that need not gather any more
SMALL_ROWS, SMALL_BYTES = 20, 4 << 10  # of a turn that is put together with others: each by itself would cost more


class Commits:
    """`feed` is for those who live from the log; `release` and `refuse` answer publishers."""

    def __init__(
        self,
        loop: AbstractEventLoop,
        log: Log,
        stats: Stats,
        console: Console,
        *,
        feed: Delivery,
        release: Callable[[Sequence[Ack]], None],
        refuse: Callable[[Client, bytes, LogError], None],
        linger: float,
        recent_bytes: int,
    ) -> None:
        """`linger`: seconds that messages may gather if nobody waits for their commit and nobody reads them."""
        self.log = log
        self.stats = stats
        self.recent = Recent(log.next_offset, recent_bytes)
        self.failed: LogError | None = None
        self._stopped: LogError | None = None
        self._loop = loop
        self._console = console
        self._feed = feed
        self._release = release
        self._refuse = refuse
        self._submitted: deque[Sequence[Ack] | Callable[[], None]] = deque()  # callbacks wait for those before them
        self._gathered: list[tuple[Columns, Told | None, Sequence[Note]]] = []
        self._hurried = False  # someone waits for some of them
        self._small: Columns | None = None  # the last of them, if it takes further small turns
        self._rows = self._bytes = 0
        self._delivered_rows = self._delivered_bytes = 0
        self._timer: TimerHandle | None = None
        self._soon = 0.0  # when those that gather will have gathered for SOON; 0: they do not any longer than that
        self._ripe = False  # what gathers waits for a gap only
        self._busy = False  # many came before the last commit
        self._longest = linger
        self.followed = False  # somebody must not miss anything, and may be away: the disk is all there is for them
        self.streams = 0  # of HTTP, which show what is committed
        self.pipelines = False  # run, and read it
        self._paused: list[Callable[[], None]] = []
        self.count = 0  # of commits
        self.on_commit: Callable[[], None] = lambda: None  # after each commit, with `recent` up to date
        told = loop.call_soon_threadsafe
        self._writer = Writer(
            log,
            lambda entries: _ignore(told(self._committed, entries)),
            lambda entries, error: _ignore(told(self._refused, entries, error)),
            lambda error: _ignore(told(self._state, error)),
            appended=stats.appends.add,
        )

    @property
    def linger(self) -> float:
        """Seconds until what nobody waits for is committed, if it is not much."""
        soon = SOON if self.streams or self._busy else BESIDE if self.pipelines else self._longest
        return min(self._longest, soon)

    @property
    def first_offset(self) -> int:
        return self.log.first_offset

    @property
    def queued_bytes(self) -> int:
        """About what waits to be on disk."""
        return self._writer.queued_bytes

    @property
    def behind(self) -> bool:
        return self._writer.queued_bytes > BEHIND

    def submit(
        self, columns: Columns, acks: Sequence[Ack], told: Told | None = None, notes: Sequence[Note] = ()
    ) -> None:
        """`notes` are kept under the same sync as the columns, which may be empty."""
        if self.failed:
            self.stats.not_logged += len(columns)
            self._feed.deliver(columns)  # relayed to all the same
            for client, ack in acks:
                self._refuse(client, ack, self.failed)
            if told:
                told(self.failed)
            return
        waited_for = bool(acks or told or notes or self.followed or not self._feed.empty)
        self._hurried |= waited_for
        self._rows += len(columns)
        size = columns.volume
        self._bytes += size
        if not waited_for and len(columns) <= SMALL_ROWS and size <= SMALL_BYTES:
            small = self._begin_small() if self._small is None else self._small
            small.gather(columns)
        else:
            self._small = None
            self._submitted.append(acks)
            self._gathered.append((columns, told, notes))
        if waited_for or self._rows >= ENOUGH or self._bytes >= ENOUGH_BYTES:
            self.hand_over()
        else:
            self._linger()

    def keep(self, topic: Topic, payload: bytes, origin: Origin) -> None:
        """One message that nobody waits for, short and without what only some have. It has just left: see `gap`."""
        if self.failed:
            self.stats.not_logged += 1
            return
        small = self._begin_small() if self._small is None else self._small
        small.add(topic, payload, origin, time.time_ns() // 1000)
        self._rows += 1
        if self._timer is None or self._rows >= FEW:
            self._linger()
        if self._ripe or self._writer.rests:
            self.gap()

    def _begin_small(self) -> Columns:
        self._small = small = Columns()
        self._submitted.append(())
        self._gathered.append((small, None, ()))
        return small

    def _linger(self) -> None:
        """Until it is time. At high rates SOON is best: commits may be large, and are not many."""
        if self._timer is None:
            self._timer = self._loop.call_later(self.linger, self._ripen)
            self._soon = self._loop.time() + SOON if self.linger > SOON else 0.0
        elif self._soon and self._rows >= FEW:
            self._timer.cancel()
            self._timer = self._loop.call_at(self._soon, self.hand_over)
            self._soon = 0.0

    def _ripen(self) -> None:
        self._ripe = True
        self._timer = self._loop.call_later(RIPE, self.hand_over)

    def gap(self) -> None:
        """Messages have just left: the next one is longest away, so now is the time for what would hold it up."""
        if self._ripe:
            self.hand_over()
        else:
            self._writer.gap()

    def hand_over(self) -> None:
        self._ripe = False
        if self._timer:
            self._timer.cancel()
            self._timer = None
        gathered, self._gathered = self._gathered, []
        hurried, self._hurried = self._hurried, False
        weight = STILL if self._busy else 1
        self._busy = weight * self._rows >= FEW or weight * self._bytes >= MUCH
        self._rows = self._bytes = 0
        self._small = None
        for columns, told, notes in gathered:
            size = size_of(columns) + sum(len(value) for _, value in notes)
            self._writer.submit(columns, notes, told, size, hurried)

    def read_by(self, *, streams: int | None = None, pipelines: bool | None = None) -> None:
        """How many streams, or whether pipelines, read from here on. Who is new does not wait for what has gathered."""
        before = self.linger
        self.streams = self.streams if streams is None else streams
        self.pipelines = self.pipelines if pipelines is None else pipelines
        if self.linger < before:
            self.hand_over()

    def after(self, callback: Callable[[], None]) -> None:
        """Calls back when everything submitted so far is committed or has failed."""
        if self._submitted:
            self._submitted.append(callback)
            self._hurried = True
            self.hand_over()
            self._writer.hurry()
        else:
            callback()

    def when_caught_up(self, callback: Callable[[], None]) -> None:
        self._paused.append(callback)

    def stop(self) -> None:
        """What has gathered is handed over; what still comes is passed on, but neither kept nor acknowledged."""
        self.hand_over()
        self.failed = self._stopped = LogError("stopping", "the broker stops")

    def close(self) -> None:
        """Waits until all is written; call `stop` first. What comes of it is told as always."""
        self._writer.close()

    def _committed(self, entries: list[Entry]) -> None:
        self.count += 1
        self.stats.commits.add(time.time() - entries[0].columns.ts(0) / 1e6)
        for entry in entries:
            self._release(self._next_acks())  # first, for a publisher that is subscribed too
            if len(entry.columns):
                entry.columns.base = entry.offset
                self.recent.add(entry.offset, entry.columns, entry.size)
                self._deliver(entry)
            _tell(entry, entry.offset)
            self._call_back()
        self.on_commit()
        self._resume()

    def _refused(self, entries: list[Entry], error: LogError) -> None:
        if error.code == "bug":
            count = sum(len(entry.columns) for entry in entries)
            bug = {"message": f"{count} messages could not be kept", "exception": error.__cause__}
            self._loop.call_exception_handler(bug)
        for entry in entries:
            self.stats.not_logged += len(entry.columns)
            self._deliver(entry)
            for client, ack in self._next_acks():
                self._refuse(client, ack, error)
            _tell(entry, error)
            self._call_back()
        self._resume()

    def _deliver(self, entry: Entry) -> None:
        """Who does not keep up falls back to its cursor before the rest of a long commit is put into its outbox."""
        try:
            self._feed.deliver(entry.columns)
        except Exception as bug:  # those who wait for this commit, and for those after it, get their answers
            self._loop.call_exception_handler({"message": "while feeding from the log", "exception": bug})
        self._delivered_rows += len(entry.columns)
        self._delivered_bytes += entry.size
        if self._delivered_rows > FLUSH_ROWS or self._delivered_bytes > FLUSH_BYTES:
            self._feed.flush()
            self._delivered_rows = self._delivered_bytes = 0

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
        self.failed = self._stopped or error
        self._console.write()


def size_of(columns: Columns) -> int:
    """The bytes that columns take in memory, about."""
    return columns.volume + ROW_BYTES * len(columns) + WIRE_BYTES * len(columns.wires)


def _tell(entry: Entry, outcome: int | LogError) -> None:
    if callable(entry.ticket):
        entry.ticket(outcome)


def _ignore(_handle: object) -> None:
    """For callbacks that return nothing."""
