"""Finding messages by filter, for the process that reads history: forwards as JSON, backwards as a place to begin.

A filter may match nothing in millions of messages, so each answer covers a bounded range of offsets; others
get theirs in between.
"""

from collections.abc import Iterator
from functools import partial
from itertools import islice

import pyarrow as pa

from smbroker.log.questions import Backwards, Form, Found, Place, Search
from smbroker.log.reader import LogReader
from smbroker.log.rows import COLUMNS, as_json, formed
from smbroker.log.topics import Topics
from smbroker.model.filter import Filter, exact_topic, matches
from smbroker.model.rights import Permit

RANGE = 500_000  # offsets that one answer covers
PIECE_ROWS = 2_000
PIECE_BYTES = 512 << 10


def chosen(pattern: Filter | None, permit: Permit | None) -> Topics | None:
    """Topics that match and may be shown."""
    if pattern is None:
        return None if permit is None else permit.allows
    topic = exact_topic(pattern)
    if topic is not None:
        return frozenset([topic] if permit is None or permit.allows(topic) else [])
    if permit is None:
        return partial(matches, pattern)
    return lambda one: matches(pattern, one) and permit.allows(one)


def found(reader: LogReader, search: Search) -> Iterator[Found]:
    topics, left = chosen(search.filter, search.permit), search.most
    for start in range(search.start, search.end, RANGE):
        end = min(start + RANGE, search.end)
        following = start
        for batch in reader.read(start, end, topics, COLUMNS):
            for rows, following, data in _pieces(batch, search, left):
                left -= rows
                yield Found(search.reading, following, rows, data)
                if not left:
                    return
        if following < end:
            yield Found(search.reading, end, 0, b"")


def _pieces(batch: pa.RecordBatch, search: Search, most: int) -> Iterator[tuple[int, int, bytes]]:
    """Rows, the offset after the last, and their bytes; at least one message each."""
    parts: list[bytes] = []
    size, short = 0, search.form is Form.SHORT
    for start in range(0, min(most, len(batch)), 100):  # few at a time, as payloads may be large
        for row in islice(as_json(batch.slice(start, 100), short=short), most - start):
            parts.append(formed(row, search.form))
            size += len(parts[-1])
            if len(parts) == PIECE_ROWS or size > PIECE_BYTES:
                yield len(parts), row["offset"] + 1, b"".join(parts)
                parts, size = [], 0
    if parts:
        yield len(parts), row["offset"] + 1, b"".join(parts)


def last_of(reader: LogReader, question: Backwards) -> Place:
    """The place, and how many messages are from there to the end; fewer than `most` if there are no more."""
    offsets: list[int] = []
    for batch in reader.read(question.start, question.end, chosen(question.filter, question.permit), ("offset",)):
        offsets += batch.column("offset").to_pylist()
        del offsets[: -question.most]
    return Place(question.reading, offsets[0] if offsets else question.start, len(offsets))
