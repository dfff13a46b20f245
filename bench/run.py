"""SMB's own bench: `make bench`, or `python bench/run.py --help`. README.md tells how to read what it prints."""

import argparse
import json
import signal
import sys
import tempfile
from collections.abc import Sequence
from fnmatch import fnmatch
from pathlib import Path

import against
import loads
import picture
import report
from cases import CASES
from rounds import FULL, QUICK, USUAL, Bench, Case, RunFailed, Scale, run_cases

HERE = Path(__file__).resolve().parent


def parsed(words: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="smb bench", description="Measures SMB beside its peers, in turns.")
    add = parser.add_argument
    add("--list", action="store_true", help="name the cases")
    add("--only", metavar="PATTERN", action="append", help="these cases; * stands for any text (again for more)")
    add("--also", metavar="PATTERN", action="append", help="these cases besides the usual ones, as the soak")
    usual = f"default {USUAL.rounds}, --quick {QUICK.rounds}, --full {FULL.rounds}"
    add("--rounds", type=int, metavar="N", help=f"{usual}; from three on up to twice as many where ratios are unsteady")
    add("--quick", action="store_true", help="short runs: whether it works, and a first look")
    add("--full", action="store_true", help="all cases, the soak too, and longer runs")
    add("--soak", type=float, default=10.0, metavar="MINUTES", help="how long the soak takes (default 10)")
    add("--json", metavar="FILE", type=Path, help="also write every single run to FILE")
    add(
        "--against",
        metavar="FILE",
        type=Path,
        help="also tell which ratios moved since FILE, which --json wrote",
    )
    add("--svg", metavar="FILE", type=Path, help="also draw the rates")
    add("--directory", metavar="DIR", type=Path, default=HERE / "build", help="on the disk that logs go to")
    options = parser.parse_args(words)
    if options.rounds is not None and options.rounds < 1:
        parser.error("--rounds must be at least 1")
    return options


def chosen(only: Sequence[str], also: Sequence[str], scale: Scale) -> tuple[list[Case], list[str]]:
    """The cases, and why others that are usual are left out; those that are named are not."""
    for pattern in (*only, *also):
        if not any(fnmatch(case.name, pattern) for case in CASES):
            sys.exit(f"no case is called {pattern}; --list names them")
    cases, left_out = [], []
    for case in CASES:
        if any(fnmatch(case.name, pattern) for pattern in (*only, *also)):
            cases.append(case)
        elif not only and usual(case, scale):
            if lacking := case.missing():
                left_out.append(f"{case.name} is left out: {lacking}")
            else:
                cases.append(case)
    return cases, left_out


def usual(case: Case, scale: Scale) -> bool:
    """What is measured but once cannot be made short."""
    return scale is FULL or not (case.full or (case.once and scale is QUICK))


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def main() -> int:
    options = parsed()
    if options.list:
        print("\n".join(f"{case.name:22} {case.title}{' (--full)' if case.full else ''}" for case in CASES))
        return 0
    scale = QUICK if options.quick else FULL if options.full else USUAL
    cases, left_out = chosen(options.only or (), options.also or (), scale)
    if trouble := loads.trouble(any(case.generator for case in cases)):
        sys.exit(trouble)
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.default_int_handler)  # so that servers are ended on the way out
    try:
        before = against.read(options.against) if options.against else None
    except RunFailed as failure:
        sys.exit(str(failure))
    for line in left_out:
        say(line)
    options.directory.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=options.directory, prefix="run-") as directory:
        bench = Bench(Path(directory), scale, options.rounds or scale.rounds, say, options.soak)
        about = report.about(bench, options.directory)
        results, whole = run_cases(bench, cases)
    if not whole:
        say("interrupted: what was started has been ended; what was done follows")
    print(report.markdown(cases, results, about, left_out))
    if before is not None:
        print("\n" + against.markdown(before, results))
    if options.svg:
        options.svg.write_text(picture.svg(cases, results))
    if options.json:
        options.json.write_text(json.dumps({"about": about, "cases": results}, indent=1, ensure_ascii=False) + "\n")
    return int(not whole or any(result["failed"] for result in results))


if __name__ == "__main__":
    sys.exit(main())
