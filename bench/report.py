"""What came out, as Markdown tables for people; `--json` has every single run."""

import os
import platform
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from rounds import COST, CPU, OUT, P99, Bench, Case, Figure, Ratio, Spread, Wanted, shown

GENERATOR_LIMIT = 0.95  # of a core: above it the generator was the limit, not the server
OTHERS_LIMIT = 0.05  # of a core: above it the run was disturbed
WHAT = {OUT: "rate", COST: "time of a message", CPU: "server CPU", P99: "p99"}
NOTES = """\
`†` the generator used up its core: the server could do more; compare its CPU instead.
`*` other programs took more than 5 % of a core during a run: measure again on a quiet machine.
Cases whose ratios differ much from round to round had up to twice as many rounds.
In brackets: least and most of all rounds. Believe a difference only where that range leaves out 1."""


def about(bench: Bench, directory: Path) -> dict:
    scale = bench.scale
    return {
        "cores": os.cpu_count(),
        "processor": processor(),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "filesystem": filesystem(directory),
        "load_before": os.getloadavg()[0],
        "rounds": bench.rounds,
        "pieces": scale.pieces,
        "piece_ms": scale.piece_ms,
        "history": scale.history,
    }


def processor() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    return next((line.partition(": ")[2] for line in lines if line.startswith("model name")), platform.machine())


def filesystem(directory: Path) -> str:
    """The kind of the mount that the directory is in; on tmpfs a sync costs nothing."""
    place = directory.resolve()
    mounts = [line.split() for line in Path("/proc/mounts").read_text().splitlines()]
    kinds = {Path(where): kind for _, where, kind, *_ in mounts}
    return next((kinds[each] for each in (place, *place.parents) if each in kinds), "unknown")


def markdown(cases: Sequence[Case], results: Sequence[dict], about: dict, left_out: Sequence[str] = ()) -> str:
    by_name = {result["name"]: result for result in results}
    done = [(case, by_name[case.name]) for case in cases if case.name in by_name]
    loads = [pair for pair in done if pair[0].is_load]
    others = [pair for pair in done if not pair[0].is_load]
    parts = [headline(about)]
    if loads:
        parts.append(load_table(loads))
    parts.append(ratio_table(done))
    if others:
        parts.append(figure_table(others))
    parts += ["\n".join(left_out), wanted_list(done)]
    return "\n\n".join(part for part in [*parts, NOTES] if part)


def headline(about: dict) -> str:
    return (
        f"{about['cores']} cores ({about['processor']}), Linux {about['kernel']}, Python {about['python']}, "
        f"logs on {about['filesystem']}; rounds: {about['rounds']}, of {about['pieces']} times {about['piece_ms']} ms, "
        f"payloads of 64 bytes where nothing else is said; load before the start {about['load_before']:.1f}"
    )


def table(head: Sequence[str], numbers_from: int, rows: Iterable[Sequence[str]]) -> str:
    rule = ["---" if column < numbers_from else "--:" for column in range(len(head))]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in (head, rule, *rows))


def load_table(done: Sequence[tuple[Case, dict]]) -> str:
    head = ("case", "side", "in/s", "out/s", "lost", "server CPU s per M out", "server", "generator")
    rows = []
    for case, result in done:
        for side in result["sides"]:
            rows.append(load_row(case.name, side, result["failed"].get(side["name"])))
    return table(head, 2, rows)


def load_row(name: str, side: dict, failed: str | None) -> list[str]:
    if failed or not side["spread"]:
        return [name, side["name"], f"failed: {failed}", *[""] * 5]
    middle = {key: each["middle"] for key, each in side["spread"].items()}
    marks = "†" * (middle["generator_share"] > GENERATOR_LIMIT)
    marks += "*" * (side["spread"]["others_share"]["most"] > OTHERS_LIMIT)
    return [
        name,
        side["name"] + marks,
        shown(middle["in_per_s"]),
        shown(middle[OUT]),
        f"{middle['lost_share']:.2%}" if middle["lost"] else "0",
        shown(middle[CPU]),
        f"{middle['server_share']:.0%}",
        f"{middle['generator_share']:.0%}",
    ]


def ratio_table(done: Sequence[tuple[Case, dict]]) -> str:
    rows = [ratio_row(case, ratio) for case, result in done for ratio in result["ratios"]]
    return table(("case", "ratio", "of", "server CPU", "wanted"), 3, rows) if rows else ""


def ratio_row(case: Case, result: dict) -> list[str]:
    meant = meant_by(case, result)
    return [
        case.name,
        f"{meant.over} ÷ {meant.under}",
        f"{WHAT[meant.key]} {ratio_text(result['ratio'])}",
        ratio_text(result["cpu_ratio"]),
        wanted_text(meant.wanted, result["ratio"], "×"),
    ]


def meant_by(case: Case, result: dict) -> Ratio:
    return next(each for each in case.ratios if (each.over, each.under) == (result["over"], result["under"]))


def ratio_text(ratio: Spread | None) -> str:
    return f"**{ratio['middle']:.2f}** ({ratio['least']:.2f}–{ratio['most']:.2f})" if ratio else "–"


def figure_table(done: Sequence[tuple[Case, dict]]) -> str:
    rows = []
    for case, result in done:
        for side in result["sides"]:
            if failed := result["failed"].get(side["name"]):
                rows.append([case.name, side["name"], f"failed: {failed}", "", ""])
                continue
            rows += [figure_row(case, side, figure) for figure in case.figures]
    return table(("case", "side", "figure", "middle (least–most)", "wanted"), 3, rows)


def figure_row(case: Case, side: dict, figure: Figure) -> list[str]:
    spread = side["spread"][figure.key]
    middle, least, most = (with_unit(spread[key], figure.unit) for key in ("middle", "least", "most"))
    wanted = wanted_text(figure.wanted, spread, figure.unit)
    return [case.name, side["name"], figure.title, f"**{middle}** ({least}–{most})", wanted]


def wanted_list(done: Sequence[tuple[Case, dict]]) -> str:
    """How much of what is wanted was seen, and what was not."""
    asked = [line for case, result in done for line in wanted_lines(case, result)]
    if not asked:
        return ""
    missed = [text for met, text in asked if not met]
    head = f"**Wanted: {len(asked) - len(missed)} of {len(asked)} hold{'; not:' if missed else '.'}**"
    return "\n".join([head, *(f"- {text}" for text in missed)])


def wanted_lines(case: Case, result: dict) -> Iterator[tuple[bool, str]]:
    """Whether each bound is kept, and what it is of."""
    for each in result["ratios"]:
        meant = meant_by(case, each)
        if (bound := bound_text(meant.wanted, "×")) and each["ratio"]:
            what = f"{WHAT[meant.key]} of {meant.over} ÷ {meant.under}: {ratio_text(each['ratio'])}, wanted {bound}"
            yield meant.wanted.met(each["ratio"]["middle"]), f"{case.name}: {what}"
    for side in result["sides"]:
        for figure in case.figures:
            if (bound := bound_text(figure.wanted, figure.unit)) and side["spread"]:
                middle = side["spread"][figure.key]["middle"]
                what = f"{side['name']}, {figure.title}: {with_unit(middle, figure.unit)}, wanted {bound}"
                yield figure.wanted.met(middle), f"{case.name}: {what}"


def bound_text(wanted: Wanted, unit: str) -> str:
    if wanted.least is not None:
        return f"≥ {with_unit(wanted.least, unit)}"
    return f"≤ {with_unit(wanted.most, unit)}" if wanted.most is not None else ""


def wanted_text(wanted: Wanted, spread: Spread | None, unit: str) -> str:
    bound = bound_text(wanted, unit)
    if spread is None or not bound:
        return ""
    return f"{bound} {'✓' if wanted.met(spread['middle']) else '✗'}"


def with_unit(value: float, unit: str) -> str:
    if unit == "%":
        return f"{value:.0%}"
    if unit in ("/s", "×"):
        return shown(value) + (unit if unit == "/s" else " ×")
    return f"{value:.3f} s" if unit == "s" else f"{shown(value)} {unit}"
