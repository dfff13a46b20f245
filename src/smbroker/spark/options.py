"""The options of the source, parsed once: what is wrong is said in one line, with the option's name.

A position is a place in the log: `earliest`, `latest`, an offset, or a time (the first offset that
was received then or later).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal, TypeAlias

from smbroker.model.errors import Refused, UsageError
from smbroker.model.filter import Filter, parse

Position: TypeAlias = Literal["earliest", "latest"] | int | datetime

NAMES = ("path", "topics", "startingOffset", "endingOffset", "maxRowsPerBatch", "maxBytesPerBatch", "failOnDataLoss")
_BOOLEANS = {"true": True, "false": False}
_LOG = "log"  # within the data directory


@dataclass(frozen=True, slots=True)
class ReadOptions:
    directory: Path  # of the log
    filters: tuple[Filter, ...] | None = None  # None: all topics, also those that begin with `$`
    start: Position = "earliest"
    end: Position = "latest"
    max_rows: int | None = None  # of a streaming batch; None: all there is
    max_bytes: int | None = None  # likewise, about
    fail_on_data_loss: bool = True


def parsed(options: Mapping[str, str]) -> ReadOptions:
    """Raises UsageError. The keys of `options` are in any case."""
    given = {key.lower(): value for key, value in options.items()}
    known = {name.lower(): name for name in NAMES}
    for key in given:
        if key not in known:
            raise UsageError("bad_option", f"unknown option {key}; the options of smb are {', '.join(NAMES)}")
    if not given.get("path"):
        raise UsageError("bad_option", "option path is missing: the data directory of the broker")
    rows, size = given.get("maxrowsperbatch"), given.get("maxbytesperbatch")
    return ReadOptions(
        Path(given["path"]).absolute() / _LOG,
        _filters(given.get("topics")),
        _position("startingOffset", given.get("startingoffset", "earliest")),
        _position("endingOffset", given.get("endingoffset", "latest")),
        None if rows is None else _count("maxRowsPerBatch", rows),
        None if size is None else _count("maxBytesPerBatch", size),
        _truth("failOnDataLoss", given.get("failondataloss", "true")),
    )


def _filters(text: str | None) -> tuple[Filter, ...] | None:
    if text is None:
        return None
    try:
        return tuple(parse(word.strip()) for word in text.split(","))
    except Refused as error:
        raise UsageError("bad_option", f"option topics: {error.text}") from error


def _position(name: str, text: str) -> Position:
    word = text.strip()
    if word.lower() == "earliest":
        return "earliest"
    if word.lower() == "latest":
        return "latest"
    if word.isascii() and word.isdigit():
        return int(word)
    try:
        time = datetime.fromisoformat(word)
    except ValueError:
        form = "earliest, latest, an offset or an ISO time such as 2026-01-31T12:00:00Z"
        raise UsageError("bad_option", f"option {name}: {text!r} is none of {form}") from None
    return time if time.tzinfo else time.replace(tzinfo=UTC)


def _count(name: str, text: str) -> int:
    word = text.strip()
    if not (word.isascii() and word.isdigit()) or not int(word):
        raise UsageError("bad_option", f"option {name}: {text!r} is not a number above 0")
    return int(word)


def _truth(name: str, text: str) -> bool:
    truth = _BOOLEANS.get(text.strip().lower())
    if truth is None:
        raise UsageError("bad_option", f"option {name}: {text!r} is neither true nor false")
    return truth
