"""A topic that has been silent for several times its usual gap: told at `$alerts/silence/TOPIC`, and so is its return.

By processing-time timers: when nobody speaks, event time stands still. A timer that goes off is believed only if the
log itself has gone past it, or has not gone on since the timer went off before: while the pipeline catches up, the
watermark (how far the log has been read) moves, and the topic's next message may be among what is still to be read.
"""

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, Row
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle

WATERMARK = "0 seconds"
MODE = "update"
EVERY = "2 seconds"
TOPIC = "$alerts/silence/{topic}"

TIMES = 5  # its usual gap: so long a topic may be silent
LEAST = 10_000  # milliseconds of silence that are never told: networks and devices hiccup
KNOWN_AFTER = 3  # gaps that a topic must have shown before it has a usual one
WEIGHT = 0.2  # of the newest gap in the usual one


def transform(messages: DataFrame) -> DataFrame:
    spoken = messages.select("topic", "ts").mapInArrow(_by_topic, "topic string, times array<bigint>")
    return spoken.groupBy("topic").transformWithState(
        Silence(), "topic string, state string, since string, usual_gap double", "update", "processingTime"
    )


def _by_topic(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """A row for each topic of a batch, not for each message: Python sees them one by one."""
    for batch in batches:
        times = batch.column("ts").cast(pa.timestamp("ms", "UTC"), safe=False).cast(pa.int64())
        table = pa.table({"topic": batch.column("topic"), "times": times})
        grouped = table.group_by("topic", use_threads=False).aggregate([("times", "list")])
        yield from grouped.rename_columns(["topic", "times"]).to_batches()


class Silence(StatefulProcessor):
    def init(self, handle: StatefulProcessorHandle) -> None:
        self._handle = handle
        # last: when it spoke; gap: usual, in ms; gaps: how many were seen; mark: of the log when a timer went off
        self._state = handle.getValueState("topic", "last long, gap double, gaps long, silent boolean, mark long")

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        last, gap, gaps, silent, _ = self._state.get() or (None, 0.0, 0, False, None)
        times = sorted(time for row in rows for time in row.times)
        if silent:
            yield _row(key[0], "returned", times[0], gap)
        for time in times:
            if last is not None and not silent:  # the silence itself is no usual gap
                gap = gap + WEIGHT * (time - last - gap) if gaps else float(time - last)
                gaps += 1
            last, silent = max(time, last or 0), False
        self._state.update((last, gap, gaps, False, None))
        self._set_timer(timerValues.getCurrentProcessingTimeInMs() + _allowed(gap), gaps)

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[Row]:  # noqa: ARG002
        last, gap, gaps, silent, seen = self._state.get() or (0, 0.0, 0, False, None)
        mark = timerValues.getCurrentWatermarkInMs()
        if silent:
            return
        if mark < last + _allowed(gap) and mark != seen:  # not read so far yet, and reading on
            self._state.update((last, gap, gaps, False, mark))
            self._set_timer(timerValues.getCurrentProcessingTimeInMs() + min(_allowed(gap), LEAST), gaps)
            return
        self._state.update((last, gap, gaps, True, None))
        yield _row(key[0], "silent", last, gap)

    def _set_timer(self, at: float, gaps: int) -> None:
        for timer in list(self._handle.listTimers()):
            self._handle.deleteTimer(timer)
        if gaps >= KNOWN_AFTER:
            self._handle.registerTimer(int(at))

    def close(self) -> None:
        pass


def _allowed(gap: float) -> float:
    return max(TIMES * gap, LEAST)


def _row(topic: str, state: str, since: int, gap: float) -> Row:
    moment = datetime.fromtimestamp(since / 1000, UTC).isoformat(timespec="milliseconds")
    return Row(topic=topic, state=state, since=moment.replace("+00:00", "Z"), usual_gap=round(gap / 1000, 3))
