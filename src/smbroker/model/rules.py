"""The rules file: TOML to `smbroker.model.rights.Rules`. What is wrong is told as FILE:LINE: reason.

    [groups]
    family = ["ann", "bob"]

    [[allow]]
    group = "family"
    topics = ["home/#"]                # publish, subscribe and replay in one

    [[deny]]
    anyone = true
    subscribe = ["home/diary/#"]

Every rule says whom it is for and names at least one filter; unknown keys are errors. So nothing that is forgotten
or mistyped allows more than was meant.
"""

import re
import tomllib
from dataclasses import dataclass, field
from ipaddress import ip_network
from typing import Any

from smbroker.model.errors import Refused, UsageError
from smbroker.model.filter import Filter, parse
from smbroker.model.message import Dialect
from smbroker.model.rights import Action, Rule, Rules

KINDS = ("allow", "deny")
NAMES = ("user", "group", "client")
FLAGS = ("anonymous", "anyone")
WHOM = ("user", "group", "anonymous", "anyone", "address", "dialect", "client")
TOPICS = ("publish", "subscribe", "replay", "topics")
HEADER = re.compile(r"\s*\[\[?\s*([A-Za-z]+)\s*\]\]?\s*(?:#.*)?")
KEY = re.compile(r"""\s*["']?([^"'\s=#\[\]]+)["']?\s*=""")
PLACE = re.compile(r"\(at line (\d+), column \d+\)")
MAX_RULES = 10_000


@dataclass(slots=True)
class _Table:
    """Where a table of the file stands."""

    line: int
    keys: dict[str, int] = field(default_factory=dict)

    def of(self, key: str) -> int:
        return self.keys.get(key, self.line)


class _Wrong(Exception):
    def __init__(self, line: int, text: str) -> None:
        super().__init__(text)
        self.line = line
        self.text = text


def rules(text: str, name: str) -> Rules:
    """Raises UsageError."""
    try:
        return _rules(text, name)
    except _Wrong as error:
        raise UsageError("rules", f"{name}:{error.line}: {error.text}") from error


def _rules(text: str, name: str) -> Rules:
    found = table_of(text)
    places = _places(text)
    for key in found:
        if key not in (*KINDS, "groups"):
            raise _Wrong(places["", 0].of(key), f"unknown {key}; there are [[allow]], [[deny]] and [groups]")
    groups = _groups(found.get("groups", {}), places)
    made: list[Rule] = []
    for kind in KINDS:
        for number, table in enumerate(_tables(found, kind, places)):
            made.append(_rule(kind, table, places[kind, number], groups))
    if not any(rule.allow for rule in made):
        raise _Wrong(1, "there is no [[allow]], so nobody could do anything; without a rules file loopback may do all")
    if len(made) > MAX_RULES:
        raise _Wrong(1, f"more than {MAX_RULES} rules; use groups and placeholders")
    return Rules(name, tuple(sorted(made, key=lambda rule: rule.line)), groups)


def table_of(text: str) -> dict[str, Any]:
    """The file as tables. Raises `_Wrong`."""
    for number, line in enumerate(text.split("\n"), 1):
        if '"""' in line or "'''" in line:
            raise _Wrong(number, "texts over several lines are not taken here")
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        said = str(error)
        place = PLACE.search(said)
        number = int(place[1]) if place else text.count("\n") + 1
        raise _Wrong(number, PLACE.sub("", said).strip()) from error


def _places(text: str) -> dict[tuple[str, int], _Table]:
    """The tables by name and number, in the order of the file."""
    current = _Table(1)
    found = {("", 0): current}
    counts: dict[str, int] = {}
    for number, line in enumerate(text.split("\n"), 1):
        header = HEADER.fullmatch(line)
        if header:
            kind = header[1]
            current = found[kind, counts.get(kind, 0)] = _Table(number)
            found["", 0].keys.setdefault(kind, number)
            counts[kind] = counts.get(kind, 0) + 1
        elif key := KEY.match(line):
            current.keys.setdefault(key[1], number)
    return found


def _tables(found: dict[str, Any], kind: str, places: dict[tuple[str, int], _Table]) -> list[dict[str, Any]]:
    tables: list[dict[str, Any]] = found.get(kind, [])
    known = isinstance(tables, list) and all(isinstance(one, dict) for one in tables)
    if not known or len([key for key in places if key[0] == kind]) != len(tables):
        raise _Wrong(places["", 0].of(kind), f"write each rule under a line of its own: [[{kind}]]")
    return tables


def _groups(found: Any, places: dict[tuple[str, int], _Table]) -> dict[str, frozenset[str]]:
    place = places.get(("groups", 0), places["", 0])
    if not isinstance(found, dict):
        raise _Wrong(places["", 0].of("groups"), 'groups is a table: [groups], then NAME = ["user", …]')
    for name, users in found.items():
        if not isinstance(users, list) or not all(isinstance(one, str) and one for one in users):
            raise _Wrong(place.of(name), f"the group {name} must be a list of users")
    return {name: frozenset(users) for name, users in found.items()}


def _rule(kind: str, table: dict[str, Any], place: _Table, groups: dict[str, frozenset[str]]) -> Rule:
    for key in table:
        if key not in (*WHOM, *TOPICS):
            raise _Wrong(place.of(key), f"unknown key {key}; there are {', '.join((*WHOM, *TOPICS))}")
    for flag in FLAGS:
        if flag in table and table[flag] is not True:
            raise _Wrong(place.of(flag), f"{flag} is true, or left out")
    if not any(key in table for key in WHOM):
        raise _Wrong(place.line, f"the rule does not say for whom: {', '.join(WHOM)} (anyone = true for all)")
    if not any(key in table for key in TOPICS):
        raise _Wrong(place.line, f"the rule is about no topics: {', '.join(TOPICS)}")
    named = {key: _texts(table, key, place) for key in (*NAMES, "address", "dialect", *TOPICS)}
    for group in named["group"]:
        if group not in groups:
            raise _Wrong(place.of("group"), f"there is no group {group} under [groups]")
    return Rule(
        kind == "allow",
        place.line,
        frozenset(named["user"]),
        frozenset(named["group"]),
        "anonymous" in table,
        "anyone" in table,
        tuple(_network(one, place.of("address")) for one in named["address"]),
        frozenset(_dialect(one, place.of("dialect")) for one in named["dialect"]),
        tuple(named["client"]),
        tuple(
            (action, tuple(_filter(one, place.of(key)) for key in (action.value, "topics") for one in named[key]))
            for action in Action
        ),
    )


def _texts(table: dict[str, Any], key: str, place: _Table) -> list[str]:
    """A text or a list of texts."""
    if key not in table:
        return []
    value = table[key]
    texts = value if isinstance(value, list) else [value]
    if not texts or not all(isinstance(one, str) and one for one in texts):
        raise _Wrong(place.of(key), f"{key} must be a text or a list of texts, and not empty")
    return texts


def _network(text: str, line: int) -> Any:
    try:
        return ip_network(text)
    except ValueError as error:
        raise _Wrong(line, f"address: {error}; write it like 192.168.1.0/24 or 192.168.1.7") from error


def _dialect(text: str, line: int) -> Dialect:
    try:
        return Dialect(text)
    except ValueError as error:
        raise _Wrong(line, f"there is no dialect {text}; there are {', '.join(Dialect)}") from error


def _filter(text: str, line: int) -> Filter:
    try:
        return parse(text)
    except Refused as error:
        raise _Wrong(line, error.text) from error
