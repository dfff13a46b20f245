"""The group committer: a thread that appends all that has queued up under one sync.

Where nobody waits for a commit its thread rests in between, until a message has just left and the next one is
longest away (`gap`): what it does then holds up nobody.

`submit` is for any thread and never waits. Callbacks come in the writer's thread, one call per
commit with all its entries. After a disk error what is queued and what is submitted is refused
at once, until a probe, every `retry` seconds, finds that the disk takes writes again.
"""

import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from threading import Condition, Lock, Thread

from smbroker.log.few import go_on
from smbroker.log.format import Note
from smbroker.log.log import Log
from smbroker.model.errors import LogError
from smbroker.model.message import Columns

COMMIT_BYTES = 32 << 20  # payload bytes taken into one commit: a flood must not hold up the acks before it
REST = 5e-4  # seconds that the thread waits for a gap at most: where messages are rare it is in nobody's way
RETRY = 1.0  # seconds between probes of a disk that refused


@dataclass(slots=True, eq=False)
class Entry:
    """What was submitted, and where it ended up."""

    columns: Columns
    notes: Sequence[Note]
    ticket: object  # the caller's own
    size: int
    hurried: bool  # someone waits
    offset: int = -1  # of the first message, once committed


class Writer:
    def __init__(
        self,
        log: Log,
        on_commit: Callable[[list[Entry]], None],
        on_refuse: Callable[[list[Entry], LogError], None],
        on_state: Callable[[LogError | None], None] = lambda _: None,
        retry: float = RETRY,
        clock: Callable[[], float] = time.time,
        appended: Callable[[float], None] = lambda _: None,
    ) -> None:
        """`on_state` hears the error when the log begins to refuse, None when it takes messages again.

        `appended` hears, in the writer's thread, how many seconds each append took, rests left out."""
        self._log = log
        self._on_commit, self._on_refuse, self._on_state = on_commit, on_refuse, on_state
        self._retry, self._clock = retry, clock
        self._appended = appended
        self._queue: deque[Entry] = deque()
        self._changed = Condition()
        self._closing = False
        self._hurry = False  # somebody waits for what was submitted
        self._rested = 0.0  # seconds of this commit
        self.rests = False  # until the next gap
        self._gap = Lock()  # held; who releases it ends the rest
        self._gap.acquire()
        self.queued_bytes = 0  # payloads submitted and neither committed nor refused
        self.failed: LogError | None = None  # why the log refuses; None while it takes messages
        self._next_attempt = 0.0  # the system's clock may be set back, so not by that
        self._thread = Thread(target=self._run, name="log-writer", daemon=True)
        self._thread.start()

    def submit(
        self,
        columns: Columns,
        notes: Sequence[Note] = (),
        ticket: object = None,
        size: int | None = None,
        hurried: bool = True,
    ) -> Entry:
        """Queues; the entry comes back through a callback. `size`: payload bytes, if the caller has counted them."""
        entry = Entry(columns, notes, ticket, columns.bytes if size is None else size, hurried)
        with self._changed:
            if self._closing:
                raise LogError("closed", "the log is closed")
            self._queue.append(entry)
            self.queued_bytes += entry.size
            self._hurry |= hurried
            self._changed.notify()
        if hurried:
            self.gap()
        return entry

    def hurry(self) -> None:
        """Somebody waits for all that was submitted: the thread does not rest until it has come to the end of that."""
        with self._changed:
            self._hurry = True
        self.gap()

    def gap(self) -> None:
        """Ends the thread's rest, if it has one. For whoever passes messages on, when one has just left."""
        if self.rests:
            self.rests = False
            try:
                self._gap.release()
            except RuntimeError:  # open already: a gap came as the thread gave up waiting, and ends its next rest
                pass

    def _breathe(self) -> None:
        self.rests = True  # first: who is in a hurry from here on sees it
        if not (self._hurry or self._closing):
            began = time.perf_counter()
            self._gap.acquire(timeout=REST)
            self._rested += time.perf_counter() - began
        self.rests = False

    def close(self) -> None:
        """Commits what is queued, then ends the thread. The log stays open."""
        with self._changed:
            self._closing = True
            self._changed.notify()
        self.gap()
        self._thread.join()

    def _run(self) -> None:
        while True:
            entries = self._taken()
            if self.failed and time.monotonic() >= self._next_attempt:
                self._probe()
            if entries:
                self._settle(entries)
            elif self._closing:
                return

    def _taken(self) -> list[Entry]:
        """All that has queued up, at most COMMIT_BYTES; nothing when it is time to probe or to end."""
        with self._changed:
            while not self._queue and not self._closing:
                self._hurry = False
                wait = max(self._next_attempt - time.monotonic(), 0.0) if self.failed else None
                if not self._changed.wait(wait) and self.failed:
                    return []
            entries: list[Entry] = []
            size = 0
            while self._queue and size < COMMIT_BYTES:
                entries.append(self._queue.popleft())
                size += entries[-1].size
            return entries

    def _settle(self, entries: list[Entry]) -> None:
        if self.failed:
            self._refuse(entries, self.failed)
            return
        try:
            self._commit(entries)
        except LogError as error:
            if error.code != "disk" and len(entries) > 1:  # one of them cannot be kept: find out which
                self._hurry |= any(entry.hurried for entry in entries)
                for entry in entries:
                    self._settle([entry])
                return
            if error.code == "disk":
                self._fail(error)
            self._refuse(entries, error)
            return
        self._rotate()

    def _commit(self, entries: list[Entry]) -> None:
        notes = [note for entry in entries for note in entry.notes]
        hurried = any(entry.hurried for entry in entries)
        started, self._rested = time.perf_counter(), 0.0
        try:
            offset = self._log.append([entry.columns for entry in entries], notes, go_on if hurried else self._breathe)
        except LogError:
            raise
        except Exception as bug:  # nothing of it is in the log; those who wait must hear of it, and the others go on
            raise LogError("bug", f"a bug in the log: {type(bug).__name__}") from bug
        self._appended(time.perf_counter() - started - self._rested)
        for entry in entries:
            entry.offset = offset
            offset += len(entry.columns)
        self._done(entries)
        self._on_commit(entries)

    def _refuse(self, entries: list[Entry], error: LogError) -> None:
        self._done(entries)
        self._on_refuse(entries, error)

    def _done(self, entries: list[Entry]) -> None:
        with self._changed:
            self.queued_bytes -= sum(entry.size for entry in entries)

    def _rotate(self) -> None:
        if time.monotonic() < self._next_attempt:
            return
        try:
            self._log.rotate_if_due(self._clock())
        except LogError as error:
            self._next_attempt = time.monotonic() + self._retry
            if not self._log.ready:  # else the old tail still takes messages
                self._fail(error)

    def _fail(self, error: LogError) -> None:
        self.failed = error
        self._next_attempt = time.monotonic() + self._retry
        self._on_state(error)

    def _probe(self) -> None:
        try:
            self._log.probe()
        except LogError as error:
            self.failed = error
            self._next_attempt = time.monotonic() + self._retry
            return
        self.failed = None
        self._on_state(None)
