"""The census: for each topic how many messages it has, and the last one. A cursor on the log, in the reading process.

Bounded: past so many topics, or bytes, those that have been silent the longest are forgotten. A step reads
so few rows that other questions need not wait for long.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa

from smbroker.log.questions import Wanted
from smbroker.log.reader import LogReader
from smbroker.log.rows import as_text, shown_time

STEP = 200_000  # offsets
LONGEST_TEXT = 1_000  # characters that are kept of a last message
MAX_BYTES = 64 << 20  # of topics and texts
PIECE = 1_000  # topics
COLUMNS = ("offset", "ts", "topic", "payload")


@dataclass(slots=True)
class Tally:
    count: int
    last_offset: int
    last_ts: int
    last_text: str | None


class Census:
    def __init__(self, reader: LogReader) -> None:
        self._reader = reader
        self._topics: dict[str, Tally] = {}
        self._bytes = 0
        self.next = 0

    def advance(self, end: int, most: int) -> None:
        """One step towards `end`. Raises LogError; set `next` to where reading can go on."""
        self.next = max(self.next, self._reader.first_offset)
        stop = min(end, self.next + STEP)
        for batch in self._reader.read(self.next, stop, columns=COLUMNS):
            self._take(batch)
            self.next = batch.column("offset")[-1].as_py() + 1
            if len(self._topics) > most or self._bytes > MAX_BYTES:
                self._forget(most)
        self.next = max(self.next, stop)

    def pieces(self, wanted: Wanted) -> Iterator[bytes]:
        """The items of a JSON list; commas included."""
        search, permit = wanted.search.casefold(), wanted.permit
        topics = [
            topic
            for topic, tally in self._topics.items()
            if tally.last_offset >= wanted.since and (not search or search in topic.casefold())
        ]
        if permit is not None:
            topics = [topic for topic in topics if permit.allows(topic.encode())]
        if wanted.busiest:
            topics.sort(key=lambda topic: self._topics[topic].count, reverse=True)
        else:
            topics.sort()
        del topics[len(topics) if wanted.most is None else wanted.most :]
        for start in range(0, len(topics), PIECE):
            chosen = [topic for topic in topics[start : start + PIECE] if topic in self._topics]
            items = [self._item(topic, wanted.characters) for topic in chosen]
            yield (("," if start else "") + ",".join(items)).encode()

    def _item(self, topic: str, characters: int | None) -> str:
        tally = self._topics[topic]
        return as_text(
            {
                "topic": topic,
                "count": tally.count,
                "last_offset": tally.last_offset,
                "last_ts": shown_time(tally.last_ts),
                "last_text": tally.last_text and tally.last_text[:characters],
            }
        )

    def _take(self, batch: pa.RecordBatch) -> None:
        rows = pa.table({"topic": batch.column("topic"), "row": pa.array(range(len(batch)), pa.int64())})
        groups = rows.group_by("topic", use_threads=False).aggregate([("row", "max"), ("row", "count")])
        last = batch.take(groups.column("row_max").combine_chunks())
        for topic, count, offset, ts, payload in zip(
            groups.column("topic").to_pylist(),
            groups.column("row_count").to_pylist(),
            last.column("offset").to_pylist(),
            last.column("ts").cast(pa.int64()).to_pylist(),
            last.column("payload").to_pylist(),
            strict=True,
        ):
            known = self._topics.get(topic)
            text = _text(payload)
            self._bytes += len(text or "") - (len(known.last_text or "") if known else -len(topic))
            self._topics[topic] = Tally(count + (known.count if known else 0), offset, ts, text)

    def _forget(self, most: int) -> None:
        """The silent ones, and some more, so that this is not done for each new topic."""
        by_silence = sorted(self._topics, key=lambda topic: self._topics[topic].last_offset)
        left = most - most // 10
        for topic in by_silence:
            if len(self._topics) <= left and self._bytes <= MAX_BYTES - MAX_BYTES // 10:
                return
            self._bytes -= len(topic) + len(self._topics.pop(topic).last_text or "")


def _text(payload: bytes) -> str | None:
    try:
        return payload.decode()[:LONGEST_TEXT]
    except UnicodeDecodeError:
        return None
