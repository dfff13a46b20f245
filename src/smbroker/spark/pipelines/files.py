"""A pipeline's file, parsed once: NAME.sql with a header of comments, or NAME.py with constants in capitals.

    -- from: house/+/temperature              FROM = "house/+/temperature"
    -- table: rooms                           TABLE = "rooms"
    SELECT … FROM messages                    def transform(messages): …

Nothing is run here, not even the Python file: its constants are read from its syntax tree.
"""

import ast
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from smbroker.model.errors import Refused, UsageError
from smbroker.model.filter import Filter, parse
from smbroker.spark.pipelines import template
from smbroker.spark.pipelines.problem import Problem
from smbroker.spark.pipelines.template import Template

KEYS = ("from", "watermark", "mode", "every", "rows", "table", "key", "topic")
MODES = ("append", "update", "complete")
SUFFIXES = (".sql", ".py")
ALL = "#"
MAX_FILE = 1 << 20  # bytes

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_-]*")
_TABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_TIME = re.compile(r"(\d+(?:\.\d+)?)\s*(millisecond|second|minute|hour|day)s?", re.IGNORECASE | re.ASCII)
_MILLISECONDS = {"millisecond": 1, "second": 1_000, "minute": 60_000, "hour": 3_600_000, "day": 86_400_000}
_LONGEST_DAYS = 36_525  # Spark counts microseconds in 64 bits
_HEADER = re.compile(r"--\s*([A-Za-z_]+)\s*:(.*)")
_QUERY = re.compile(r"\s*(?:--[^\n]*(?:\n|\Z)|/\*.*?\*/|[\s(])*(select|with|from|values)\b", re.IGNORECASE | re.DOTALL)

Mode = Literal["append", "update", "complete"]


@dataclass(frozen=True, slots=True)
class Pipeline:
    name: str
    file: Path
    text: str  # the whole file
    filters: str = ALL  # comma-separated, as the source takes them
    watermark: str | None = None
    mode: Mode = "append"
    every: str | None = None  # None: as fast as it goes, or each second if there is state
    rows: int | None = None  # of the log, that a batch spans at most
    table: str | None = None
    key: tuple[str, ...] = ()
    topic: Template | None = None
    lines: dict[str, int] = field(default_factory=dict, compare=False)  # where each key stands
    builtin: bool = False

    @property
    def is_sql(self) -> bool:
        return self.file.suffix == ".sql"

    @property
    def parsed_filters(self) -> tuple[Filter, ...]:
        return tuple(parse(word.strip()) for word in self.filters.split(","))

    @property
    def client(self) -> str:
        return f"pipeline:{self.name}"

    def problem(self, key: str, reason: str) -> Problem:
        return Problem(self.file, self.lines.get(key, 1), reason)


def read(file: Path, builtin: bool = False) -> Pipeline:
    """Raises Problem."""
    try:
        if file.stat().st_size > MAX_FILE:
            raise Problem(file, 1, f"the file has more than {MAX_FILE} bytes")
        text = file.read_text(encoding="utf-8-sig")  # some editors put a mark before it
    except OSError as error:
        raise Problem(file, 1, error.strerror or str(error)) from error
    except UnicodeDecodeError as error:
        raise Problem(file, 1, "the file is not UTF-8") from error
    if not _NAME.fullmatch(file.stem):
        raise Problem(file, 1, f"{file.stem!r} is no name for a pipeline: letters, digits, _ and -, no digit first")
    if file.suffix not in SUFFIXES:
        raise Problem(file, 1, "a pipeline is a file NAME.sql or NAME.py")
    given, lines = (_sql_keys if file.suffix == ".sql" else _python_keys)(file, text)
    return _pipeline(file, text, given, lines, builtin)


def files_in(directory: Path | None) -> list[Path]:
    """The pipelines' files; hidden ones, and those that begin with `_` (helpers of others), are none."""
    if directory is None or not directory.is_dir():
        return []
    return sorted(
        file
        for file in directory.iterdir()
        if file.suffix in SUFFIXES and not file.name.startswith((".", "_")) and file.is_file()
    )


# --- keys ---


def _pipeline(file: Path, text: str, given: dict[str, str], lines: dict[str, int], builtin: bool) -> Pipeline:
    def valued(key: str, check: Callable[[str], Any], default: Any = None) -> Any:
        if key not in given:
            return default
        try:
            return check(given[key])
        except (UsageError, Refused) as error:
            raise Problem(file, lines[key], f"{key}: {error.text}") from error

    made = Pipeline(
        file.stem,
        file,
        text,
        valued("from", _filters, ALL),
        valued("watermark", _time),
        valued("mode", _mode, "append"),
        valued("every", _time),
        valued("rows", _count),
        valued("table", _table),
        valued("key", _names, ()),
        valued("topic", template.parse),
        lines,
        builtin,
    )
    if made.table is None and made.topic is None:
        raise Problem(file, 1, "there is neither table nor topic: nothing would come of it")
    if made.key and made.table is None:
        raise made.problem("key", "key says which rows of a table are replaced; there is no table")
    if made.key and made.mode == "complete":
        raise made.problem("key", "with mode complete the whole table is replaced; leave out key")
    return made


def _filters(text: str) -> str:
    words = [word.strip() for word in text.split(",")]
    for word in words:
        parse(word)
    return ",".join(words)


def _time(text: str) -> str:
    if not (found := _TIME.fullmatch(text)):
        raise UsageError("bad_time", f"{text!r} is no time such as 10 seconds or 5 minutes")
    unit = found[2].lower()
    milliseconds = float(found[1]) * _MILLISECONDS[unit]
    if milliseconds > _LONGEST_DAYS * _MILLISECONDS["day"]:
        raise UsageError("bad_time", f"{text!r} is longer than 100 years")
    if "." in found[1]:  # Spark takes fractions of seconds alone
        return f"{milliseconds:.0f} milliseconds"
    return f"{found[1]} {unit}s"


def _count(text: str) -> int:
    if not (text.isascii() and text.isdigit()) or not int(text):
        raise UsageError("bad_rows", f"{text!r} is no number above 0")
    return int(text)


def _mode(text: str) -> str:
    if text.lower() not in MODES:
        raise UsageError("bad_mode", f"{text!r} is none of {', '.join(MODES)}")
    return text.lower()


def _table(text: str) -> str:
    if not _TABLE.fullmatch(text):
        raise UsageError("bad_table", f"{text!r} is no name for a table: letters, digits and _, no digit first")
    return text


def _names(text: str) -> tuple[str, ...]:
    names = tuple(word.strip().strip("`") for word in text.split(","))
    if not all(names) or len(set(names)) < len(names):
        raise UsageError("bad_key", f"{text!r} is no list of columns, each once")
    return names


def _note(file: Path, line: int, key: str, value: str, given: dict[str, str], lines: dict[str, int]) -> None:
    if key not in KEYS:
        raise Problem(file, line, f"unknown key {key}; the keys are {', '.join(KEYS)}")
    if key in given:
        raise Problem(file, line, f"{key} is given twice, also in line {lines[key]}")
    if not value:
        raise Problem(file, line, f"{key} has no value")
    given[key], lines[key] = value, line


# --- the two kinds of file ---


def _sql_keys(file: Path, text: str) -> tuple[dict[str, str], dict[str, int]]:
    given: dict[str, str] = {}
    lines: dict[str, int] = {}
    every = text.split("\n")
    for number, line in enumerate(every, 1):
        stripped = line.strip()
        if stripped and not stripped.startswith("--"):
            break
        if found := _HEADER.fullmatch(stripped):
            _note(file, number, found[1].lower(), found[2].strip(), given, lines)
    else:
        raise Problem(file, len(every), "there is no SELECT")
    if not _QUERY.match(text):
        raise Problem(file, number, "a pipeline is one SELECT")
    return given, lines


def _python_keys(file: Path, text: str) -> tuple[dict[str, str], dict[str, int]]:
    try:
        tree = ast.parse(text, str(file))
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:  # the last two: nested too deeply
        raise Problem(
            file, getattr(error, "lineno", 1) or 1, f"Python cannot read it: {error or 'too deep'}"
        ) from error
    given: dict[str, str] = {}
    lines: dict[str, int] = {}
    for node in tree.body:
        target = node.targets[0] if isinstance(node, ast.Assign) and len(node.targets) == 1 else None
        target = node.target if isinstance(node, ast.AnnAssign) and node.value else target
        if isinstance(target, ast.Name) and target.id.isupper() and target.id.lower() in KEYS:
            assert isinstance(node, ast.Assign | ast.AnnAssign)
            _note(file, node.lineno, target.id.lower(), _constant(file, node), given, lines)
    functions = [node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == "transform"]
    if not functions:
        raise Problem(file, len(text.split("\n")), "there is no function transform(messages)")
    return given, lines


def _constant(file: Path, node: ast.Assign | ast.AnnAssign) -> str:
    try:
        value = ast.literal_eval(node.value) if node.value else None
    except (ValueError, TypeError, RecursionError, MemoryError):  # not a plain value; a set of lists; too deep
        value = None
    if isinstance(value, str | int):
        return str(value).strip()
    if isinstance(value, list | tuple) and all(isinstance(word, str) for word in value):
        return ",".join(value)
    raise Problem(
        file,
        node.lineno,
        "give a text, such as '10 seconds', a whole number, or a list of texts; it is read, not computed",
    )
