"""Rights in use: the rules there are, and the grants that were made by them.

When the rules change every grant changes with them, and whoever remembers what a grant said must ask again
(`Rights.changed`). Without rules, whoever is on this machine may do all, and nobody else anything.
"""

from collections.abc import Callable
from weakref import WeakValueDictionary

from smbroker.model.grant import EVERYTHING, NOTHING, TRUSTED, Grant
from smbroker.model.rights import Identity, Rules, is_loopback


class Rights:
    def __init__(self, rules: Rules | None = None) -> None:
        self.rules = rules
        self._grants: WeakValueDictionary[Identity, Grant] = WeakValueDictionary()
        self.changed: list[Callable[[], None]] = []  # called after the rules have changed

    @property
    def on(self) -> bool:
        return self.rules is not None

    def grant(self, identity: Identity) -> Grant:
        if identity.trusted:
            return TRUSTED
        if self.rules is None:
            return EVERYTHING if is_loopback(identity.host) else NOTHING
        grant = self._grants.get(identity)
        if grant is None:
            grant = self._grants[identity] = Grant(identity, self.rules)
        return grant

    def change(self, rules: Rules, holds: Callable[[Identity], bool] = lambda _: True) -> None:
        """Only where there were rules before. Whoever is no longer what it was (`holds`) may do nothing any more."""
        assert self.rules is not None
        self.rules = rules
        for identity, grant in list(self._grants.items()):
            if holds(identity):
                grant.take(rules)
            else:
                grant.take(None)
                del self._grants[identity]
        for hear in self.changed:
            hear()
