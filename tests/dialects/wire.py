"""Wire cases as data: `cases/DIALECT.toml`, in a notation that people can read.

    [[decode]]                       what the broker makes of a client's bytes
    name = "a plain publish"
    bytes = 'ptopic;message'
    gives = "publish 'topic' 'message'"

    [[frame]]                        what a subscriber of the dialect gets
    name = "a plain message"
    topic = 'topic'
    payload = 'message'
    gives = 'topic;message'          or  unfit = "reason"
                                     and perhaps kind = "int", host = "10.0.0.1", port = 5

    [[encode]]                       what a client sends
    name = "a plain publish"
    call = "publish"                 encode_publish
    arguments = ['topic', 'message']
    gives = 'ptopic;message'         or  error = "code"

In bytes, `\\x01`, `\\0`, `\\n`, `\\r` and `\\\\` are single bytes, other text is UTF-8, and
    {64:text}      text padded with spaces to 64 bytes
    {50.:text}     text padded with NUL to 50 bytes
    {300*x}        x, 300 times
"""

import re
import tomllib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from smbroker.model.commands import Alive, Answer, Command, Identify, Leave, Reject, Subscribe, Unsubscribe
from smbroker.model.errors import ProtocolError, Refused, Unfit
from smbroker.model.filter import Filter, Wildcard
from smbroker.model.framing import FramerOf
from smbroker.model.message import Columns, Dialect, Kind, Origin

CASES = Path(__file__).parent / "cases"
PIECE = re.compile(r"\{(\d+)(:|\.:|\*)([^}]*)\}")
REPEATED = re.compile(r"\{(\d+)\*([^}]*)\}")
ESCAPE = re.compile(rb"\\(x[0-9a-fA-F]{2}|[0nr\\])")
PLAIN = {b"0": b"\0", b"n": b"\n", b"r": b"\r", b"\\": b"\\"}


@dataclass(frozen=True)
class Case:
    name: str
    data: dict[str, Any]

    def bytes(self, key: str = "bytes") -> bytes:
        return wire_bytes(self.data[key])

    def text(self, key: str = "gives") -> str:
        """What `shown` should say, with `{300*x}` written out."""
        return REPEATED.sub(lambda piece: piece[2] * int(piece[1]), self.data[key])


def cases(dialect: str, section: str) -> list[Case]:
    data = tomllib.loads((CASES / f"{dialect}.toml").read_text("utf-8"))
    return [Case(entry["name"], entry) for entry in data.get(section, [])]


def check_decode(case: Case, decode: Callable[[bytes], Command]) -> None:
    if "error" in case.data:
        with pytest.raises((ProtocolError, Refused)) as caught:
            decode(case.bytes())
        assert caught.value.code == case.data["error"]
    else:
        assert shown(decode(case.bytes())) == case.text()


def check_frame(case: Case, framer: FramerOf) -> None:
    kind = Kind[case.data.get("kind", "bytes").upper()]
    origin = Origin(Dialect.PIPE, case.data.get("host", ""), case.data.get("port", 0))
    columns = Columns(0, [case.bytes("topic")], [case.bytes("payload")], [kind], [origin])
    unfit: list[str] = []
    try:
        frames = framer(columns.topics[0])(columns, 0, 1, unfit)
    except Unfit as error:
        frames, unfit = [], [error.code]
    if "unfit" in case.data:
        assert (frames, unfit) == ([], [case.data["unfit"]])
    else:
        assert (frames, unfit) == ([case.bytes("gives")], [])


def check_encode(case: Case, module: ModuleType) -> None:
    encode = getattr(module, "encode_" + case.data["call"])
    arguments = [wire_bytes(text) for text in case.data["arguments"]]
    if "error" in case.data:
        with pytest.raises(Refused) as caught:
            encode(*arguments)
        assert caught.value.code == case.data["error"]
    else:
        assert encode(*arguments) == case.bytes("gives")


def wire_bytes(text: str) -> bytes:
    out, end = b"", 0
    for piece in PIECE.finditer(text):
        out += _unescaped(text[end : piece.start()])
        count, how, inner = int(piece[1]), piece[2], _unescaped(piece[3])
        if how == "*":
            out += inner * count
        else:
            assert len(inner) <= count, f"{inner!r} is longer than {count}"
            out += inner.ljust(count, b" " if how == ":" else b"\0")
        end = piece.end()
    return out + _unescaped(text[end:])


def _unescaped(text: str) -> bytes:
    def one(found: re.Match[bytes]) -> bytes:
        return PLAIN.get(found[1]) or bytes.fromhex(found[1][1:].decode())

    return ESCAPE.sub(one, text.encode())


def shown(command: Command) -> str:
    """A command as the cases write it."""
    match command:
        case (topic, payload, kind, ack):
            words = ["publish", quoted(topic), quoted(payload)]
            words += [Kind(kind).name.lower()] if kind != Kind.BYTES else []
            words += ["ack", quoted(ack)] if ack else []
            return " ".join(words)
        case Subscribe(pattern, reply, keep):
            words = ["subscribe", shown_filter(pattern)]
            words += ["keep"] if keep else []
            words += ["reply", quoted(reply)] if reply else []
            return " ".join(words)
        case Unsubscribe(None):
            return "unsubscribe all"
        case Unsubscribe(pattern):
            return f"unsubscribe {shown_filter(pattern)}"
        case Identify(client):
            return f"identify {client}"
        case Answer(reply):
            return f"answer {quoted(reply)}"
        case Alive():
            return "alive"
        case Leave():
            return "leave"
        case Reject(code, _):
            return f"reject {code}"
    raise AssertionError(command)


def shown_filter(pattern: Filter) -> str:
    """Levels separated by `/`, with ANY as `+` and REST as `#`; a literal one of these is quoted."""
    return "/".join(
        level.value if isinstance(level, Wildcard) else f"'{level.decode()}'" if level in b"+#" else level.decode()
        for level in pattern
    )


def quoted(data: bytes) -> str:
    return "'" + repr(data)[2:-1] + "'"
