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

In bytes, `\\x01`, `\\0`, `\\n`, `\\r` and `\\\\` are single bytes, other text is UTF-8, and
    {64:text}      text padded with spaces to 64 bytes
    {50.:text}     text padded with NUL to 50 bytes
    {300*x}        x, 300 times
"""

import re
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from smbroker.model.commands import Alive, Answer, Command, Identify, Leave, Reject, Subscribe, Unsubscribe
from smbroker.model.filter import Filter, Wildcard
from smbroker.model.message import Kind

CASES = Path(__file__).parent / "cases"
PIECE = re.compile(r"\{(\d+)(:|\.:|\*)([^}]*)\}")
ESCAPE = re.compile(rb"\\(x[0-9a-fA-F]{2}|[0nr\\])")
PLAIN = {b"0": b"\0", b"n": b"\n", b"r": b"\r", b"\\": b"\\"}


@dataclass(frozen=True)
class Case:
    name: str
    data: dict[str, Any]

    def bytes(self, key: str = "bytes") -> bytes:
        return wire_bytes(self.data[key])


def cases(dialect: str, section: str) -> list[Case]:
    data = tomllib.loads((CASES / f"{dialect}.toml").read_text())
    return [Case(entry["name"], entry) for entry in data.get(section, [])]


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
