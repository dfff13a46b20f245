"""Rights: who may publish, subscribe to and replay which topics.

    Identity ──Rules──► Permit (for each action: filters that are allowed, filters that are denied) ──topic──► yes or no

Rules come from a file (`smbroker.model.rules`). A deny wins over every allow; what no rule allows is denied. `%u` and
`%c` in a rule's filter stand for the user and the client's id, as one level or a part of one: never for more.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from functools import lru_cache
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address
from typing import Any, TypeAlias

from smbroker.model.filter import ANY, REST, Filter, FilterLevel, covers, matches, overlaps
from smbroker.model.message import Dialect
from smbroker.model.topic import Topic

Network: TypeAlias = IPv4Network | IPv6Network

ALL: Filter = (REST,)
PLACEHOLDER = re.compile(rb"%[uc]")
DERIVED = ((b"$stats/", 1), (b"$alerts/", 2))  # topics about another: how many levels stand before its name


class Action(StrEnum):
    PUBLISH = "publish"
    SUBSCRIBE = "subscribe"  # live messages, retained ones, and what was kept for a subscriber that was away
    REPLAY = "replay"  # what was published before: history, lists of topics, tables


@dataclass(frozen=True, slots=True)
class Identity:
    """Who asks. An address, a dialect and an id are what they seem to be; a user has proven to be that one."""

    dialect: Dialect
    host: str = ""
    user: str | None = None  # None: anonymous
    client: str | None = None  # the id that the client gave itself
    proof: str = field(default="", repr=False)  # what the user was known by: gone from the users, so is the right
    trusted: bool = False  # the broker's own pipelines: may do everything

    def __str__(self) -> str:
        return self.user or "anonymous"


@dataclass(frozen=True, slots=True)
class Shown:
    """What a request shows to be let in; at most one of them counts, in this order."""

    user: str | None = None
    password: bytes = field(default=b"", repr=False)
    token: str = field(default="", repr=False)
    session: str = field(default="", repr=False)  # of a browser


@dataclass(frozen=True, slots=True)
class Permit:
    """What one identity may do in one action."""

    allow: tuple[Filter, ...] = ()
    deny: tuple[Filter, ...] = ()

    def allows(self, topic: Topic) -> bool:
        return any(matches(one, topic) for one in self.allow) and not any(denies(one, topic) for one in self.deny)

    def meets(self, pattern: Filter) -> bool:
        """Whether there can be a topic that matches the filter and is allowed."""
        if any(covers(one, pattern) for one in self.deny):
            return False
        return any(overlaps(one, pattern) for one in self.allow)

    @property
    def empty(self) -> bool:
        """Whether nothing can be allowed by it."""
        return all(any(covers(deny, allow) for deny in self.deny) for allow in self.allow)

    @property
    def whole(self) -> bool:
        """Whether every topic is allowed but for those with `$`."""
        return not self.deny and any(covers(one, ALL) for one in self.allow)


def denies(pattern: Filter, topic: Topic) -> bool:
    """What is derived from a topic is denied with it: `secret/#` also denies `$stats/secret/x`."""
    if matches(pattern, topic):
        return True
    for prefix, levels in DERIVED:
        if topic.startswith(prefix):
            rest = topic.split(b"/", levels)[levels:]
            return bool(rest) and rest[0] != b"" and matches(pattern, rest[0])
    return False


@dataclass(frozen=True, slots=True)
class Rule:
    """One `[[allow]]` or `[[deny]]`. Who it is for: any of users, groups and the two flags; and all of the rest."""

    allow: bool
    line: int
    users: frozenset[str] = frozenset()  # `*`: whoever has logged in
    groups: frozenset[str] = frozenset()
    anonymous: bool = False
    anyone: bool = False
    addresses: tuple[Network, ...] = ()
    dialects: frozenset[Dialect] = frozenset()
    clients: tuple[str, ...] = ()  # ids; one that ends in `*` stands for all that begin so
    filters: tuple[tuple[Action, tuple[Filter, ...]], ...] = ()  # with placeholders

    def is_for(self, who: Identity, groups: Iterable[str]) -> bool:
        named = self.users or self.groups or self.anonymous
        if named and not self.anyone and not self._names(who, groups):
            return False
        if self.addresses and not _within(who.host, self.addresses):
            return False
        if self.dialects and who.dialect not in self.dialects:
            return False
        return not self.clients or (who.client is not None and any(_is_id(one, who.client) for one in self.clients))

    def _names(self, who: Identity, groups: Iterable[str]) -> bool:
        if who.user is None:
            return self.anonymous
        return who.user in self.users or "*" in self.users or not self.groups.isdisjoint(groups)

    def bound(self, action: Action, who: Identity) -> list[Filter]:
        """The filters for one identity."""
        found = []
        for one, filters in self.filters:
            if one is action:
                found += [made for each in filters if (made := bound(each, who, widen=not self.allow)) is not None]
        return found


@dataclass(frozen=True, slots=True)
class Decision:
    allowed: bool
    rule: Rule | None  # None: no rule is about it


@dataclass(frozen=True, slots=True)
class Rules:
    name: str  # of the file
    rules: tuple[Rule, ...]
    groups: dict[str, frozenset[str]] = field(default_factory=dict)  # users, by group

    def groups_of(self, user: str | None) -> set[str]:
        return {group for group, users in self.groups.items() if user is not None and user in users}

    def permit(self, who: Identity, action: Action) -> Permit:
        allow: list[Filter] = []
        deny: list[Filter] = []
        groups = self.groups_of(who.user)
        for rule in self.rules:
            if rule.is_for(who, groups):
                (allow if rule.allow else deny).extend(rule.bound(action, who))
        return Permit(tuple(dict.fromkeys(allow)), tuple(dict.fromkeys(deny)))

    def decide(self, who: Identity, action: Action, topic: Topic) -> Decision:
        """The same as `permit`, with the rule that decides: the first deny, else the first allow."""
        groups = self.groups_of(who.user)
        mine = [rule for rule in self.rules if rule.is_for(who, groups)]
        for rule in mine:
            if not rule.allow and any(denies(one, topic) for one in rule.bound(action, who)):
                return Decision(False, rule)
        for rule in mine:
            if rule.allow and any(matches(one, topic) for one in rule.bound(action, who)):
                return Decision(True, rule)
        return Decision(False, None)


def bound(pattern: Filter, who: Identity, *, widen: bool) -> Filter | None:
    """The filter with its placeholders filled in.

    Where a name cannot stand for a level, an allow means nothing (None) and a deny means any level (`widen`)."""
    values = {b"%u": who.user, b"%c": who.client}
    levels: list[FilterLevel] = []
    for level in pattern:
        if isinstance(level, bytes) and PLACEHOLDER.search(level):
            if not all(is_plain(values[each]) for each in PLACEHOLDER.findall(level)):
                if not widen:
                    return None
                levels.append(ANY)
                continue
            levels.append(PLACEHOLDER.sub(lambda each: (values[each.group()] or "").encode(), level))
        else:
            levels.append(level)
    return tuple(levels)


def is_plain(name: str | None) -> bool:
    """Whether a name can be a level of a topic and nothing else."""
    return bool(name) and name is not None and name.isprintable() and name[0] != "$" and not set(name) & set("/+#")


def named_by(certificate: Mapping[str, Any] | None) -> str | None:
    """The user that a certificate names, which was found good: its common name, if there is one."""
    subject = certificate.get("subject", ()) if certificate else ()
    names = [value for part in subject for key, value in part if key == "commonName"]
    return names[0] if len(names) == 1 and names[0] else None


def is_loopback(host: str) -> bool:
    address = address_of(host)
    return address is not None and address.is_loopback


def _within(host: str, networks: Iterable[Network]) -> bool:
    address = address_of(host)
    return address is not None and any(address in one for one in networks)


@lru_cache(maxsize=4096)
def address_of(host: str) -> IPv4Address | IPv6Address | None:
    """None without one. IPv4 within IPv6 is IPv4."""
    try:
        address = ip_address(host.partition("%")[0])
    except ValueError:
        return None
    return (address.ipv4_mapped if isinstance(address, IPv6Address) else None) or address


def _is_id(pattern: str, client: str) -> bool:
    return client.startswith(pattern[:-1]) if pattern.endswith("*") else client == pattern
