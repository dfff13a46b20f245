"""The sink's ledger: the last batch that each Spark query has published, so that a repeat changes nothing.

An entry travels in the log as a note of the batch's own messages, under the same sync: both are there after a crash,
or neither. SQLite holds the ledger as a checkpoint, *applied through offset N*; what came after N is applied again
from the notes. Notes go when a tail is sealed, so N passes a segment before that happens (`apply`).
"""

import json
from collections.abc import Iterable
from threading import Lock

from smbroker.log.format import Note
from smbroker.log.log import Log
from smbroker.log.state import State
from smbroker.model.errors import Refused

NAME = "sink"  # of the note
MAX_QUERIES = 100_000


class Ledger:
    def __init__(self, state: State, log: Log) -> None:
        self._state = state
        self._log = log
        self._until = log.next_offset  # what is published from here on is known without reading
        self._batches: dict[str, int] | None = None
        self._loading = Lock()

    def load(self) -> None:
        """Before anything else; blocks, and does nothing the second time. Raises LogError."""
        with self._loading:
            if self._batches is None:
                batches, applied = self._state.load_ledger()
                for end, notes in self._log.notes(applied, self._until):
                    for query, batch in _entries(notes):
                        if batch > batches.get(query, -1):
                            batches[query] = batch
                            self._state.save_batch(query, batch, end)
                self._batches = batches

    def last(self, query: str) -> int | None:
        return self._loaded.get(query)

    def note(self, query: str, batch: int) -> Note:
        """What goes into the log with the batch. Raises Refused if there is no room for another query."""
        if query not in self._loaded and len(self._loaded) >= MAX_QUERIES:
            raise Refused("too_many_queries", f"the ledger has {MAX_QUERIES} queries already")
        return NAME, json.dumps([query, batch]).encode()

    def published(self, query: str, batch: int, next_offset: int) -> None:
        """The batch is on disk."""
        self._loaded[query] = batch
        self._state.save_batch(query, batch, next_offset)

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
