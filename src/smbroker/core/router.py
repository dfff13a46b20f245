"""The router: from a topic to its subscribers.

Filters without wildcards are in a table by topic; those with wildcards in a trie, one node per
level, so that the cost of a look-up grows with the depth of the topic and not with the number of
filters. `smbroker.model.filter.matches` is the plain rule that this must agree with.
"""

from collections.abc import Hashable, Iterator
from typing import Generic, TypeVar

from smbroker.model.filter import ANY, REST, Filter, FilterLevel, exact_topic
from smbroker.model.topic import Topic, levels_of

Subscriber = TypeVar("Subscriber", bound=Hashable)


class _Node(Generic[Subscriber]):
    __slots__ = ("children", "subscribers")

    def __init__(self) -> None:
        self.children: dict[FilterLevel, _Node[Subscriber]] = {}
        self.subscribers: dict[Subscriber, None] = {}  # of the filter that ends here


class Router(Generic[Subscriber]):
    def __init__(self) -> None:
        self._exact: dict[Topic, dict[Subscriber, None]] = {}
        self._root: _Node[Subscriber] = _Node()

    @property
    def empty(self) -> bool:
        return not self._exact and not self._root.children

    def subscribe(self, pattern: Filter, subscriber: Subscriber) -> None:
        topic = exact_topic(pattern)
        if topic is not None:
            self._exact.setdefault(topic, {})[subscriber] = None
            return
        node = self._root
        for level in pattern:
            child = node.children.get(level)
            if child is None:
                child = node.children[level] = _Node()
            node = child
        node.subscribers[subscriber] = None

    def unsubscribe(self, pattern: Filter, subscriber: Subscriber) -> None:
        topic = exact_topic(pattern)
        if topic is not None:
            subscribers = self._exact.get(topic, {})
            subscribers.pop(subscriber, None)
            if not subscribers:
                self._exact.pop(topic, None)
            return
        path = [self._root]
        for level in pattern:
            child = path[-1].children.get(level)
            if child is None:
                return
            path.append(child)
        path[-1].subscribers.pop(subscriber, None)
        self._prune(pattern, path)

    def match(self, topic: Topic) -> list[Subscriber]:
        """Each subscriber once, however many of its filters match."""
        found = dict(self._exact.get(topic, {}))
        if self._root.children:
            for node in self._matching_nodes(levels_of(topic)):
                found.update(node.subscribers)
        return list(found)

    def _matching_nodes(self, levels: list[bytes]) -> Iterator[_Node[Subscriber]]:
        """The ends of all wildcard filters that match. A `$` level is only met by its literal."""
        nodes = [self._root]
        literal_only = levels[0].startswith(b"$")
        for level in levels:
            reached = []
            for node in nodes:
                children = node.children
                if not literal_only:
                    if REST in children:
                        yield children[REST]
                    if ANY in children:
                        reached.append(children[ANY])
                if level in children:
                    reached.append(children[level])
            literal_only = False
            nodes = reached
            if not nodes:
                return
        for node in nodes:
            yield node
            if REST in node.children:
                yield node.children[REST]

    @staticmethod
    def _prune(pattern: Filter, path: list[_Node[Subscriber]]) -> None:
        for level, parent, node in zip(reversed(pattern), reversed(path[:-1]), reversed(path), strict=False):
            if node.children or node.subscribers:
                return
            del parent.children[level]
