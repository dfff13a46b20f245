"""A grant: what one identity may do, decided once per topic and remembered.

Whoever routes, replays or publishes asks it for a concrete topic, where a route or a replay is built; so a message
costs nothing. `limited` is false for those who may do everything: nothing else need be asked then.
"""

from typing import Final

from smbroker.model.errors import Refused
from smbroker.model.filter import Filter
from smbroker.model.rights import ALL, Action, Identity, Permit, Rules
from smbroker.model.topic import Topic

MOST = 10_000  # topics that a grant remembers, for each action
LONGEST = 256  # bytes; longer ones are decided each time

EVERY: Final = Permit((ALL,))
NONE: Final = Permit()


class Decisions(dict[Topic, bool]):
    """Whether one action is allowed, by topic."""

    __slots__ = ("every", "permit")

    def __init__(self, permit: Permit, every: bool) -> None:
        super().__init__()
        self.permit = permit
        self.every = every  # no topic is denied, also none with `$`

    def __missing__(self, topic: Topic) -> bool:
        if self.every:
            return True
        allowed = self.permit.allows(topic)
        if len(topic) <= LONGEST:
            if len(self) >= MOST:
                self.clear()
            self[topic] = allowed
        return allowed


class Grant:
    __slots__ = ("__weakref__", "identity", "limited", "nothing", "publishes", "replays", "subscribes")

    def __init__(self, identity: Identity | None, rules: Rules | None, *, everything: bool = False) -> None:
        """Without rules it may do everything, or nothing."""
        self.identity = identity
        self.take(rules, everything=everything)

    def take(self, rules: Rules | None, *, everything: bool = False) -> None:
        if rules is None or self.identity is None:
            permits = [EVERY if everything else NONE] * 3
        else:
            permits = [rules.permit(self.identity, action) for action in Action]
        self.limited = not everything
        self.publishes, self.subscribes, self.replays = (Decisions(permit, everything) for permit in permits)
        self.nothing = all(permit.empty for permit in permits)

    def check_publish(self, topic: Topic) -> None:
        """Raises Refused."""
        if self.limited and not self.publishes[topic]:
            raise Refused("not_allowed", "not allowed to publish to this topic")

    def check_subscribe(self, pattern: Filter) -> None:
        """Refuses a subscription that could bring nothing. Raises Refused."""
        if self.limited and not self.subscribes.permit.meets(pattern):
            raise Refused("not_allowed", "not allowed to subscribe to this")

    def replay(self) -> Permit | None:
        """For whoever reads history elsewhere; None: everything."""
        return self.replays.permit if self.limited else None

    def check(self, action: Action, topic: Topic) -> None:
        """Raises Refused."""
        known = {Action.PUBLISH: self.publishes, Action.SUBSCRIBE: self.subscribes, Action.REPLAY: self.replays}
        if self.limited and not known[action][topic]:
            raise Refused("not_allowed", f"not allowed: {action} {topic.decode(errors='replace')[:200]}")

    @property
    def user(self) -> str | None:
        return self.identity.user if self.identity else None

    @property
    def replays_all(self) -> bool:
        """Whether nothing that was ever published is to be hidden from it."""
        return not self.limited or self.replays.permit.whole


EVERYTHING: Final = Grant(None, None, everything=True)
TRUSTED: Final = Grant(None, None, everything=True)  # the broker's own pipelines
NOTHING: Final = Grant(None, None)
