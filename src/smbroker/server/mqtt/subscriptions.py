"""A session's subscriptions, and what they make of a message's topic.

Where several match, the client gets one copy, at the highest QoS of them and with all their identifiers.
"""

from dataclasses import dataclass

from smbroker.core.router import Router
from smbroker.dialects.mqtt.packets import Topics
from smbroker.model.filter import Filter, exact_topic
from smbroker.model.topic import Topic

LEVEL_BYTES = (
    1_000  # of memory for a level of a filter with wildcards, about: a node for the session and one for the broker
)
EXACT_BYTES = 1_000  # for a filter without wildcards, besides its characters
MAX_KNOWN = 1_000  # topics whose subscriptions are remembered, per session


@dataclass(slots=True, eq=False)
class Subscription:
    pattern: Filter
    share: str  # the name of a shared subscription; empty: not shared
    qos: int = 0
    no_local: bool = False
    as_published: bool = False
    identifier: int = 0  # 0: none
    start: int = 0  # no offset before it is meant
    seam: int = 0  # what is before it is history that was asked for, which needs a right of its own

    @classmethod
    def asked(cls, pattern: Filter, share: str, options: Topics, identifier: int) -> "Subscription":
        return cls(pattern, share, options.qos, options.no_local, options.as_published, identifier)

    @property
    def key(self) -> tuple[str, Filter]:
        return self.share, self.pattern

    @property
    def plain(self) -> bool:
        """Whether all such subscribers get the same bytes."""
        return not (self.qos or self.no_local or self.as_published or self.identifier or self.share)


class Subscriptions:
    __slots__ = ("_known", "_router", "all", "bytes", "special")

    def __init__(self) -> None:
        self.all: dict[tuple[str, Filter], Subscription] = {}
        self._router: Router[Subscription] = Router()
        self._known: dict[Topic, list[Subscription]] = {}
        self.special = 0  # those that are not plain
        self.bytes = 0  # of memory for their filters, about

    def add(self, one: Subscription) -> bool:
        """Whether it is new; else it replaces the one before it [MQTT-3.8.4-3]."""
        old = self.all.get(one.key)
        if old:
            self._router.unsubscribe(old.pattern, old)
            self.special -= not old.plain
        else:
            self.bytes += size_of(one.pattern)
        self.all[one.key] = one
        self.special += not one.plain
        if not one.share:
            self._router.subscribe(one.pattern, one)
        self._known.clear()
        return old is None

    def remove(self, share: str, pattern: Filter) -> Subscription | None:
        old = self.all.pop((share, pattern), None)
        if old:
            self.special -= not old.plain
            self.bytes -= size_of(pattern)
        if old and not old.share:
            self._router.unsubscribe(pattern, old)
        self._known.clear()
        return old

    def matching(self, topic: Topic) -> list[Subscription]:
        """Those that match, but for shared ones."""
        known = self._known.get(topic)
        if known is None:
            if len(self._known) >= MAX_KNOWN:
                self._known.clear()
            known = self._known[topic] = self._router.match(topic)
        return known

    @property
    def own(self) -> list[Subscription]:
        return [one for one in self.all.values() if not one.share]


def size_of(pattern: Filter) -> int:
    """What a filter takes in memory, about."""
    topic = exact_topic(pattern)
    return EXACT_BYTES + 4 * len(topic) if topic is not None else LEVEL_BYTES * len(pattern)
