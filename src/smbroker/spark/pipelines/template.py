"""The topic of a pipeline's messages: `derived/{room}/mean`, columns of the output in braces."""

import re
from dataclasses import dataclass

from smbroker.model.errors import Refused, UsageError
from smbroker.model.filter import Filter, matches
from smbroker.model.topic import checked_topic

OWN = ("$stats/", "$alerts/")  # what pipelines may publish of the topics that begin with `$`
_PART = re.compile(r"\{([^{}]+)\}|([^{}]+)")
_SOME = "\x01some value\x01"  # a level that no filter names


@dataclass(frozen=True, slots=True)
class Template:
    text: str
    parts: tuple[tuple[str, bool], ...]  # text, or the name of a column and True

    @property
    def columns(self) -> tuple[str, ...]:
        return tuple(text for text, is_column in self.parts if is_column)

    def feeds(self, filters: tuple[Filter, ...]) -> bool:
        """Whether every topic so made, of values without `/`, matches one of the filters."""
        topic = "".join(_SOME if is_column else text for text, is_column in self.parts).encode()
        return any(matches(each, topic) for each in filters)


def parse(text: str) -> Template:
    """Raises UsageError."""
    found = list(_PART.finditer(text))
    if "".join(each[0] for each in found) != text:
        raise UsageError("bad_template", f"{text}: write columns as {{name}}, and no other braces")
    template = Template(text, tuple((each[1].strip(), True) if each[1] else (each[2], False) for each in found))
    fixed = "".join(part for part, is_column in template.parts if not is_column)
    if "+" in fixed or "#" in fixed:
        raise UsageError("bad_template", f"{text}: + and # are for filters; a topic has none")
    if text.startswith("$") and not text.startswith(OWN):
        raise UsageError(
            "bad_template", f"{text}: of the topics that begin with $ only $stats/… and $alerts/… are open"
        )
    try:
        checked_topic(text.encode())
    except Refused as error:
        raise UsageError("bad_template", error.text) from error
    return template
