"""The log against a Python list: append, rotate, seal, recover, retain, read any range and topic set."""

import shutil
import tempfile
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from logkit import LONG, ORIGINS, QuickDisk

from smbroker.log import seal
from smbroker.log.log import Log
from smbroker.log.reader import LogReader
from smbroker.log.seal import seal_segment
from smbroker.log.settings import LogSettings
from smbroker.log.verify import verify
from smbroker.model.errors import LogError
from smbroker.model.message import Columns, Extra, Kind

TOPICS = [b"a", b"a/b", b"b", "ü".encode()]
messages = st.lists(st.tuples(st.sampled_from(TOPICS), st.binary(max_size=20)), max_size=30)
HOUR = 3_600_000_000


class LogMachine(RuleBasedStateMachine):
    @initialize()
    def begin(self) -> None:
        seal.GROUP_ROWS = 16
        self.directory = Path(tempfile.mkdtemp(prefix="smb-log-"))
        self.settings = LogSettings(seal_rows=40, seal_age=0, retain_age=3600.0)
        self.rows: list[tuple[bytes, bytes, int]] = []  # by offset: topic, payload, ts
        self.first = 0
        self.clock = HOUR
        self.open()
        self.reader = LogReader(self.directory)

    def open(self) -> None:
        self.log = Log.open(self.directory, self.settings, QuickDisk())

    @rule(turns=st.lists(messages, min_size=1, max_size=3), qos=st.integers(0, 2))
    def append(self, turns: list[list[tuple[bytes, bytes]]], qos: int) -> None:
        columns = []
        for turn in turns:
            self.clock += 1
            topics, payloads = [topic for topic, _ in turn], [payload for _, payload in turn]
            extras = {0: Extra(qos)} if turn else {}
            count = len(turn)
            columns.append(Columns(self.clock, topics, payloads, [Kind.BYTES] * count, [ORIGINS[qos]] * count, extras))
        assert self.log.append(columns) == len(self.rows)
        for part in columns:
            self.rows += [(*pair, part.received) for pair in zip(part.topics, part.payloads, strict=True)]

    @rule()
    def rotate(self) -> None:
        self.log.rotate()

    @rule()
    def rotate_if_due(self) -> None:
        self.log.rotate_if_due(0.0)

    @rule(rows=st.sampled_from([1, 40, 1000]))
    def seal(self, rows: int) -> None:
        for base in self.log.pending_seals[:2]:
            seal_segment(self.directory, base, rows=rows)

    @rule()
    def reopen(self) -> None:
        self.log.close()
        self.open()
        assert self.log.recovered == []

    @rule()
    def crash(self) -> None:
        """The process ends, something unfinished stays behind."""
        self.log._lock.release()
        tail = max(self.directory.glob("*.arrow"))
        with tail.open("ab") as file:
            file.write(b"\xff\xff\xff\xff\x08\x00\x00\x00unfinished")
        self.open()
        assert len(self.log.recovered) == 1

    @rule(hours=st.integers(0, 2))
    def pass_time(self, hours: int) -> None:
        self.clock += hours * HOUR

    @rule()
    def retain(self) -> None:
        self.log.retain(self.clock / 1e6)
        first = self.log.first_offset
        assert all(ts < self.clock - HOUR for _, _, ts in self.rows[self.first : first])
        self.first = max(self.first, first)

    @rule(data=st.data())
    def read(self, data: st.DataObject) -> None:
        end = data.draw(st.integers(self.first, len(self.rows)))
        start = data.draw(st.integers(self.first, end))
        wanted = data.draw(st.none() | st.sets(st.sampled_from(TOPICS)))
        expected = [
            (start + position, *row)
            for position, row in enumerate(self.rows[start:end])
            if wanted is None or row[0] in wanted
        ]
        for source in (self.log, self.reader):
            for topics in (wanted, None if wanted is None else wanted.__contains__):
                assert found(source, start, end, topics) == expected

    @rule(data=st.data())
    def find_a_time(self, data: st.DataObject) -> None:
        ts = data.draw(st.integers(HOUR, self.clock + 1))
        later = [offset for offset in range(self.first, len(self.rows)) if self.rows[offset][2] >= ts]
        assert self.reader.offset_at(ts) == (later[0] if later else len(self.rows))

    @rule()
    def read_what_is_gone(self) -> None:
        if self.first:
            with pytest.raises(LogError, match=f"the first there is is {self.first}"):
                next(self.reader.read(self.first - 1), None)

    @rule()
    def look_for_damage(self) -> None:
        assert list(verify(self.directory)) == []

    @invariant()
    def both_know_the_ends(self) -> None:
        if hasattr(self, "log"):
            assert (self.log.first_offset, self.log.next_offset) == (self.first, len(self.rows))
            assert (self.reader.first_offset, self.reader.next_offset) == (self.first, len(self.rows))

    def teardown(self) -> None:
        seal.GROUP_ROWS = 131_072
        if hasattr(self, "log"):
            self.log.close()
            shutil.rmtree(self.directory)


def found(source: Log | LogReader, start: int, end: int, topics: object) -> list[tuple[int, bytes, bytes, int]]:
    rows = []
    for batch in source.read(start, end, topics):  # type: ignore[arg-type]
        columns = [batch.column(name).to_pylist() for name in ("offset", "topic", "payload")]
        times = batch.column("ts").cast(pa.int64()).to_pylist()
        rows += [
            (offset, topic.encode(), payload, ts) for offset, topic, payload, ts in zip(*columns, times, strict=True)
        ]
    return rows


TestLogMachine = LogMachine.TestCase
TestLogMachine.settings = settings(
    max_examples=300 if LONG else 25,
    stateful_step_count=60 if LONG else 30,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
