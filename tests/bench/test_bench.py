"""The bench works from end to end. How fast anything is, is not tested here: that is what the bench itself is for."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from statistics import geometric_mean, mean

import pytest

BENCH = Path(__file__).resolve().parents[2] / "bench"
with_gcc = pytest.mark.skipif(not shutil.which("gcc"), reason="gcc is not installed: the load generators are C")


def bench(*words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(BENCH / "run.py"), *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=300, env={**os.environ, **environment})


@pytest.fixture
def modules(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(BENCH)


@with_gcc
@pytest.mark.usefixtures("modules")
def test_the_c_programs_build_without_warnings(tmp_path: Path) -> None:
    import loads

    loads.build(tmp_path, (*loads.FLAGS, "-Werror"))
    assert {path.name for path in tmp_path.iterdir()} == set(loads.SOURCES)


@with_gcc
def test_a_quick_case_runs_from_end_to_end(tmp_path: Path) -> None:
    file = tmp_path / "result.json"
    done = bench(
        "--quick", "--rounds", "1", "--only", "semicolon-1-1", "--json", str(file), "--directory", str(tmp_path)
    )
    assert done.returncode == 0, done.stderr
    [case] = json.loads(file.read_text())["cases"]
    assert case["name"] == "semicolon-1-1"
    assert case["failed"] == {}
    [ratio] = case["ratios"]
    starts = list(zip(*(side["runs"] for side in case["sides"]), strict=True))
    assert len(starts) == 2
    each = []
    for runs in starts:
        assert all(run["received"] > 0 for run in runs)
        one, other = [sorted(run["pieces"]["out_per_s"]) for run in runs]
        assert len(one) == len(other) == 4
        each.append(mean(one[1:-1]) / mean(other[1:-1]))
    assert ratio["ratio"]["middle"] == pytest.approx(geometric_mean(each))
    assert "| semicolon-1-1 | SMB" in done.stdout
    assert "round 1/1" in done.stderr
    assert list(tmp_path.iterdir()) == [file], "what was written on the way is gone"


def test_without_gcc_one_line_says_so(tmp_path: Path) -> None:
    done = bench("--quick", "--only", "semicolon-1-1", PATH=str(tmp_path))
    assert done.returncode == 1
    assert done.stdout == ""
    [line] = done.stderr.splitlines()
    assert "gcc" in line


def test_list_names_the_cases_and_another_name_is_refused() -> None:
    names = [line.split()[0] for line in bench("--list").stdout.splitlines()]
    dialects = ("semicolon", "soh", "pipe", "padded", "typed", "mqtt")
    assert {f"{one}-{fan}" for one in dialects for fan in ("1-1", "1-10", "1-100", "4-4")} <= set(names)
    assert len(names) == len(set(names))
    refused = bench("--only", "nonsense")
    assert refused.returncode == 1
    assert "nonsense" in refused.stderr


@pytest.mark.usefixtures("modules")
def test_a_usual_case_that_lacks_something_is_left_out_unless_it_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    import rounds

    import run

    def case(name: str, full: bool = False, once: bool = False, lacking: str = "") -> rounds.Case:
        return rounds.Case(name, "", (), full=full, once=once, missing=lambda: lacking)

    cases = (case("usual"), case("spark", once=True, lacking="there is no Java"), case("soak", full=True))
    monkeypatch.setattr(run, "CASES", cases)

    def names(only: tuple[str, ...], also: tuple[str, ...], scale: rounds.Scale) -> tuple[list[str], list[str]]:
        chosen, left_out = run.chosen(only, also, scale)
        return [case.name for case in chosen], left_out

    left_out = ["spark is left out: there is no Java"]
    assert names((), (), rounds.USUAL) == (["usual"], left_out)
    assert names((), ("so*",), rounds.USUAL) == (["usual", "soak"], left_out)
    assert names((), (), rounds.FULL) == (["usual", "soak"], left_out)
    assert names((), (), rounds.QUICK) == (["usual"], [])
    assert names(("spark",), (), rounds.QUICK) == (["spark"], [])


@pytest.mark.usefixtures("modules")
def test_a_case_that_lacks_something_says_so_instead_of_running(tmp_path: Path) -> None:
    import rounds

    went: list[object] = []

    def never(bench: object) -> rounds.Run:
        went.append(bench)
        return {"time_s": 1.0}

    figures = (rounds.Figure("time_s", "time"),)
    case = rounds.Case("a", "", (rounds.Side("a", never),), figures=figures, missing=lambda: "there is no Java")
    (result,), whole = rounds.run_cases(rounds.Bench(tmp_path, rounds.QUICK, 1, lambda _: None), [case])
    assert whole
    assert result["failed"] == {"a": "there is no Java"}
    assert not went


@pytest.mark.usefixtures("modules")
def test_servers_may_be_started_anew_within_a_round(tmp_path: Path) -> None:
    import rounds

    rates = iter((1.0, 2.0, 3.0, 4.0, 5.0, 6.0))
    side = rounds.Side("a", lambda _: {"time_s": next(rates)})
    case = rounds.Case("a", "", (side,), figures=(rounds.Figure("time_s", "time"),), anew=3)
    (result,), _ = rounds.run_cases(rounds.Bench(tmp_path, rounds.QUICK, 2, lambda _: None), [case])
    assert [run["time_s"] for run in result["sides"][0]["runs"]] == [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]


@pytest.mark.usefixtures("modules")
def test_what_is_wanted_and_was_not_seen_is_told_at_the_end() -> None:
    import report
    import rounds

    def spread(middle: float) -> rounds.Spread:
        return {"middle": middle, "least": middle, "most": middle}

    figures = (
        rounds.Figure("time_s", "time", wanted=rounds.Wanted(most=1.0)),
        rounds.Figure("rate", "rate", "/s"),
    )
    ratios = (rounds.Ratio("SMB", "peer", wanted=rounds.Wanted(least=2.0)),)
    case = rounds.Case("case", "", (), ratios, figures)
    side = {"name": "SMB", "spread": {"time_s": spread(0.5), "rate": spread(7.0)}}
    ratio = {"over": "SMB", "under": "peer", "ratio": spread(1.5)}
    told = report.wanted_list([(case, {"sides": [side], "ratios": [ratio]})])
    assert told.splitlines() == [
        "**Wanted: 1 of 2 hold; not:**",
        "- case: rate of SMB ÷ peer: **1.50** (1.50–1.50), wanted ≥ 2 ×",
    ]
    ratio["ratio"] = spread(2.0)
    assert report.wanted_list([(case, {"sides": [side], "ratios": [ratio]})]) == "**Wanted: 2 of 2 hold.**"


@pytest.mark.usefixtures("modules")
def test_a_ratio_is_the_geometric_mean_of_the_rounds_ratios() -> None:
    import rounds

    def ratio(over: list[float], *under: list[float]) -> rounds.Spread | None:
        sides = ([{"rate": value} for value in side] for side in (over, *under))
        return rounds.ratio_of(rounds.in_rounds(next(sides), list(sides), "rate"))

    over, under = [10.0, 80.0, 30.0], [10.0, 20.0, 60.0]  # 1, 4 and ½
    assert ratio(over, under) == {"middle": pytest.approx(2 ** (1 / 3)), "least": 0.5, "most": 4.0}
    assert ratio(under, over) == {"middle": pytest.approx(2 ** (-1 / 3)), "least": 0.25, "most": 2.0}
    assert ratio(over, over, over) == {"middle": pytest.approx(1.0), "least": 1.0, "most": 1.0}
    assert ratio([0.0, 1.0, 1.0], under) == {"middle": 0.0, "least": 0.0, "most": 0.05}
    assert ratio([1.0] * 7 + [1_000.0, 0.001], [1.0] * 9) == {"middle": 1.0, "least": 0.001, "most": 1_000.0}


@pytest.mark.usefixtures("modules")
def test_a_rounds_ratio_is_that_of_the_middles_of_its_pieces() -> None:
    import rounds

    def run(*pieces: float) -> rounds.Run:
        return {rounds.OUT: 7.0, rounds.COST: 0.14, rounds.PIECES: {rounds.OUT: list(pieces)}}

    over, under = run(10.0, 1.0, 12.0, 99.0, 8.0), run(5.0, 5.0, 50.0, 5.0, 1.0)
    assert rounds.of_round([over], [under], rounds.OUT) == 2.0
    assert rounds.of_round([over], [under], rounds.COST) == 0.5
    assert rounds.of_round([over], [over, over], rounds.OUT) == 1.0


@pytest.mark.usefixtures("modules")
def test_the_middle_is_the_mean_of_the_middle_half() -> None:
    import rounds

    assert [rounds.middle(range(count)) for count in (1, 2, 3, 5, 8)] == [0, 0.5, 1, 2, 3.5]
    assert rounds.middle([1.0, 1.0, 1.0, 2.0, 2.0, 2.0, 2.0, 900.0]) == 1.75


@pytest.mark.usefixtures("modules")
def test_sides_have_their_pieces_in_turns_in_changing_order(tmp_path: Path) -> None:
    import rounds

    went: list[str] = []

    class Sitting:
        def __init__(self, name: str) -> None:
            self.name = name

        def go(self) -> None:
            went.append(self.name)

        def figures(self) -> rounds.Run:
            return {rounds.OUT: 1.0, rounds.CPU: 1.0}

    sides = tuple(rounds.Side(name, up=lambda _, name=name: nullcontext(Sitting(name))) for name in "abc")
    bench = rounds.Bench(tmp_path, rounds.QUICK, 1, lambda _: None)
    rounds.run_cases(bench, [rounds.Case("case", "a case", sides, oftener=10)])
    pieces = ["".join(went[at : at + 3]) for at in range(0, len(went), 3)]
    assert len(pieces) == 10 * rounds.QUICK.pieces
    assert {"".join(sorted(piece)) for piece in pieces} == {"abc"}
    assert len(set(pieces)) > 2


@pytest.mark.usefixtures("modules")
def test_all_cases_have_a_round_before_the_next_and_what_was_done_is_kept(tmp_path: Path) -> None:
    import rounds

    went: list[str] = []

    def side(name: str, sixth: BaseException | None = None) -> rounds.Side:
        def run(_bench: object) -> rounds.Run:
            if sixth and len(went) == 5:
                raise sixth
            went.append(name)
            return {"time_s": 1.0}

        return rounds.Side(name, run)

    figures = (rounds.Figure("time_s", "time"),)
    cases = [
        rounds.Case("a", "", (side("a", KeyboardInterrupt()),), figures=figures),
        rounds.Case("once", "", (side("once"),), figures=figures, once=True),
        rounds.Case("b", "", (side("b"),), figures=figures),
    ]
    told: list[str] = []
    results, whole = rounds.run_cases(rounds.Bench(tmp_path, rounds.QUICK, 2, told.append), cases)
    assert "".join(went) == "aoncebab"
    assert whole
    assert [line for line in told if line.startswith("[")][3].startswith("[4/5] round 2/2  a")
    went.clear()
    results, whole = rounds.run_cases(rounds.Bench(tmp_path, rounds.QUICK, 3, told.append), cases)
    assert "".join(went) == "aoncebab"
    assert not whole
    assert [len(result["sides"][0]["runs"]) for result in results] == [2, 1, 2]


@pytest.mark.usefixtures("modules")
def test_what_differs_from_round_to_round_has_further_ones(tmp_path: Path) -> None:
    import rounds

    def case(name: str, *ratios: float) -> rounds.Case:
        rates = iter(ratios)
        sides = (
            rounds.Side("SMB", lambda _: {rounds.OUT: next(rates), rounds.CPU: 1.0}),
            rounds.Side("peer", lambda _: {rounds.OUT: 1.0, rounds.CPU: 1.0}),
        )
        return rounds.Case(name, "", sides, (rounds.Ratio("SMB", "peer"),))

    cases = [
        case("steady", 1.0, 1.1, 1.0),
        case("in the end", 1.0, 1.2, 1.0, 1.1, 1.1),
        case("never", 1.0, 2.0, 4.0, 3.0, 2.0, 900.0),
    ]
    told: list[str] = []
    results, whole = rounds.run_cases(rounds.Bench(tmp_path, rounds.USUAL, 3, told.append), cases)
    assert whole
    assert [len(result["sides"][0]["runs"]) for result in results] == [3, 5, 6]
    assert [line for line in told if "further round 4" in line] == [
        "[1/2] further round 4  in the end: ",
        "[2/2] further round 4  never: ",
    ]
    assert results[2]["ratios"][0]["ratio"] == {"middle": pytest.approx(48 ** (1 / 4)), "least": 1.0, "most": 900.0}
    results, _ = rounds.run_cases(rounds.Bench(tmp_path, rounds.QUICK, 1, told.append), [case("quick", 1.0)])
    assert len(results[0]["sides"][0]["runs"]) == 1


@pytest.mark.usefixtures("modules")
def test_a_case_that_is_interrupted_in_its_first_round_is_left_out(tmp_path: Path) -> None:
    import rounds

    def ends_with(error: BaseException) -> Callable[[object], rounds.Run]:
        def run(_bench: object) -> rounds.Run:
            raise error

        return run

    sides = (
        rounds.Side("broken", ends_with(rounds.RunFailed("no server"))),
        rounds.Side("stopped", ends_with(KeyboardInterrupt())),
    )
    case = rounds.Case("a", "", sides, figures=(rounds.Figure("time_s", "time"),))
    assert rounds.run_cases(rounds.Bench(tmp_path, rounds.QUICK, 2, lambda _: None), [case]) == ([], False)


@pytest.mark.usefixtures("modules")
@pytest.mark.parametrize("error", [OSError("no server"), ValueError("no server"), None])
def test_a_side_that_fails_is_named_and_the_others_go_on(tmp_path: Path, error: Exception | None) -> None:
    import report
    import rounds

    def fails(_bench: object) -> rounds.Run:
        raise error or rounds.RunFailed("no server")

    figure = rounds.Figure("time_s", "time", wanted=rounds.Wanted(most=1.0))
    sides = (rounds.Side("sound", lambda _: {"time_s": 0.25}), rounds.Side("broken", fails))
    case = rounds.Case("case", "a case", sides, figures=(figure,))
    bench = rounds.Bench(tmp_path, rounds.QUICK, 2, lambda _: None)
    (result,), whole = rounds.run_cases(bench, [case])
    assert whole
    assert result["failed"] == {"broken": "no server"}
    text = report.markdown([case], [result], report.about(bench, tmp_path))
    assert "| case | sound | time | **0.250 s** (0.250 s–0.250 s) | ≤ 1.000 s ✓ |" in text
    assert "| case | broken | failed: no server |" in text


@pytest.mark.usefixtures("modules")
def test_ratios_that_moved_since_another_run_are_told() -> None:
    import against

    def result(middle: float) -> dict[str, object]:
        spread = {"middle": middle, "least": middle - 0.1, "most": middle + 0.1}
        return {"name": "a", "ratios": [{"over": "SMB", "under": "peer", "key": "out_per_s", "ratio": spread}]}

    told = {now: against.markdown([result(1.0)], [result(now)]).splitlines() for now in (1.1, 1.18, 1.3)}
    assert told[1.1][0] == "Of 1 ratios 0 moved by more than 15%."
    assert told[1.1][-1] == "| a | SMB ÷ peer | 1.00 (0.90–1.10) | 1.10 (1.00–1.20) | +10% |  |"
    assert told[1.18][-1].endswith("| +18% | moved, but within the spread |")
    assert told[1.3][-1].endswith("| +30% | moved |")


def test_a_result_to_compare_with_must_be_one(tmp_path: Path) -> None:
    (tmp_path / "other.json").write_text("[]")
    done = bench("--only", "ready", "--against", str(tmp_path / "other.json"))
    assert done.returncode == 1
    assert "is not a result that --json wrote" in done.stderr


@pytest.mark.usefixtures("modules")
def test_a_result_of_medians_cannot_be_compared_with(tmp_path: Path) -> None:
    import against
    import rounds

    ratio = {"over": "SMB", "under": "peer", "key": "out_per_s", "ratio": {"median": 1.0, "least": 1.0, "most": 1.0}}
    file = tmp_path / "old.json"
    file.write_text(json.dumps({"cases": [{"name": "a", "ratios": [ratio]}]}))
    with pytest.raises(rounds.RunFailed, match="measure with this one first"):
        against.read(file)


@pytest.mark.usefixtures("modules")
def test_a_bound_of_rates_is_turned_round_for_the_work_that_they_take() -> None:
    import cases
    import rounds

    ratios = (rounds.Ratio("a", "b", wanted=rounds.Wanted(least=0.5)), rounds.Ratio("b", "a"))
    turned = cases.in_work(rounds.Case("case", "", (), ratios)).ratios
    assert turned == (
        rounds.Ratio("a", "b", rounds.CPU, rounds.Wanted(most=2.0)),
        rounds.Ratio("b", "a", rounds.CPU),
    )
    assert turned[0].wanted.met(1.9)
    assert not turned[0].wanted.met(2.1)
