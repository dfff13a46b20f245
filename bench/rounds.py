"""Rounds: the sides of a case take turns (A, B, A, B, …), and a ratio is the median of the rounds' ratios.

Two runs side by side in time share whatever else the machine was doing, so their ratio is worth more
than that of two medians.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import TypeAlias

from smbroker.model.errors import LogError

Run: TypeAlias = dict[str, float]  # what one run of one side gave
Spread: TypeAlias = dict[str, float]  # median, least, most

OUT = "out_per_s"  # deliveries or acknowledgements
COST = "us_per_answer"  # the time that one of them takes
CPU = "cpu_s_per_million"


class RunFailed(Exception):
    """A server did not start, or a run gave no figures; the text says which."""


@dataclass(frozen=True)
class Scale:
    rounds: int
    warm_ms: int
    run_ms: int
    appended: int  # messages of log-append
    history: int  # messages of the log that history is asked of


USUAL = Scale(3, 300, 1_000, 1_000_000, 1_000_000)
QUICK = Scale(1, 100, 300, 100_000, 100_000)
FULL = Scale(5, 300, 2_000, 1_000_000, 10_000_000)


@dataclass
class Bench:
    directory: Path  # for logs; removed at the end
    scale: Scale
    rounds: int
    say: Callable[[str], None]
    soak: float = 10.0  # minutes
    runs: int = 0

    def new_directory(self) -> Path:
        self.runs += 1
        directory = self.directory / str(self.runs)
        directory.mkdir()
        return directory


@dataclass(frozen=True)
class Wanted:
    """A bound that the project has set itself."""

    least: float | None = None
    most: float | None = None

    def met(self, value: float) -> bool:
        return (self.least is None or value >= self.least) and (self.most is None or value <= self.most)


@dataclass(frozen=True)
class Side:
    name: str
    run: Callable[[Bench], Run]


@dataclass(frozen=True)
class Ratio:
    """Of one side to another, taken round by round; for load cases that of the server's CPU comes with it."""

    over: str
    under: str
    key: str = OUT
    wanted: Wanted = Wanted()


@dataclass(frozen=True)
class Figure:
    key: str
    title: str
    unit: str = "s"
    wanted: Wanted = Wanted()


@dataclass(frozen=True)
class Case:
    name: str
    title: str
    sides: tuple[Side, ...]
    ratios: tuple[Ratio, ...] = ()
    figures: tuple[Figure, ...] = ()  # none: a load case
    full: bool = False  # only with --full, or when it is named
    generator: bool = True  # whether it needs one

    @property
    def is_load(self) -> bool:
        return not self.figures


def run_case(bench: Bench, case: Case) -> dict:
    """All rounds. A side that fails is left out of the rounds that follow."""
    runs: dict[str, list[Run]] = {side.name: [] for side in case.sides}
    failed: dict[str, str] = {}
    key = case.figures[0].key if case.figures else OUT
    for number in range(1, bench.rounds + 1):
        for side in case.sides:
            if side.name in failed:
                continue
            try:
                run = side.run(bench)
            except (RunFailed, LogError, OSError, ImportError) as failure:
                failed[side.name] = str(failure)
                bench.say(f"  round {number}/{bench.rounds}  {side.name}: failed: {failure}")
            else:
                runs[side.name].append(run)
                bench.say(f"  round {number}/{bench.rounds}  {side.name}: {shown(run[key])} {key}")
    return {
        "name": case.name,
        "title": case.title,
        "sides": [
            {"name": name, "runs": each, "spread": {} if name in failed else spreads(each)}
            for name, each in runs.items()
        ],
        "failed": failed,
        "ratios": [
            compared(ratio, runs[ratio.over], runs[ratio.under])
            for ratio in case.ratios
            if ratio.over not in failed and ratio.under not in failed
        ],
    }


def shown(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def compared(ratio: Ratio, over: Sequence[Run], under: Sequence[Run]) -> dict:
    return {
        "over": ratio.over,
        "under": ratio.under,
        "key": ratio.key,
        "ratio": ratio_of(over, under, ratio.key),
        "cpu_ratio": ratio_of(over, under, CPU),
    }


def ratio_of(over: Sequence[Run], under: Sequence[Run], key: str) -> Spread | None:
    each = [one[key] / other[key] for one, other in zip(over, under, strict=True) if other[key]]
    return spread(each) if each else None


def spreads(runs: Sequence[Run]) -> dict[str, Spread]:
    return {key: spread([run[key] for run in runs]) for key in runs[0]}


def spread(values: Sequence[float]) -> Spread:
    return {"median": median(values), "least": min(values), "most": max(values)}
