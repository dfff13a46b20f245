"""Single payloads out of a Parquet file, without decompressing the rest.

Arrow's Parquet reader has no way to skip to a page, and a topic's messages are scattered over all
pages. So when a segment is sealed the positions of the payload column's pages are noted in the
index, and here just the pages that hold a wanted row are read. Known of Parquet: the page header
(Thrift's compact protocol) and a v1 data page of a flat, optional BYTE_ARRAY column in PLAIN
encoding: `levels' length (4), levels, then length (4) and bytes of each value`.
"""

from bisect import bisect_right
from collections.abc import Sequence
from pathlib import Path
from struct import Struct
from typing import Any
from zlib import crc32

import pyarrow as pa
import pyarrow.parquet as pq

from smbroker.log.disk import Disk, read_all
from smbroker.log.index import PAGES
from smbroker.model.errors import LogError

_HEADER_WINDOW = 512  # more than a page header without statistics takes
_DATA_PAGE, _PLAIN = 0, 0
_length = Struct("<I").unpack_from


def payload_pages(disk: Disk, handle: int, metadata: pq.FileMetaData, column: int) -> pa.Table:
    """Where the column's pages stand. Empty if any of them is not as this file expects it."""
    columns: tuple[list[int], ...] = ([], [], [], [], [])
    first_row = 0
    for group in range(metadata.num_row_groups):
        chunk = metadata.row_group(group).column(column)
        position = chunk.dictionary_page_offset or chunk.data_page_offset
        end = position + chunk.total_compressed_size
        row = first_row
        while position < end:
            header, length = _struct(disk.pread(handle, _HEADER_WINDOW, position), 0)
            data = header.get(5)
            if header.get(1) != _DATA_PAGE or data is None or data.get(2) != _PLAIN or 4 not in header:
                return PAGES.empty_table()
            page = (row, position + length, header[3], header[2], header[4] & 0xFFFFFFFF)
            for values, value in zip(columns, page, strict=True):
                values.append(value)
            row += data[1]
            position += length + header[3]
        first_row += metadata.row_group(group).num_rows
        if row != first_row:
            return PAGES.empty_table()
    return pa.table([pa.array(values, pa.int64()) for values in columns], schema=PAGES)


class Pages:
    """The payload pages of one sealed segment."""

    def __init__(self, table: pa.Table) -> None:
        self._rows, self._positions, self._bytes, self._raw_bytes, self._crcs = (
            table.column(name).to_pylist() for name in PAGES.names
        )
        self._codec = pa.Codec("zstd")

    def between(self, start: int, end: int) -> int:
        """How many pages the rows [start, end) are spread over; 0 if nothing is known."""
        if not self._rows:
            return 0
        return bisect_right(self._rows, end - 1) - bisect_right(self._rows, start) + 1

    def payloads(self, disk: Disk, handle: int, path: Path, rows: Sequence[int]) -> list[bytes]:
        """Of the rows, which are in order."""
        found: list[bytes] = []
        page, raw, row, at, step = -1, b"", 0, 0, 0
        for wanted in rows:
            number = bisect_right(self._rows, wanted) - 1
            if number != page:
                page, raw, row = number, self._page(disk, handle, path, number), self._rows[number]
                at = 4 + _length(raw, 0)[0]
                step = _step(raw, at)
            if step:
                at += step * (wanted - row)
            else:
                for _ in range(wanted - row):
                    at += 4 + _length(raw, at)[0]
            row, length = wanted + 1, _length(raw, at)[0]
            found.append(raw[at + 4 : at + 4 + length])
            at += 4 + length
        return found

    def _page(self, disk: Disk, handle: int, path: Path, number: int) -> bytes:
        packed = read_all(disk, handle, self._bytes[number], self._positions[number])
        if len(packed) != self._bytes[number] or crc32(packed) != self._crcs[number]:
            raise LogError("damaged", f"{path.name}: a page with a wrong CRC at byte {self._positions[number]}")
        raw: bytes = self._codec.decompress(packed, self._raw_bytes[number], asbytes=True)
        return raw


def _step(raw: bytes, at: int) -> int:
    """From one value to the next if all that begin at `at` are of one length, as readings often are; else 0."""
    step = 4 + _length(raw, at)[0]
    count, left = divmod(len(raw) - at, step)
    alike = not left and all(raw[at + byte :: step] == raw[at + byte : at + byte + 1] * count for byte in range(4))
    return step if alike else 0


def _varint(raw: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = raw[at]
        at += 1
        value |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            return value, at


def _zigzag(raw: bytes, at: int) -> tuple[int, int]:
    value, at = _varint(raw, at)
    return (value >> 1) ^ -(value & 1), at


def _struct(raw: bytes, at: int) -> tuple[dict[int, Any], int]:
    """A Thrift struct in the compact protocol as {field id: value}, and the position after it."""
    fields: dict[int, Any] = {}
    field = 0
    while raw[at]:
        kind, step = raw[at] & 0x0F, raw[at] >> 4
        at += 1
        if step:
            field += step
        else:
            field, at = _zigzag(raw, at)
        if kind in (1, 2):
            fields[field] = kind == 1
        elif kind in (4, 5, 6):
            fields[field], at = _zigzag(raw, at)
        elif kind == 8:
            length, at = _varint(raw, at)
            fields[field], at = raw[at : at + length], at + length
        elif kind == 12:
            fields[field], at = _struct(raw, at)
        else:
            raise ValueError(f"Thrift type {kind} in a page header")
    return fields, at + 1
