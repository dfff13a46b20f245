"""A filter: the pattern of topics that a subscription asks for.

Inside the broker a filter is a tuple of levels, each of them
    a literal     bytes, equal to that level
    ANY           exactly one level, whatever it is
    REST          this and all further levels, also none: `a, REST` matches `a`, `a/b`, `a/b/c`
`+`, `#` and the like mean something only in the dialect they came in with; each dialect
translates its own notation at the edge. No wildcard matches a topic that begins with `$`
unless the filter begins with that literal level.

`matches` is the plain rule. The router is faster and tested against it. `parse` reads the notation that
the product's own options use, which is MQTT's.
"""

from enum import Enum
from typing import Literal, TypeAlias

from smbroker.model.errors import Refused
from smbroker.model.topic import Level, Topic, checked_topic, levels_of


class Wildcard(Enum):
    ANY = "+"
    REST = "#"

    def __repr__(self) -> str:
        return self.name


ANY: Literal[Wildcard.ANY] = Wildcard.ANY
REST: Literal[Wildcard.REST] = Wildcard.REST

FilterLevel: TypeAlias = Level | Wildcard
Filter: TypeAlias = tuple[FilterLevel, ...]


def parse(text: str) -> Filter:
    """A filter in MQTT's notation: `+` is one level, `#` at the end the rest. Raises Refused."""
    levels = levels_of(checked_topic(text.encode("utf-8", "surrogatepass")))
    wildcards: dict[Level, Wildcard] = {b"+": ANY, b"#": REST}
    for position, level in enumerate(levels):
        if level not in wildcards and (b"+" in level or b"#" in level):
            raise Refused("bad_filter", f"{text}: + and # stand for whole levels, as in a/+/c and a/#")
        if level == b"#" and position < len(levels) - 1:
            raise Refused("bad_filter", f"{text}: # can only be the last level")
    return tuple(wildcards.get(level, level) for level in levels)


def exact(topic: Topic) -> Filter:
    """The filter that matches this topic alone."""
    return tuple(levels_of(topic))


def exact_topic(pattern: Filter) -> Topic | None:
    """The one topic that the filter matches, or None if it has wildcards."""
    if any(isinstance(level, Wildcard) for level in pattern):
        return None
    return b"/".join(level for level in pattern if isinstance(level, bytes))


def matches(pattern: Filter, topic: Topic) -> bool:
    levels = levels_of(topic)
    if topic.startswith(b"$") and pattern[0] != levels[0]:
        return False
    for position, wanted in enumerate(pattern):
        if wanted is REST:
            return True
        if position == len(levels) or (wanted is not ANY and wanted != levels[position]):
            return False
    return len(pattern) == len(levels)


def overlaps(one: Filter, other: Filter) -> bool:
    """Whether some topic matches both."""
    if _misses_dollar(one, other) or _misses_dollar(other, one):
        return False
    for mine, theirs in zip(one, other, strict=False):
        if mine is REST or theirs is REST:
            return True
        if isinstance(mine, bytes) and isinstance(theirs, bytes) and mine != theirs:
            return False
    shorter, longer = sorted((one, other), key=len)
    return len(one) == len(other) or longer[len(shorter)] is REST


def covers(wide: Filter, narrow: Filter) -> bool:
    """Whether every topic that matches `narrow` matches `wide`."""
    if _misses_dollar(wide, narrow):
        return False
    for position, level in enumerate(wide):
        if level is REST:
            return True
        if position == len(narrow) or narrow[position] is REST:
            return False
        if level is not ANY and level != narrow[position]:
            return False
    return len(wide) == len(narrow)


def _misses_dollar(wild: Filter, literal: Filter) -> bool:
    first = literal[0]
    return isinstance(wild[0], Wildcard) and isinstance(first, bytes) and first.startswith(b"$")
