"""Which rows a reader wants: exact topics, or a predicate over topics.

A predicate is asked once per distinct topic and remembered, never once per row.
"""

from collections.abc import Callable
from collections.abc import Set as AbstractSet
from typing import TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from smbroker.model.topic import Topic

Topics: TypeAlias = AbstractSet[Topic] | Callable[[Topic], bool]


class TopicChoice:
    def __init__(self, topics: Topics) -> None:
        self._exact: pa.Array | None = None
        self._predicate: Callable[[Topic], bool] | None = None
        self._known: dict[str, bool] = {}
        if isinstance(topics, AbstractSet):
            self._exact = pa.array(sorted(topic.decode() for topic in topics), pa.string())
        else:
            self._predicate = topics

    def mask(self, topics: pa.Array) -> pa.BooleanArray:
        """One truth per row of a plain or dictionary-encoded topic column."""
        if self._exact is not None and not pa.types.is_dictionary(topics.type):
            return pc.is_in(topics, value_set=self._exact)
        encoded = topics if pa.types.is_dictionary(topics.type) else topics.dictionary_encode()
        return self._of_distinct(encoded.dictionary).take(encoded.indices)

    def rows(self, topics: pa.DictionaryArray) -> pa.Array:
        """The numbers of the wanted rows."""
        wanted = pc.indices_nonzero(self._of_distinct(topics.dictionary))
        if not len(wanted):
            return wanted
        if len(wanted) == 1:
            return pc.indices_nonzero(pc.equal(topics.indices, wanted[0].cast(topics.indices.type)))
        return pc.indices_nonzero(pc.is_in(topics.indices, value_set=wanted.cast(topics.indices.type)))

    def among(self, distinct: pa.Array) -> pa.Array:
        """The positions of the wanted ones in a plain array of topics."""
        return pc.indices_nonzero(self._of_distinct(distinct))

    def _of_distinct(self, topics: pa.Array) -> pa.BooleanArray:
        if self._exact is not None:
            return pc.is_in(topics, value_set=self._exact)
        assert self._predicate is not None
        known, truths = self._known, []
        for topic in topics.to_pylist():
            truth = known.get(topic)
            if truth is None:
                truth = known[topic] = bool(self._predicate(topic.encode()))
            truths.append(truth)
        return pa.array(truths, pa.bool_())
