"""What stands beside a sealed segment: `NNN.index`, its checksum and where to find what in it.

    header  "SMBI" version base rows first_ts last_ts, size and CRC32 of the Parquet file,
            size and CRC32 of the body, CRC32 of this header            little-endian, 68 bytes
    body    length (8) and an Arrow IPC stream: topic, count, last_row, groups   one row per topic, sorted
            length (8) and an Arrow IPC stream: row, position, bytes, raw_bytes, crc   pages of `payload`

The header alone tells the segment's extent, so that opening a log reads 68 bytes per segment.
Rows and groups count from 0 within the segment; a sealed segment has no gap: offset = base + row.
"""

from pathlib import Path
from struct import Struct
from struct import error as StructError  # noqa: N812
from typing import NamedTuple
from zlib import crc32

import pyarrow as pa

from smbroker.log.disk import Disk, read_all
from smbroker.model.errors import LogError

_HEADER = Struct("<4sHHQQqqQIIQ")
_MAGIC, _VERSION = b"SMBI", 1
HEADER = _HEADER.size + 4

TOPICS = pa.schema(
    [("topic", pa.string()), ("count", pa.int64()), ("last_row", pa.int64()), ("groups", pa.list_(pa.int32()))]
)
PAGES = pa.schema(
    [
        ("row", pa.int64()),  # the first one in the page
        ("position", pa.int64()),  # in the Parquet file, of the compressed page after its header
        ("bytes", pa.int64()),
        ("raw_bytes", pa.int64()),  # once decompressed
        ("crc", pa.int64()),  # of the compressed page
    ]
)


class Header(NamedTuple):
    base: int
    rows: int
    first_ts: int  # least and greatest
    last_ts: int
    file_bytes: int
    file_crc: int
    body_crc: int = 0
    body_bytes: int = 0

    @property
    def end(self) -> int:
        return self.base + self.rows


class Body(NamedTuple):
    topics: pa.Table
    pages: pa.Table


def encode(header: Header, body: Body) -> bytes:
    options = pa.ipc.IpcWriteOptions(compression="zstd")
    parts = []
    for table in body:
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, table.schema, options=options) as writer:
            writer.write_table(table)
        raw = sink.getvalue().to_pybytes()
        parts += [len(raw).to_bytes(8, "little"), raw]
    tail = b"".join(parts)
    start = _HEADER.pack(_MAGIC, _VERSION, 0, *header._replace(body_crc=crc32(tail), body_bytes=len(tail)))
    return start + crc32(start).to_bytes(4, "little") + tail


def decode_header(raw: bytes) -> Header | None:
    start, crc = raw[: _HEADER.size], raw[_HEADER.size : HEADER]
    if len(raw) < HEADER or crc32(start).to_bytes(4, "little") != crc:
        return None
    try:
        magic, version, _, *numbers = _HEADER.unpack(start)
    except StructError:
        return None
    return Header(*numbers) if (magic, version) == (_MAGIC, _VERSION) else None


def decode_body(raw: bytes, header: Header) -> Body | None:
    """From the bytes after the header."""
    if len(raw) != header.body_bytes or crc32(raw) != header.body_crc:
        return None
    length = int.from_bytes(raw[:8], "little")
    return Body(
        pa.ipc.open_stream(raw[8 : 8 + length]).read_all(),
        pa.ipc.open_stream(raw[16 + length :]).read_all(),
    )


def read_header(disk: Disk, path: Path) -> Header | None:
    """None if there is no such file or it is damaged."""
    try:
        handle = disk.open(path)
    except FileNotFoundError:
        return None
    try:
        return decode_header(read_all(disk, handle, HEADER, 0))
    finally:
        disk.close(handle)


def read_body(disk: Disk, path: Path) -> Body:
    handle = disk.open(path)
    try:
        raw = read_all(disk, handle, disk.size(handle), 0)
    finally:
        disk.close(handle)
    header = decode_header(raw)
    body = decode_body(raw[HEADER:], header) if header else None
    if not body:
        raise LogError("damaged", f"{path.name}: a wrong checksum")
    return body
