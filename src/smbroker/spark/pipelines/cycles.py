"""Feedback: what pipelines publish they must not, in a circle, be fed with.

One pipeline skips its own rows. A longer circle is refused where it can be proved: each member reads (`from`) every
topic that the one before it publishes. A pipeline that reads everything because it has no `from` counts only if
nothing in it leaves rows out (`open_ended`): most pick their rows in the SELECT.
"""

from collections.abc import Iterable, Mapping

from smbroker.spark.pipelines.files import Pipeline


def circle(added: Pipeline, running: Iterable[Pipeline], open_ended: Mapping[str, bool]) -> list[str] | None:
    """The names along a circle that `added` would close, or None."""
    known = {each.name: each for each in running if each.name != added.name} | {added.name: added}

    def feeds(one: Pipeline, other: Pipeline) -> bool:
        if one.topic is None or other.topic is None or one.name == other.name:
            return False
        counts = "from" in other.lines or open_ended.get(other.name, False)
        return counts and one.topic.feeds(other.parsed_filters)

    def way(at: Pipeline, passed: list[str]) -> list[str] | None:
        for each in known.values():
            if not feeds(at, each):
                continue
            if each is added:
                return [*passed, each.name]
            if each.name not in passed and (found := way(each, [*passed, each.name])):
                return found
        return None

    return way(added, [added.name])
