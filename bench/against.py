"""What has changed since another run: the ratios of two results, side by side.

Rates of two runs cannot be compared, as the machine was not the same; ratios that were each taken in one run can.
"""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from report import table
from rounds import RunFailed, Spread

MOVED = 0.15  # one that differs by more than this share has moved


class Change(NamedTuple):
    case: str
    ratio: str
    before: Spread
    now: Spread

    @property
    def share(self) -> float:
        return self.now["middle"] / self.before["middle"] - 1

    @property
    def verdict(self) -> str:
        if abs(self.share) <= MOVED:
            return ""
        apart = self.now["least"] > self.before["most"] or self.now["most"] < self.before["least"]
        return "moved" if apart else "moved, but within the spread"


def read(file: Path) -> list[dict]:
    """The cases of a result that `--json` wrote. Raises RunFailed."""
    try:
        found: list[dict] = json.loads(file.read_text())["cases"]
        ratios = [ratio["ratio"] for case in found for ratio in case["ratios"]]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise RunFailed(f"{file} is not a result that --json wrote: {error}") from error
    if any(ratio and "middle" not in ratio for ratio in ratios):
        raise RunFailed(f"{file} is of a version that took other means: measure with this one first")
    return found


def changes(before: Sequence[dict], now: Sequence[dict]) -> Iterator[Change]:
    known = {(case["name"], *_names(ratio)): ratio["ratio"] for case in before for ratio in case["ratios"]}
    for case in now:
        for ratio in case["ratios"]:
            old = known.get((case["name"], *_names(ratio)))
            if old and ratio["ratio"]:
                yield Change(case["name"], f"{ratio['over']} ÷ {ratio['under']}", old, ratio["ratio"])


def markdown(before: Sequence[dict], now: Sequence[dict]) -> str:
    found = list(changes(before, now))
    moved = sum(bool(change.verdict) for change in found)
    rows = [
        [each.case, each.ratio, _text(each.before), _text(each.now), f"{each.share:+.0%}", each.verdict]
        for each in found
    ]
    head = ("case", "ratio", "before", "now", "change", "")
    return f"Of {len(found)} ratios {moved} moved by more than {MOVED:.0%}.\n\n{table(head, 2, rows)}"


def _names(ratio: dict) -> tuple[str, str, str]:
    return ratio["over"], ratio["under"], ratio["key"]


def _text(spread: Spread) -> str:
    return f"{spread['middle']:.2f} ({spread['least']:.2f}–{spread['most']:.2f})"
