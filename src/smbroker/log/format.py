"""The tail's byte format; no other file knows it, but for `layout`, which knows how Arrow lays out a record batch.

A tail is an Arrow IPC stream that any Arrow reader opens: one schema message (the head), then
record batch messages, then zeros or nothing; Arrow takes zeros for the stream's end. Each message is

    FF FF FF FF │ header length │ header (flatbuffer)                       │ body (buffers)
    4           │ 4, little e.  │ … "smb-check:" numbers and CRC in hex …   │ padded to 8
                                  └────── CHECK, 114 bytes ──────┘

CHECK is a value in the message's (for the head: the schema's) key-value metadata, found by byte
search. In hex, most significant first: base offset (16), id of this tail (16), least and greatest
ts (16 each), rows (8), how many messages of the same append follow (8), length of the whole
message (16), CRC32 (8). The CRC is taken over the
whole raw message with its own eight digits as `0`, so every byte is covered and the extent of a
message is known before any flatbuffer is looked into. Nothing is given to Arrow before its CRC
was found right: a flipped byte can crash the decoder.

Buffers of a batch with many rows are compressed where it pays (LZ4), as Arrow's format provides for: most columns are
nearly the same in every row, and what is not written need not be summed up, copied and synced either (`many`, `flood`).

The metadata key `smb.notes` holds notes, as JSON [[name, base64], …]: small named byte strings
that are kept under the same sync as the rows. A batch may have notes and no rows.
"""

import json
from base64 import b64decode, b64encode
from binascii import hexlify, unhexlify
from collections.abc import Sequence
from struct import Struct
from typing import Any, NamedTuple, TypeAlias
from zlib import crc32

import pyarrow as pa

from smbroker.model.errors import LogError

Raw: TypeAlias = bytes | bytearray
Note: TypeAlias = tuple[str, bytes]

SCHEMA = pa.schema(
    [
        ("offset", pa.int64()),
        ("ts", pa.timestamp("us", "UTC")),
        ("topic", pa.string()),
        ("payload", pa.binary()),
        ("kind", pa.string()),
        ("dialect", pa.string()),
        ("source", pa.string()),
        ("client", pa.string()),
        ("retain", pa.bool_()),
        ("qos", pa.int32()),
        (
            "properties",
            pa.list_(pa.field("element", pa.struct([("key", pa.string()), ("value", pa.string())]))),
        ),
    ]
)

PLAIN_ROWS = 500  # a batch of so many is not compressed: `few` makes them, and an acknowledgement waits for them
LONG_ROW = 1_024  # bytes on average, from where payloads are most of it; and it bounds what a batch can expand to
_PLAIN = pa.ipc.IpcWriteOptions()
_PACKED = pa.ipc.IpcWriteOptions(compression="lz4", use_threads=False)
_MARKER = b"smb-check:"
_NUMBERS = Struct(">QQqqIIQ")
_DIGITS = 2 * _NUMBERS.size
_NO_CRC = b"00000000"
_BLANK = _MARKER + b"0" * (_DIGITS + len(_NO_CRC))
_PREFIX = Struct("<II")
_CONTINUATION = 0xFFFFFFFF
_KEY, _NOTES_KEY = b"smb", b"smb.notes"

PREFIX = 8  # bytes before a header
BLANK = bytes(PREFIX)  # stands where a message has room to be, and never at the beginning of one
MAX_HEADER = 64 << 20  # a length beyond this is damage, not a header; notes live in the header
WINDOW = 64 << 10  # what to read to find a message's CHECK, but for messages with long notes


class Frame(NamedTuple):
    """What a message says about itself."""

    base: int
    tail: int
    first_ts: int  # least and greatest ts of the rows; both 0 without rows
    last_ts: int
    rows: int
    more: int = 0  # so many further messages belong to the same append: all of them count, or none
    length: int = 0  # bytes of the whole message

    @property
    def end(self) -> int:
        return self.base + self.rows


class Bad(NamedTuple):
    """Why no message could be found at a position. `need`: so many bytes from there would tell more."""

    reason: str
    need: int = 0


def head(base: int, tail: int) -> bytes:
    """The first message of the tail that begins at offset `base`."""
    message = bytearray(SCHEMA.with_metadata({_KEY: _BLANK}).serialize())
    return bytes(stamped(message, Frame(base, tail, 0, 0, 0, 0, len(message))))


def encode(batch: pa.RecordBatch, frame: Frame, notes: Sequence[Note] = ()) -> bytearray:
    """The record batch as a message; `frame.length` is filled in here."""
    metadata = {_KEY: _BLANK}
    if notes:
        metadata[_NOTES_KEY] = json.dumps([[name, b64encode(value).decode()] for name, value in notes]).encode()
    packed = batch.num_rows > PLAIN_ROWS and batch.nbytes <= LONG_ROW * batch.num_rows
    sink = pa.BufferOutputStream()
    writer = pa.ipc.new_stream(sink, SCHEMA, options=_PACKED if packed else _PLAIN)
    writer.write_batch(batch, custom_metadata=metadata)
    message = bytearray(memoryview(sink.getvalue())[_SCHEMA_LENGTH:])
    if _PREFIX.unpack_from(message)[1] > MAX_HEADER:
        raise LogError("too_large", f"notes of more than {MAX_HEADER} bytes are more than the log can hold together")
    return stamped(message, frame._replace(length=len(message)))


def frame_at(raw: Raw, position: int = 0) -> Frame | Bad:
    """What the message at `position` says, unchecked: enough to go on to the next one."""
    found = _parsed(raw, position)
    return found if isinstance(found, Bad) else found[0]


def checked_frame_at(raw: Raw, position: int = 0) -> Frame | Bad:
    """What the message at `position` says, if it is whole and its CRC is right."""
    found = _parsed(raw, position)
    if isinstance(found, Bad):
        return found
    frame, at = found
    if position + frame.length > len(raw):
        return Bad("cut short", frame.length)
    if raw[at : at + 8] != _digits_of_crc(raw, position, at, position + frame.length):
        return Bad("with a wrong CRC")
    return frame


def _parsed(raw: Raw, position: int) -> tuple[Frame, int] | Bad:
    """What the message says, and where its CRC stands."""
    if position + PREFIX > len(raw):
        return Bad("cut short" if position < len(raw) else "nothing there", PREFIX)
    continuation, length = _PREFIX.unpack_from(raw, position)
    if continuation != _CONTINUATION or not 0 < length <= MAX_HEADER:
        return Bad("not the beginning of a message")
    end = position + PREFIX + length
    found = raw.find(_MARKER, position + PREFIX, end)
    start = found + len(_MARKER)
    at = start + _DIGITS
    if found < 0 or at + len(_NO_CRC) > min(end, len(raw)):
        return Bad("without a check", PREFIX + length if end > len(raw) else 0)
    try:
        frame = Frame._make(_NUMBERS.unpack(unhexlify(raw[start:at])))
    except ValueError:
        return Bad("with a check that is not hexadecimal")
    if frame.length < PREFIX + length:
        return Bad("with an impossible length")
    return frame, at


def decode(raw: Raw, position: int, frame: Frame) -> pa.RecordBatch:
    """The rows of a message whose CRC was found right. Shares memory with `raw`."""
    message = memoryview(raw)[position : position + frame.length]
    return pa.ipc.read_record_batch(pa.ipc.read_message(pa.py_buffer(message)), SCHEMA)


def decode_run(raw: Raw, start: int, stop: int) -> pa.RecordBatch:
    """The rows of all messages in [start, stop), whose CRCs were found right, as one batch; for many small ones."""
    stream = pa.ipc.open_stream(b"".join((_SCHEMA_MESSAGE, memoryview(raw)[start:stop])))
    (batch,) = stream.read_all().combine_chunks().to_batches() or (_EMPTY,)
    return batch


def decode_notes(raw: Raw, position: int, frame: Frame) -> list[Note]:
    """The notes of a message whose CRC was found right."""
    message = memoryview(raw)[position : position + frame.length]
    if _NOTES_KEY not in bytes(message[: PREFIX + int.from_bytes(message[4:8], "little")]):
        return []
    stream = pa.ipc.open_stream(pa.BufferReader(b"".join((_SCHEMA_MESSAGE, message))))
    metadata: dict[bytes, bytes] = dict(stream.read_next_batch_with_custom_metadata().custom_metadata or {})
    entries: list[Any] = json.loads(metadata.get(_NOTES_KEY, b"[]"))
    return [(name, b64decode(value)) for name, value in entries]


def stamped(message: bytearray, frame: Frame, more: Sequence[Raw | memoryview] = ()) -> bytearray:
    """With CHECK filled in, of a message that goes on with what `more` has."""
    at = numbered(message, frame)
    crc = crc32(message)
    for piece in more:
        crc = crc32(piece, crc)
    message[at : at + len(_NO_CRC)] = b"%08x" % crc
    return message


def numbered(message: bytearray, frame: Frame) -> int:
    """Fills in CHECK but for the CRC, and returns where that belongs (`add_crc`)."""
    at = message.index(_MARKER) + len(_MARKER) + _DIGITS
    message[at - _DIGITS : at] = hexlify(_NUMBERS.pack(*frame))
    message[at : at + len(_NO_CRC)] = _NO_CRC
    return at


def add_crc(message: memoryview, at: int) -> None:
    """To a whole message, whose other numbers are there."""
    message[at : at + len(_NO_CRC)] = b"%08x" % crc32(message)


def _digits_of_crc(raw: Raw, start: int, at: int, end: int) -> bytes:
    """The CRC of [start, end), its own digits, which stand at `at`, taken as zeros."""
    view = memoryview(raw)
    return b"%08x" % crc32(view[at + 8 : end], crc32(_NO_CRC, crc32(view[start:at])))


_SCHEMA_MESSAGE: bytes = SCHEMA.serialize().to_pybytes()
_SCHEMA_LENGTH = len(_SCHEMA_MESSAGE)
_EMPTY = pa.RecordBatch.from_arrays([pa.nulls(0, field.type) for field in SCHEMA], schema=SCHEMA)
