"""The sink's ledger: the last batch that each Spark query has published, so that a repeat changes nothing.

An entry travels in the log as a note of the batch's own messages, under the same sync: both are there after a crash,
or neither. SQLite holds the ledger as a checkpoint, *applied through offset N*; what came after N is applied again
from the notes. Notes go when a tail is sealed, so N passes a segment before that happens (`apply`).

A query of one batch (`df.write`) is repeated within a minute or never: of those the ledger keeps the last ones only.
"""

import json
import re
from collections import deque
from collections.abc import Iterable
from threading import Lock

from smbroker.log.format import Note
from smbroker.log.log import Log
from smbroker.log.state import State
from smbroker.model.errors import Refused

NAME = "sink"  # of the note
MAX_QUERIES = 100_000
WRITE = re.compile(r"(.*/)?write-[0-9a-f]{32}")  # a query of one batch; before it may stand whose
MAX_WRITES = 10_000  # of those


class Ledger:
    def __init__(self, state: State, log: Log) -> None:
        self._state = state
        self._log = log
        self._until = log.next_offset  # what is published from here on is known without reading
        self._batches: dict[str, int] | None = None
        self._writes: deque[str] = deque()  # oldest first
        self._loading = Lock()

    def load(self) -> None:
        """Before anything else; blocks, and does nothing the second time. Raises LogError."""
        with self._loading:
            if self._batches is None:
                batches, applied = self._state.load_ledger()
                for end, notes in self._log.notes(applied, self._until):
                    for query, batch in _entries(notes):
                        if batch > batches.get(query, -1):
                            self._state.save_batch(query, batch, end)
                        batches[query] = max(batches.pop(query, -1), batch)  # to the end: it is the newest
                self._batches = batches
                self._writes.extend(filter(WRITE.fullmatch, batches))
                self._forget_writes()

    def last(self, query: str) -> int | None:
        return self._loaded.get(query)

    def note(self, query: str, batch: int) -> Note:
        """What goes into the log with the batch. Raises Refused if there is no room for another query."""
        if query not in self._loaded and len(self._loaded) >= MAX_QUERIES:
            raise Refused("too_many_queries", f"the ledger has {MAX_QUERIES} queries already")
        return NAME, json.dumps([query, batch]).encode()

    def published(self, query: str, batch: int, next_offset: int) -> None:
        """The batch is on disk."""
        if query not in self._loaded and WRITE.fullmatch(query):
            self._writes.append(query)
        self._loaded[query] = batch
        self._state.save_batch(query, batch, next_offset)
        self._forget_writes()

    def _forget_writes(self) -> None:
        while len(self._writes) > MAX_WRITES:
            oldest = self._writes.popleft()
            del self._loaded[oldest]
            self._state.drop_batch(oldest)

    def apply(self, through: int) -> bool:
        """Everything before this offset is in the checkpoint; blocks. Whether it could be saved."""
        self.load()
        self._state.save_applied(through)
        return self._state.flush(limit=5.0)

    @property
    def _loaded(self) -> dict[str, int]:
        assert self._batches is not None
        return self._batches


def _entries(notes: Iterable[Note]) -> Iterable[tuple[str, int]]:
    for name, value in notes:
        if name == NAME:
            query, batch = json.loads(value)
            yield query, batch
