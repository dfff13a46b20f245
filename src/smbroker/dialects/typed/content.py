"""The content of a typed message: numbers to their decimal text and back, strings as they are.

    0 INT          sign 1 · n 4            ±n
    1 SHORT_REAL   n 2                     n / 100, two decimals
    2 FLOAT        sign 1 · n 4 · p 1      ±n · 10⁻ᵖ, exactly p decimals
    3 STRING       up to 1,500 bytes, to the first NUL or the end

The sign is 0 or 1; a zero is never signed. The numbers of the types are those of Kind.
"""

import re
from collections.abc import Callable
from struct import Struct

from smbroker.model.errors import ProtocolError, Refused
from smbroker.model.message import Kind

MAX_CONTENT = 1_500
NUL = b"\0"

_INT, _SHORT_REAL, _FLOAT = Struct(">BI"), Struct(">H"), Struct(">BIB")
_NUMBER = re.compile(rb"(-?)(\d+)(?:\.(\d+))?")
_U16, _U32, _U8 = 0xFFFF, 0xFFFF_FFFF, 0xFF
_DIGITS = len(str(_U32))
_STRING = Kind.STRING


def decode_content(kind: int, content: bytes) -> tuple[Kind, bytes]:
    """The kind and the payload; what follows a number or a NUL is padding."""
    if len(content) > MAX_CONTENT:
        raise ProtocolError("too_long", f"content of {len(content)} bytes, at most {MAX_CONTENT}")
    if kind == _STRING:
        return _STRING, content.partition(NUL)[0]
    decode_number = _DECODERS.get(kind)
    if decode_number is None:
        raise ProtocolError("unknown_type", f"there is no type {kind}")
    layout, decode, known = decode_number
    if len(content) < layout.size:
        raise ProtocolError("too_short", f"content of {len(content)} bytes, {known.name} has {layout.size}")
    return known, decode(*layout.unpack_from(content))


def _decode_int(sign: int, n: int) -> bytes:
    return _signed(sign, n, b"%d" % n)


def _decode_short_real(n: int) -> bytes:
    return _with_decimals(n, 2)


def _decode_float(sign: int, n: int, decimals: int) -> bytes:
    return _signed(sign, n, _with_decimals(n, decimals))


_DECODERS: dict[int, tuple[Struct, Callable[..., bytes], Kind]] = {
    0: (_INT, _decode_int, Kind.INT),
    1: (_SHORT_REAL, _decode_short_real, Kind.SHORT_REAL),
    2: (_FLOAT, _decode_float, Kind.FLOAT),
}


def _signed(sign: int, n: int, text: bytes) -> bytes:
    if sign > 1:
        raise ProtocolError("bad_sign", f"the sign is {sign}, neither 0 nor 1")
    return b"-" + text if sign and n else text


def _with_decimals(n: int, decimals: int) -> bytes:
    digits = b"%0*d" % (decimals + 1, n)
    return digits[:-decimals] + b"." + digits[-decimals:] if decimals else digits


def encode_content(kind: Kind, payload: bytes) -> bytes:
    """The content without padding; Refused if the payload cannot be said as that kind."""
    encode = _ENCODERS.get(kind)
    if encode is None:
        return checked_string(payload)
    number = _NUMBER.fullmatch(payload)
    if number is None:
        raise Refused("not_a_number", "not a decimal number")
    minus, whole, decimals = number.groups(b"")
    return encode(bool(minus), whole, decimals)


def checked_string(payload: bytes) -> bytes:
    if len(payload) > MAX_CONTENT:
        raise Refused("too_long", f"{len(payload)} bytes, at most {MAX_CONTENT}")
    if NUL in payload:
        raise Refused("payload_nul", "the text holds a NUL")
    return payload


def _encode_int(minus: bool, whole: bytes, decimals: bytes) -> bytes:
    if decimals:
        raise Refused("number_decimals", "an INT has no decimals")
    n = _unsigned(whole, _U32)
    return _INT.pack(minus and n > 0, n)


def _encode_short_real(minus: bool, whole: bytes, decimals: bytes) -> bytes:
    if len(decimals) > 2:
        raise Refused("number_decimals", "a SHORT_REAL has two decimals")
    n = _unsigned(whole + decimals.ljust(2, b"0"), _U16)
    if minus and n:
        raise Refused("number_range", "a SHORT_REAL is not negative")
    return _SHORT_REAL.pack(n)


def _encode_float(minus: bool, whole: bytes, decimals: bytes) -> bytes:
    if len(decimals) > _U8:
        raise Refused("number_decimals", f"a FLOAT has at most {_U8} decimals")
    n = _unsigned(whole + decimals, _U32)
    return _FLOAT.pack(minus and n > 0, n, len(decimals))


_ENCODERS = {Kind.INT: _encode_int, Kind.SHORT_REAL: _encode_short_real, Kind.FLOAT: _encode_float}


def _unsigned(digits: bytes, largest: int) -> int:
    digits = digits.lstrip(b"0") or b"0"
    if len(digits) > _DIGITS or int(digits) > largest:
        raise Refused("number_range", f"the digits are more than {largest}")
    return int(digits)
