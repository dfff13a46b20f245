"""Rounds: the sides of a case take turns (A, B, A, B, …), and a ratio is the geometric mean of the rounds' ratios.

All cases have their first round, then all their second, and so on: a machine that is slow for some minutes, to one
kind of server more than to another, does not have all rounds of a case. A case whose ratios differ much from round to
round has further ones: what is noisy needs more of them to be as sure of as the rest.

What is side by side in time shares whatever else the machine was doing. So a run under load is made of short
pieces: all sides are up, and one has its piece after the other, several times, each time in another order: what a
side leaves behind (warm or cold caches, a busy disk) is not always the same other's. The ratio of a round is that
of the sides' middles, each the mean of the middle half of its pieces: those often come in two kinds, quick and
held up, and a median then tells by chance of one or of the other.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from http.client import HTTPException
from math import log, sqrt
from pathlib import Path
from random import Random
from statistics import geometric_mean, mean, stdev
from subprocess import SubprocessError
from typing import Any, Protocol, TypeAlias

from smbroker.model.errors import LogError

Run: TypeAlias = dict[str, Any]  # what one run of one side gave: numbers, and under PIECES those of its pieces, by key
Spread: TypeAlias = dict[str, float]  # middle, least, most

OUT = "out_per_s"  # deliveries or acknowledgements
COST = "us_per_answer"  # the time that one of them takes
CPU = "cpu_s_per_million"
P99 = "p99_us"
MANY_ROUNDS = 5  # from which on the outer ones do not count
TELLING_ROUNDS = 3  # from which on their spread says something
SURE = 0.04  # of a ratio: its standard error, above which there are further rounds …
MOST_ROUNDS = 2  # … up to so many times those that were asked for
PIECES = "pieces"


class RunFailed(Exception):
    """A server did not start, or a run gave no figures; the text says which."""


@dataclass(frozen=True)
class Scale:
    rounds: int
    warm_ms: int
    pieces: int  # of a run under load
    piece_ms: int
    appended: int  # messages of log-append
    history: int  # messages of the log that history is asked of


USUAL = Scale(3, 300, 5, 250, 1_000_000, 10_000_000)
QUICK = Scale(1, 100, 2, 150, 100_000, 100_000)
FULL = Scale(5, 300, 8, 250, 1_000_000, 10_000_000)


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

    @property
    def inverse(self) -> "Wanted":
        """The same bound, of B ÷ A."""
        return Wanted(1 / self.most if self.most else None, 1 / self.least if self.least else None)


class Sitting(Protocol):
    """A server and its load, both up."""

    def go(self) -> None:
        """Another piece of the run."""

    def figures(self) -> Run:
        """Of all pieces, after the end."""


@dataclass(frozen=True)
class Side:
    """Has one of the two: `up` if it can go in pieces."""

    name: str
    run: Callable[[Bench], Run] | None = None
    up: Callable[[Bench], AbstractContextManager[Sitting]] | None = None


@dataclass(frozen=True)
class Ratio:
    """Of one side to another, taken round by round; for load cases that of the server's CPU comes with it."""

    over: str
    under: str
    key: str = OUT
    wanted: Wanted = Wanted()
    alike: tuple[str, ...] = ()  # further sides of the kind of `under`, whose pieces count as its own


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
    once: bool = False  # however many rounds others have
    oftener: int = 1  # so many times the pieces that others have
    anew: int = 1  # so often its servers are started in a round: two of a kind may differ more than their pieces do
    missing: Callable[[], str] = lambda: ""  # what is not installed and it cannot do without, with what to do

    @property
    def is_load(self) -> bool:
        return not self.figures


class Measuring:
    """A case, round by round. A side that fails is left out of the rounds that follow."""

    def __init__(self, bench: Bench, case: Case) -> None:
        self._bench, self.case = bench, case
        self.rounds = 1 if case.once else bench.rounds
        self.runs: dict[str, list[Run]] = {side.name: [] for side in case.sides}
        lacking = case.missing()
        self.failed = {side.name: lacking for side in case.sides} if lacking else {}  # why each side has
        self._order = Random(case.name)  # another in every round, and the same in another run of the suite
        self.done = 0  # rounds that came to their end

    def go(self) -> None:
        """One more round."""
        key = self.case.figures[0].key if self.case.figures else OUT
        before = set(self.failed)
        for _ in range(self.case.anew):
            for name, run in one_round(self._bench, self.case, self.failed, self._order).items():
                self.runs[name].append(run)
                self._bench.say(f"  {name}: {shown(run[key])} {key}")
        for name in self.failed.keys() - before:
            self._bench.say(f"  {name}: failed: {self.failed[name]}")
        self.done += 1

    @property
    def unsure(self) -> bool:
        """Whether further rounds would tell more."""
        if not TELLING_ROUNDS <= self.done < MOST_ROUNDS * self.rounds:
            return False
        return any(error_of(self._in_rounds(ratio, ratio.key)) > SURE for ratio in self._ratios)

    @property
    def _ratios(self) -> list[Ratio]:
        """Of sides that do not fail."""
        failed = self.failed.keys()
        return [ratio for ratio in self.case.ratios if not failed & {ratio.over, ratio.under, *ratio.alike}]

    def _in_rounds(self, ratio: Ratio, key: str) -> list[float]:
        over, *under = (self.runs[name] for name in (ratio.over, ratio.under, *ratio.alike))
        return in_rounds(over, under, key)

    def result(self) -> dict:
        runs, failed = self.runs, self.failed
        return {
            "name": self.case.name,
            "title": self.case.title,
            "sides": [
                {"name": name, "runs": each, "spread": {} if name in failed else spreads(each)}
                for name, each in runs.items()
            ],
            "failed": failed,
            "ratios": [
                {
                    "over": ratio.over,
                    "under": ratio.under,
                    "key": ratio.key,
                    "ratio": ratio_of(self._in_rounds(ratio, ratio.key)),
                    "cpu_ratio": ratio_of(self._in_rounds(ratio, CPU)),
                }
                for ratio in self._ratios
            ],
        }


def run_cases(bench: Bench, cases: Sequence[Case]) -> tuple[list[dict], bool]:
    """The results of those that have had a round, and whether all came to their end: Ctrl-C ends it early."""
    measured = [Measuring(bench, case) for case in cases]
    steps = [(number, each) for number in range(1, bench.rounds + 1) for each in measured if number <= each.rounds]
    whole = True
    try:
        for step, (number, each) in enumerate(steps, 1):
            bench.say(f"[{step}/{len(steps)}] round {number}/{each.rounds}  {each.case.name}: {each.case.title}")
            each.go()
        while unsure := [each for each in measured if each.unsure]:
            for step, each in enumerate(unsure, 1):
                bench.say(f"[{step}/{len(unsure)}] further round {each.done + 1}  {each.case.name}: {each.case.title}")
                each.go()
    except KeyboardInterrupt:
        whole = False
    return [each.result() for each in measured if each.done], whole


def one_round(bench: Bench, case: Case, failed: dict[str, str], order: Random) -> dict[str, Run]:
    """Of the sides that do not fail; why others did is put into `failed`."""
    sides = [side for side in case.sides if side.name not in failed]
    runs: dict[str, Run] = {}
    sittings: dict[str, Sitting] = {}
    stacks = {side.name: ExitStack() for side in sides}
    try:
        for side in sides:
            with noted(failed, side.name):
                if side.run:
                    runs[side.name] = side.run(bench)
                elif side.up:
                    sittings[side.name] = stacks[side.name].enter_context(side.up(bench))
        for _ in range(bench.scale.pieces * case.oftener):
            names = [name for name in sittings if name not in failed]
            for name in order.sample(names, len(names)):
                with noted(failed, name):
                    sittings[name].go()
    finally:
        for name, stack in stacks.items():
            with noted(failed, name):
                stack.close()
    return runs | {name: sitting.figures() for name, sitting in sittings.items() if name not in failed}


@contextmanager
def noted(failed: dict[str, str], name: str) -> Iterator[None]:
    try:
        yield
    except (RunFailed, LogError, OSError, ImportError, ValueError, SubprocessError, HTTPException) as failure:
        failed.setdefault(name, str(failure))


def shown(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def in_rounds(over: Sequence[Run], under: Sequence[Sequence[Run]], key: str) -> list[float]:
    rounds = zip(over, zip(*under, strict=True), strict=True)
    return [of_round([one], others, key) for one, others in rounds if all(other[key] for other in others)]


def ratio_of(each: Sequence[float]) -> Spread | None:
    """The geometric mean of the rounds', so that A ÷ B is the inverse of B ÷ A, and the least and most of them.

    Of many it is that of the middle half: one of them may have been held up."""
    if not each:
        return None
    kept = middle_half(each) if len(each) >= MANY_ROUNDS else each
    return {"middle": geometric_mean(kept) if all(kept) else 0.0, "least": min(each), "most": max(each)}


def error_of(each: Sequence[float]) -> float:
    """The standard error of their geometric mean, as a share of it."""
    return stdev(map(log, each)) / sqrt(len(each)) if len(each) > 1 and all(each) else 0.0


def of_round(over: Sequence[Run], under: Sequence[Run], key: str) -> float:
    if key == COST:  # what takes longer has the lower rate
        over, under, key = under, over, OUT
    top, bottom = ([value for run in runs for value in in_pieces(run, key)] for runs in (over, under))
    return middle(top) / middle(bottom)


def in_pieces(run: Run, key: str) -> list[float]:
    """That of the whole where there are none, or one of them does not tell."""
    pieces: list[float] = run.get(PIECES, {}).get(key, [])
    return pieces if pieces and all(pieces) else [run[key]]


def middle(values: Sequence[float]) -> float:
    """The mean of the middle half; of three that is the median."""
    return mean(middle_half(values))


def middle_half(values: Sequence[float]) -> list[float]:
    cut = (len(values) + 1) // 4
    return sorted(values)[cut : len(values) - cut]


def spreads(runs: Sequence[Run]) -> dict[str, Spread]:
    return {key: spread([run[key] for run in runs]) for key in runs[0] if key != PIECES}


def spread(values: Sequence[float]) -> Spread:
    return {"middle": middle(values), "least": min(values), "most": max(values)}
