"""What the log's tests share: messages to append, rows to compare, and a disk that fails on request."""

import errno
import os
from collections.abc import Iterable
from pathlib import Path

import pyarrow as pa

from smbroker.log.disk import Disk
from smbroker.log.log import Log
from smbroker.log.reader import LogReader
from smbroker.model.message import Columns, Dialect, Extra, Kind, Origin

ORIGINS = [
    Origin(Dialect.PIPE, "127.0.0.1", 4001),
    Origin(Dialect.MQTT, "::1", 4002, "a client"),
    Origin(Dialect.TYPED),
]
SOMETIME = 1_700_000_000_000_000  # microseconds since 1970


def turn(texts: Iterable[str], topic: bytes = b"a/b", received: int = SOMETIME) -> Columns:
    """Messages that differ by their payload."""
    payloads = [text.encode() for text in texts]
    count = len(payloads)
    return Columns(received, [topic] * count, payloads, [Kind.STRING] * count, [ORIGINS[0]] * count)


def mixed_turn(count: int, received: int = SOMETIME, topics: int = 5) -> Columns:
    """Messages of many origins, kinds and topics, some with properties."""
    return Columns(
        received,
        [b"t/%d" % (row % topics) for row in range(count)],
        [b"payload %d" % row * (row % 4) for row in range(count)],
        [Kind(row % 5) for row in range(count)],
        [ORIGINS[row % 3] for row in range(count)],
        {row: Extra(row % 3, row % 2 == 0, (("k", "v"),) * (row % 4)) for row in range(0, count, 3)},
    )


def rows_of(batches: Iterable[pa.RecordBatch]) -> list[dict[str, object]]:
    return [row for batch in batches for row in batch.to_pylist()]


def texts_of(log: Log | LogReader) -> list[str]:
    return [str(row["payload"].decode()) for row in rows_of(log.read(0))]  # type: ignore[attr-defined]


def offsets_of(log: Log | LogReader, start: int = 0) -> list[int]:
    return [offset for batch in log.read(start) for offset in batch.column("offset").to_pylist()]


LONG = bool(os.environ.get("SMB_LONG"))  # full rounds; the default run takes fewer


class QuickDisk(Disk):
    """Does not sync: no test here cuts the power."""

    def sync_data(self, handle: int) -> None:
        pass

    def sync_directory(self, directory: Path) -> None:
        pass


class FailingDisk(QuickDisk):
    """Fails at the n-th call that changes something, in the way that `fault` says.

    `short`: half of the bytes are written and the next write fails; `full`: ENOSPC; `broken`: EIO, also
    when the system had done what was asked; `sticky`: every later call fails too, until `heal`.
    """

    def __init__(self, at: int = 0, fault: str = "full", sticky: bool = False) -> None:
        self.at, self.fault, self.sticky = at, fault, sticky
        self.calls = 0
        self.failed = 0

    def heal(self) -> None:
        self.at = 0
        self.sticky = False

    def _due(self) -> bool:
        self.calls += 1
        due = self.at and (self.calls == self.at or (self.sticky and self.calls > self.at))
        self.failed += bool(due)
        return bool(due)

    def _error(self) -> OSError:
        code = errno.EIO if self.fault == "broken" else errno.ENOSPC
        return OSError(code, os.strerror(code))

    def create(self, path: Path) -> int:
        if self._due():
            raise self._error()
        return super().create(path)

    def pwrite(self, handle: int, data: bytes | bytearray | memoryview, position: int) -> int:
        if not self._due():
            return super().pwrite(handle, data, position)
        if self.fault == "short":
            super().pwrite(handle, memoryview(data)[: len(data) // 2], position)
        elif self.fault == "broken":
            super().pwrite(handle, memoryview(data)[: len(data) - 1], position)
        raise self._error()

    def pwrite_past_cache(self, handle: int, blocks: memoryview, position: int) -> int:
        if not self._due():
            return super().pwrite_past_cache(handle, blocks, position)
        if self.fault != "full":
            Disk.pwrite(self, handle, blocks[: len(blocks) // 2], position)
        raise self._error()

    def truncate(self, handle: int, length: int) -> None:
        if self._due():
            raise self._error()
        super().truncate(handle, length)

    def sync_data(self, handle: int) -> None:  # noqa: ARG002
        if self._due():
            raise self._error()

    def sync_directory(self, directory: Path) -> None:  # noqa: ARG002
        if self._due():
            raise self._error()

    def rename(self, old: Path, new: Path) -> None:
        if self._due():
            if self.fault == "broken":
                super().rename(old, new)
            raise self._error()
        super().rename(old, new)

    def unlink(self, path: Path) -> None:
        if self._due():
            raise self._error()
        super().unlink(path)
