"""Claims: arms are recipes that load, a row comes from a finished run once, what is concluded comes from rows alone."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tomllib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import _arms
import _claim
import everything
import numpy as np
import pytest
import table
from _arms import Arm, Run, RunFailed, run_of, settings_of
from _claim import Claim
from _ended import BY_NUMBERS, ToldEnds, all_ended, ended
from _figures import Told, ToldChange, headline, interval, of_seeds, points, stated
from _outcomes import at, gain, gains, greedy, mean, pass1, turns
from _rows import Row, Rows, append, read_all
from _verdict import NoneEnded, Verdict, Within, above, below, not_above, not_below, verdict
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.figure import Figure
from tests.benchmarks.figures import FIGURES

from etude.journal import Journal, RunPaths
from etude.lineage import LineageState
from etude.lineage.stages import stages_of
from etude.lineage.state import StageRecord
from etude.model import PoisonedWeights
from etude.recipe import load_recipe
from etude.rl import length_cost
from etude.rollout import across_seeds
from etude.training import NonFiniteError

CLAIMS = everything.claims()
by_name = pytest.mark.parametrize("claim", CLAIMS, ids=lambda claim: claim.name)


def row(claim: str, arm: str, seed: int, figures: dict | None = None, recipe: dict | None = None) -> Row:
    return Row(claim, arm, seed, recipe or {}, figures or {}, "c" * 16)


def rows_of(claim: Claim, seeds: tuple[int, ...] = (1, 2, 3)) -> list[Row]:
    """As the recipes that there are would make them."""
    rows: list[Row] = []
    for arm in claim.arms:
        for seed in seeds:
            run = run_of(arm, seed, Rows(rows, claim.name))
            rows.append(row(claim.name, arm.name, seed, FIGURES[claim.name](arm.name, seed), settings_of(run.recipe)))
    return rows


@by_name
def test_every_arm_is_a_recipe_that_loads_and_a_line_that_reaches_its_end(claim) -> None:
    rows = Rows(rows_of(claim), claim.name)
    for arm in claim.arms:
        run = run_of(arm, 2, rows)
        assert run.recipe.seed == 2
        assert claim.until in [stage.name for stage in stages_of(run.recipe)]
    assert len({run_of(arm, 1, rows).digest for arm in claim.arms}) == len({arm.recipe for arm in claim.arms})
    used = {arm.recipe for claim in CLAIMS for arm in claim.arms}
    recipes = {file.name: tomllib.loads(file.read_text()) for file in _arms.RECIPES.glob("*.toml")}
    assert recipes.keys() == used | {"base.toml"}, "every recipe is an arm"
    assert recipes.keys() >= {recipes[name]["base"] for name in used}, "and says how it differs from the whole one"


def test_budgets_of_tokens_are_what_the_claims_say() -> None:
    def tokens(name: str) -> tuple[int, int]:
        recipe = load_recipe(_arms.RECIPES / f"{name}.toml")
        return tuple(stage.steps * stage.batch * stage.length for stage in (recipe.pretrain, recipe.long))

    assert sum(tokens("no-long-phase")) == sum(tokens("rl")), "without the long phase as many are read"
    assert tokens("no-long-phase")[1] == 0
    once, twice = (load_recipe(_arms.RECIPES / f"{name}.toml").sft for name in ("rl", "sft-twice"))
    assert (twice.steps, twice.demonstrations) == (2 * once.steps, once.demonstrations)
    least, middle, most = (tokens(name)[0] for name in ("budget-quarter", "budget-half", "rl"))
    assert middle / least == most / middle, "evenly spaced by their logarithms"


@by_name
def test_rows_are_concluded_told_and_drawn_however_few_there_are(claim, tmp_path, monkeypatch) -> None:
    every, nothing = rows_of(claim), Rows([], claim.name)
    found = claim.conclude(nothing)
    json.dumps(found)
    assert headline(claim.headline, found) == ""
    assert claim.verdict(nothing, found) is _claim.draw(claim, nothing, Path()) is None
    found = claim.conclude(rows := Rows(every, claim.name))
    json.dumps(found)
    assert headline(claim.headline, found)
    assert claim.verdict(rows, found) not in (None, Verdict.TOO_FEW)
    rendered = Figure.savefig

    def coarsely(figure: Figure, file: Path, dpi: int) -> None:
        if claim is not CLAIMS[0]:  # To lay one out takes as long as to render it.
            figure.set_layout_engine("none")
        rendered(figure, file, dpi=dpi / 4)

    monkeypatch.setattr(Figure, "savefig", coarsely)
    picture = _claim.draw(claim, rows, tmp_path)
    assert picture is not None
    assert picture.read_bytes()[:4] == b"\x89PNG"
    # Pictures of a part of the rows are made and not rendered: that takes seconds.
    monkeypatch.setattr(Figure, "savefig", lambda figure, file, dpi: None)
    of_two, of_one = rows_of(claim, (1, 3)), rows_of(claim, (2,))
    for kept in (every[:1], every[:4], every[-1:], of_two, of_one):
        rows = Rows(kept, claim.name)
        found = claim.conclude(rows)
        headline(claim.headline, found)
        said = claim.verdict(rows, found)
        assert kept not in (of_two, of_one) or said is Verdict.TOO_FEW
        _claim.draw(claim, rows, tmp_path)


def test_the_spine_has_what_is_promised_and_tells_what_got_worse_with_what_got_better() -> None:
    claim = CLAIMS[0]
    found = claim.conclude(Rows(rows_of(claim), "spine"))
    promised = """tasks k sft_pass1 sft_greedy rl_pass1 rl_greedy pass1_gain pass1_gain_ci greedy_gain_ci
    gain_over_sft_continued_ci pass8_gain_ci cells first_edit_before first_edit_after truncated_before truncated_after
    minutes_per_seed sft_valid_calls sft_held_out false_claims_before false_claims_after
    pass1_gain_student_ci gain_over_sft_continued_student_ci"""
    assert found.keys() >= set(promised.split())
    assert found["pass1_gain"] == pytest.approx(found["rl_pass1"] - found["sft_pass1"], abs=2e-4)
    for name in ("pass1_gain", "pass8_gain", "gain_over_sft_continued", "pass8_gain_over_sft_continued"):
        own = found[f"{name}_by_seed"]
        assert found[name] == pytest.approx(np.mean(own), abs=2e-4)
        student = across_seeds(own)
        assert found[f"{name}_student_ci"] == pytest.approx([student.low, student.high], abs=5e-4)
    assert found["pass8_gain_over_sft_continued"] < found["pass8_gain"], "of the other arm's best of eight"
    assert (found["false_claims_before"], found["false_claims_after"]) == (0.2, 0.05)
    assert found["one_edit_before"] < found["one_edit_after"], "of the seeds that were also run with one edit"
    assert set(found["cells"]) == {"both_seen", "both_unseen"}
    said = headline(claim.headline, found)
    assert f"({', '.join(f'{100 * gain:+.1f}' for gain in found['pass1_gain_by_seed'])})" in said.partition(";")[0]
    assert "tokens of a solved rollout 50 \u2192 80; spent for each, failures included, 200 \u2192 120" in said
    assert said.endswith("claim success and have failed 20.0 \u2192 5.0 %")
    old = [replace(row, figures={**row.figures}) for row in rows_of(claim)]
    for one in old[1:]:
        del one.figures["valid_calls"], one.figures["sft_held_out"]
    found = claim.conclude(Rows(old, "spine"))
    assert found["sft_valid_calls"] == 0.98, "rows older than these keys are read: of the one that has them"
    assert found["sft_held_out"] == [[[40, 0.11], [80, 0.09], [120, 0.085]], [], []]


def test_gains_pair_tasks_by_name_within_a_seed() -> None:
    def task(passed: int, one: int | None) -> dict:
        return {"samples": 4, "passed": passed, "greedy": one, "turns": 1.0, "cell": ""}

    before = {"a": task(1, 0), "b": task(2, 1), "gone": task(4, 1)}
    after = {"b": task(4, None), "a": task(2, 1), "new": task(0, 0)}
    assert gain([(before, after)], pass1).mean == pytest.approx((0.25 + 0.5) / 2)
    assert gain([(before, after)], greedy).mean == 1.0, "a task without a greedy sample says nothing"
    assert gain([(before, after)], at(4)).mean == 0.0
    assert gain([(before, after)], at(5)) is None
    other = {"a": task(3, 1)}
    assert gain([(before, after), (before, other)], pass1).mean == pytest.approx((0.375 + 0.5) / 2), "seeds weigh alike"


def test_over_tasks_one_seed_has_no_interval_either() -> None:
    before, after = (FIGURES["spine"]("rl", 1)[when] for when in ("before", "after"))
    for nothing in ([], [({}, {})]):
        one = gains("gain", [(before, after), *nothing], pass1)
        assert one["gain"] == one["gain_by_seed"][0] > 0
        assert one["gain_ci"] is one["gain_student_ci"] is None, "its tasks would give one, of this seed alone"
        assert headline((points("gain", "{} points"),), one).endswith("points")
    assert interval(mean([before], pass1)) is None
    assert interval(mean([before, after], pass1))
    assert gains("gain", [], pass1) == {"gain": None, "gain_ci": None, "gain_by_seed": [], "gain_student_ci": None}


def claim_of(name: str) -> Claim:
    return next(claim for claim in CLAIMS if claim.name == name)


def concluded(name: str, figures: Callable[[str, int], dict], seeds: tuple[int, ...] = (1, 2, 3)) -> dict[str, Any]:
    """What a claim concludes, and its verdict."""
    claim = claim_of(name)
    rows = [replace(r, figures=figures(r.arm, r.seed)) for r in rows_of(claim, seeds)]
    kept = Rows(rows, name)
    found = claim.conclude(kept)
    return {**found, "verdict": claim.verdict(kept, found)}


ends = st.tuples(st.floats(-2, 2), st.floats(-2, 2)).map(sorted)


@given(ends, st.sampled_from([0.0, 1.0]))
def test_a_part_is_shown_by_a_whole_interval_and_by_nothing_less(interval, none) -> None:
    low, high = interval
    found = {"x": (low + high) / 2, "x_ci": interval}
    said = verdict((above("x", none),), found, 3)
    assert (said == Verdict.SHOWN) == (0 < low - none < high - none)
    assert (said == Verdict.OPPOSITE) == (low - none < high - none < 0)
    mirrored = {"x": -found["x"], "x_ci": [-high, -low]}
    assert verdict((below("x", -none),), mirrored, 3) == said
    assert (verdict((not_above("x", none),), found, 3) == Verdict.OPPOSITE) == (said == Verdict.SHOWN)
    assert (verdict((not_below("x", none),), found, 3) == Verdict.OPPOSITE) == (said == Verdict.OPPOSITE)


def test_where_seeds_have_gains_of_their_own_the_wider_interval_decides() -> None:
    found = {"x": 2.0, "x_ci": [1.0, 3.0], "x_student_ci": [-0.5, 4.5]}
    assert verdict((above("x"),), found, 3) == Verdict.NOT_SHOWN
    assert verdict((above("x"),), {**found, "x_student_ci": [0.5, 3.5]}, 3) == Verdict.SHOWN
    assert verdict((above("x"),), {**found, "x_student_ci": None}, 3) == Verdict.SHOWN


def test_a_claim_is_as_good_as_the_worst_of_its_parts() -> None:
    found = {"up": 2.0, "up_ci": [1, 3], "flat": 0.0, "flat_ci": [-1, 1], "new": 1.0, "new_ci": None, "no": None}
    found["no_ci"] = None

    def said(*parts: Callable, seeds: int = 3, **more: object) -> str | None:
        return verdict(parts, {**found, **more}, seeds)

    assert said(above("up"), above("flat")) == "not shown"
    assert said(above("up"), above("flat"), below("up")) == "the opposite"
    assert said(above("up"), not_below("flat")) == "shown; no loss shown", "flat is not shown to be no worse"
    assert said(above("up"), not_above("up")) == "the opposite"
    assert said(not_below("flat")) == "no loss shown"
    assert said(not_above("flat")) == "no gain shown"
    assert said(above("up"), above("new")) == "too few seeds"
    assert said(above("up"), seeds=2) == said(below("up"), seeds=2) == "too few seeds"
    assert said(above("up"), above("no")) is None
    assert said() is None
    for noise, told in ((1.0, "shown"), (0.9, "not shown"), (None, "too few seeds")):
        assert said(Within("flat", "noise"), noise=noise) == told
    assert said(Within("up", "noise"), noise=0.9) == "the opposite"
    none_ended, low = NoneEnded("ended", ("low",)), [{"arm": "low"}]
    for ends, told in ((None, None), ([], "shown"), ([{"arm": "other"}], "shown")):
        assert said(none_ended, ended=ends) == told
    assert said(none_ended, above("up"), ended=low) == "the opposite"
    assert said(none_ended, above("no"), ended=low, seeds=1) == "the opposite", "though nothing else is known of it"


def test_a_length_cost_saves_nothing_if_success_falls_or_turns_do_not() -> None:
    def of_one(lost: int = 0, concave: tuple[float, float] = (1.0, 0.5)) -> dict[str, Any]:
        """`concave`: the turns that it saves on easy tasks and on hard ones."""
        saved = {"concave": concave, "none": (0.0, 0.0), "linear": (0.5, 1.0)}

        def task(n: int, less: tuple[float, float], passed: int) -> dict:
            easy = n % 2
            turns = 6.0 + n % 4 - (less[0] if easy else less[1]) * (0.9 + 0.1 * (n % 3))
            return {"samples": 16, "greedy": 1, "cell": "", "passed": 14 - passed if easy else 2, "turns": turns}

        def figures(arm: str, seed: int) -> dict:
            passed = lost + seed % 2 if lost and arm == "concave" else 0
            before = {f"t{n}": task(n, (0.0, 0.0), 0) for n in range(24)}
            return {"before": before, "after": {f"t{n}": task(n, saved[arm], passed) for n in range(24)}}

        return concluded("length_cost", figures)

    found = of_one()
    assert (found["verdict"], found["turns_concave_minus_none_easy"]) == ("shown; no loss shown", -1.0)
    assert found["turns_concave_minus_linear_hard"] == 0.5
    said = headline(claim_of("length_cost").headline, found)
    assert "against a linear one -0.50 turns per solved easy task" in said
    assert said.count("pass@1 +0.0 points") == 4, "beside no cost and the linear one, on easy and hard tasks"
    assert of_one(lost=2)["verdict"] == "the opposite", "fewer turns, fewer solved"
    assert of_one(concave=(0.0, 0.5))["verdict"] == "not shown"
    assert of_one(concave=(-1.0, 0.5))["verdict"] == "the opposite"
    assert of_one(concave=(1.0, 1.0))["verdict"] == "not shown", "hard tasks are granted no more than by a linear cost"


def test_budgets_need_the_loss_to_fall_and_the_reward_to_rise() -> None:
    made = FIGURES["budgets"]
    found = concluded("budgets", made)
    assert found["verdict"] == "shown"
    assert (found["steps"], len(found["runs"])) == ([450, 900, 1800], 9)
    said = headline(claim_of("budgets").headline, found)
    assert said.startswith(
        "steps 450, 900, 1,800; loss 3.00, 2.70, 2.40; reward 0.32, 0.41, 0.50; per doubling loss -0.30"
    )
    flat = concluded("budgets", lambda arm, seed: made(arm, seed) | {"reward": 0.3 + 0.01 * seed})
    assert flat["verdict"] == "not shown"
    worse = concluded("budgets", lambda arm, seed: made(arm, seed) | {"loss": 6 - made(arm, seed)["loss"]})
    assert worse["verdict"] == "the opposite"
    two = Rows([row("budgets", arm, 1, made(arm, 1)) for arm in ("quarter", "whole")], "budgets")
    assert claim_of("budgets").conclude(two)["steps"] is None, "of a seed that has all three"


def test_drafts_are_decided_alone_and_told_together() -> None:
    def made(with_64: float) -> Callable[[str, int], dict]:
        rates = {"1": 12.0, "8": 11.0, "64": with_64}
        return lambda arm, seed: {
            **FIGURES["mtp"](arm, seed),
            "tokens_per_second": {n: {"with": rate + 0.1 * (seed - 2), "without": 10.0} for n, rate in rates.items()},
        }

    found = concluded("mtp", made(8.0))
    assert (found["verdict"], found["ratio_64"]) == ("shown", 0.8)
    said = headline(claim_of("mtp").headline, found)
    assert "64 at a time: 0.80 times" in said
    assert said.endswith("87 % of drafts accepted"), "the mean of .85, .88 and .88"
    assert found["accepted_64_by_seed"] == [0.85, 0.88, 0.88]


def test_a_plateau_is_that_no_gain_was_shown() -> None:
    assert concluded("plateau", FIGURES["plateau"])["verdict"] == "no gain shown"

    def gained(arm: str, seed: int) -> dict:
        figures = FIGURES["plateau"](arm, seed)
        return figures | {"after": FIGURES["spine"]("rl", seed)["after" if arm == "twice" else "before"]}

    found = concluded("plateau", gained)
    assert found["gain_after_ci"][0] > 0
    assert found["verdict"] == "the opposite"
    assert "held-out loss -0.0100" in headline(claim_of("plateau").headline, found)


def test_a_trust_region_by_difference_that_learns_less_is_the_opposite() -> None:
    made = FIGURES["trust"]
    assert concluded("trust", made)["verdict"] == "no loss shown"

    def slower(arm: str, seed: int) -> dict:
        figures = made(arm, seed)
        if arm == "ratio":
            return figures
        curves = figures["curves"] | {"reward": [[1, 0.0], [2, 0.5]]}
        return figures | {"curves": curves, "dev": FIGURES["spine"]("rl", seed)["before"]}

    found = concluded("trust", slower)
    assert (found["verdict"], found["reward_gain"]) == ("the opposite", -0.25)


def test_swaps_count_seconds_to_the_reward_that_both_reach_and_on_the_way_there() -> None:
    def of_two(one: dict, other: dict) -> dict:
        rows = [row("swaps", arm, seed, f) for arm, f in (("in flight", one), ("waiting", other)) for seed in (1, 2)]
        return claim_of("swaps").conclude(Rows(rows, "swaps"))

    seconds = [float(s) for s in range(1, 21)]
    quick = {"seconds": seconds[:10], "reward": [s / 10 for s in seconds[:10]], "staleness": 1.0}
    found = of_two(quick, {**quick, "seconds": [2 * s for s in quick["seconds"]]})
    assert (found["seconds_in_flight"], found["seconds_waiting"], found["ratio"]) == ([10.0] * 2, [20.0] * 2, 2.0)
    assert (found["ratio_on_the_way"], found["ratio_of_all_steps"]) == (2.0, 2.0)
    steady = {"seconds": seconds, "reward": [min(0.1 * s, 1.0) for s in seconds], "staleness": 1.0}
    # As quick as the other, but a little less at the end: the goal is met when noise lets it be.
    found = of_two(steady, {**steady, "reward": [*steady["reward"][:12], *[0.9] * 6, 0.95, 1.0]})
    assert found["ratio_on_the_way"] == pytest.approx(1.0, abs=0.02)
    assert found["ratio_of_all_steps"] == 1.0


def test_the_linear_cost_is_as_dear_at_the_last_turn_as_the_concave_one() -> None:
    claim = claim_of("length_cost")
    costs = {}
    for arm in claim.arms:
        recipe = run_of(arm, 1, Rows([], claim.name)).recipe
        length = recipe.rl.reward.length
        costs[arm.name] = length.scale * length_cost(float(recipe.harness.max_turns), k=length.k, q=length.q)
    assert costs["none"] == 0.0
    assert costs["linear"] == pytest.approx(costs["concave"], rel=0.02)


def test_the_newest_row_of_an_arm_and_seed_counts_and_a_torn_one_does_not(tmp_path) -> None:
    file = tmp_path / "docs" / "rows.jsonl"
    append(row("x", "a", 1, {"n": 1}), file)
    with file.open("a") as out:
        out.write('{"claim": "x", "arm": "a", "se')
    append(row("x", "a", 1, {"n": 2}), file)
    append(row("y", "a", 1, {"n": 3}), file)
    assert len(read_all(file)) == 3
    rows = Rows(read_all(file), "x")
    assert rows.of("a") == {1: {"n": 2}}
    assert (rows.arms, rows.seeds) == (["a"], [1])


class Stub:
    """Runs that take no time: each leaves a lineage, and may be killed before it is done."""

    def __init__(self, monkeypatch, tmp_path: Path) -> None:
        self.went: list[tuple[str, int]] = []
        self.kill_at = -1
        self.rows, self.runs = tmp_path / "docs/rows.jsonl", tmp_path / "runs"
        monkeypatch.setattr(Run, "go", lambda run, runs, until: self.go(run, runs))
        self.claim = Claim(
            name="stub",
            says="stubs run",
            arms=(Arm("one", "rl.toml"), Arm("two", "rl.toml", self.after)),
            until="sft",
            measure=lambda paths, arm: {"n": len(self.went), "run": paths.root.name},
            conclude=lambda rows: {"n": [f["n"] for f in rows.of("one").values()]},
            decided=(),
            headline=(),
            draw=lambda rows: Figure(),
        )

    def after(self, rows: Rows, seed: int) -> list[str] | None:
        found = rows.get("one", seed)
        return None if found is None else [f"rl.steps={found.figures['n']}"]

    def go(self, run: Run, runs: Path) -> None:
        if len(self.went) == self.kill_at:
            self.kill_at = -1
            raise KeyboardInterrupt
        self.went.append((run.arm.name, run.seed))
        paths = RunPaths(runs / run.name)
        paths.root.mkdir(parents=True, exist_ok=True)
        made = [("tasks", "old"), ("sft", "new"), ("rl", "newer")]
        records = {name: StageRecord("r", code, started=0.0, done=name != "rl") for name, code in made}
        LineageState(records).save(paths.lineage)

    def main(self, *more: str) -> None:
        places = ["--rows", str(self.rows), "--runs", str(self.runs)]
        _claim.main(self.claim, arguments=["--seeds", "1,2", *places, *more])

    def fails(self, code: int = 1) -> None:
        with pytest.raises(SystemExit) as ended:
            self.main()
        assert ended.value.code == code

    def made(self) -> list[tuple[str, int]]:
        return [(row.arm, row.seed) for row in read_all(self.rows)]


@pytest.fixture
def stub(monkeypatch, tmp_path) -> Stub:
    return Stub(monkeypatch, tmp_path)


def told(capsys) -> dict[str, Any]:
    """What the command printed last."""
    return json.loads(capsys.readouterr().out.splitlines()[-1])


ALL = [("one", 1), ("two", 1), ("one", 2), ("two", 2)]


@pytest.mark.parametrize("kill_at", [0, 2])
def test_a_command_that_was_killed_goes_on_with_what_has_no_row(kill_at, stub, capsys) -> None:
    stub.kill_at = kill_at
    stub.fails(130)
    assert stub.made() == ALL[:kill_at]
    stub.main()
    assert stub.went == ALL
    line = told(capsys)
    assert (line["bench"], line["n"], line["seeds"], line["arms"]) == ("claims/stub", [1, 3], [1, 2], ["one", "two"])
    found = read_all(stub.rows)
    assert [(r.arm, r.seed, r.code, r.parents_code) for r in found] == [(*made, "new", ["old"]) for made in ALL]
    assert found[0].recipe != found[1].recipe, "the second arm's recipe has what the first one's row says"
    stub.main()
    assert stub.made() == ALL
    stub.main("--set", "rl.group=4")
    assert stub.made() == 2 * ALL, "another recipe is another row"
    assert told(capsys)["n"] == [5, 7]
    stub.main()
    assert told(capsys)["n"] == [1, 3], "the first rows hold again"
    stub.main("--again", "--set", "rl.group=4")
    assert stub.made() == 3 * ALL


def test_an_arm_that_fails_takes_no_other_with_it(stub, capsys) -> None:
    def fail_once(run: Run, runs: Path) -> None:
        if (run.arm.name, run.seed) == ("one", 1):
            raise RunFailed("it ended with exit code 2")
        Stub.go(stub, run, runs)

    stub.go = fail_once
    stub.fails()
    assert stub.went == [("one", 2), ("two", 2)], "arm two of seed 1 waits for the row that is missing"
    printed = capsys.readouterr()
    line = json.loads(printed.out.splitlines()[-1])
    assert (line["seeds"], line["failed"]) == ([2], ["one, seed 1", "two, seed 1"])
    assert "failed: it ended with exit code 2" in printed.err
    del stub.go
    stub.main()
    assert stub.went == [("one", 2), ("two", 2), ("one", 1), ("two", 1)]
    assert "failed" not in told(capsys)


def an_end(stub: Stub, error: str) -> None:
    """Arm one of seed 1 ends in RL, in which the others come to their end."""

    def go(run: Run, runs: Path) -> None:
        Stub.go(stub, run, runs)
        if (run.arm.name, run.seed) != ("one", 1):
            return
        paths = run.folder(runs)
        state = LineageState.load(paths.lineage)
        state.stages["rl"].done = False
        state.save(paths.lineage)
        paths.metrics("rl").parent.mkdir(parents=True)
        paths.metrics("rl").write_text('{"step": 6, "reward": 0.5}\n{"step": 7, "reward": 0.1}\n')
        journal = Journal(paths.journal, "driver")
        journal.event("stage_started", stage="rl")
        journal.event("stage_interrupted", stage="rl", reason="w is not finite\nat line 3", error=error)
        raise RunFailed("it ended with exit code 1")

    stub.go = go
    stub.claim = replace(
        stub.claim,
        until="rl",
        measure=lambda paths, arm: {"n": 1, "ended": ended(paths, "rl")},
        conclude=lambda rows: {"ended": all_ended(rows)},
        headline=(ToldEnds("ended", "no run came apart"),),
        about_numbers=True,
    )


def test_a_run_that_its_numbers_ended_has_a_row_and_is_told(stub, capsys) -> None:
    an_end(stub, min(BY_NUMBERS))
    stub.main()
    first, *others = read_all(stub.rows)
    assert (first.arm, first.seed, first.figures["ended"]) == ("one", 1, {"step": 7, "why": "w is not finite"})
    assert len(others) == 3
    assert not any(r.figures["ended"] for r in others)
    printed = capsys.readouterr()
    line = json.loads(printed.out.splitlines()[-1])
    assert line["ended"] == [{"arm": "one", "seed": 1, "step": 7, "why": "w is not finite"}]
    assert "failed" not in line
    assert "ended after step 7: w is not finite" in printed.err
    assert headline(stub.claim.headline, line) == "one ended after step 7 (seed 1: w is not finite)"
    assert headline(stub.claim.headline, {"ended": []}) == "no run came apart"
    stub.main()
    assert len(read_all(stub.rows)) == 4, "it is not tried again"


@pytest.mark.parametrize(
    ("error", "about_numbers"), [("etude.cluster.contract.ServiceFailed", True), (min(BY_NUMBERS), False)]
)
def test_a_run_that_something_else_ended_or_that_is_not_about_numbers_has_failed(
    error, about_numbers, stub, capsys
) -> None:
    an_end(stub, error)
    stub.claim = replace(stub.claim, about_numbers=about_numbers)
    stub.fails()
    assert ("one", 1) not in stub.made()
    assert "one, seed 1" in told(capsys)["failed"]


def test_errors_of_numbers_are_errors_that_there_are() -> None:
    assert {f"{kind.__module__}.{kind.__qualname__}" for kind in (NonFiniteError, PoisonedWeights)} == BY_NUMBERS


def test_low_precision_is_compared_at_equal_weights_and_tokens() -> None:
    claim = claim_of("precision_rl")
    rows = rows_of(claim)
    for r in rows:  # a policy that runs away from its samples says nothing of numerics
        r.figures["curves"]["mismatch_p99"] = [[step, 9.0] for step, _ in r.figures["curves"]["mismatch_p99"]]
    found = claim.conclude(Rows(rows, claim.name))
    assert found["p99_off_nvfp4"] == pytest.approx(0.04)
    assert found["p99_off_of_nvfp4"] == pytest.approx(0.02)
    assert found["p99_off_of_tensor_over_token"] == pytest.approx(0.08)
    assert found["p99_filter_of_nvfp4_tensor"] == pytest.approx(0.05)
    assert found["async_p99_of_nvfp4"] == 0.0
    assert found["steps_nvfp4_tensor"] == [100, 40, 100]
    assert len(found["drop_nvfp4_ci"]) == len(found["grad_norm_nvfp4_ci"]) == len(found["drop_of_nvfp4_ci"]) == 2
    said = headline(claim.headline, found)
    assert said.startswith("nvfp4_tensor ended after step 40 (seed 2: the gradient is not finite); same weights and")
    assert "p99 of trainer less engine: bf16 0.02 nats" in said
    assert "NVFP4 per token 0.04" in said


def test_one_leaking_position_of_one_seed_is_the_opposite_of_none() -> None:
    claim = claim_of("precision_leak")
    rows = rows_of(claim)
    kept = Rows(rows, claim.name)
    found = claim.conclude(kept)
    assert (claim.verdict(kept, found), found["share_of_others"]) == (Verdict.SHOWN, 0.0)
    assert "in all others, bits differ at 0 % of positions" in headline(claim.headline, found)
    last = rows[-1].figures
    leaking = replace(rows[-1], figures={**last, "mxfp8": {**last["mxfp8"], "batch_share": 0.001}})
    kept = Rows([*rows[:-1], leaking], claim.name)
    found = claim.conclude(kept)
    assert claim.verdict(kept, found) == Verdict.OPPOSITE
    assert "bits differ at 0.1 % of positions" in headline(claim.headline, found)


def test_a_run_that_ended_in_its_first_step_has_neither_curve_nor_probe(tmp_path) -> None:
    claim = claim_of("precision_rl")
    rows = rows_of(claim)
    nothing = {"curves": {name: [] for name in rows[0].figures["curves"]}, "probes": [], "dev": None, "changed": None}
    nothing |= {"seconds": 9.0, "ended": {"step": 0, "why": "nan"}}
    rows = [replace(r, figures=nothing) if r.arm.startswith("nvfp4") else r for r in rows]
    found = claim.conclude(Rows(rows, claim.name))
    assert found["p99_off_of_nvfp4"] is found["dev_gain_of_nvfp4"] is None
    for seeds in ((1,), (1, 2), (1, 2, 3)):
        kept = Rows([row for row in rows if row.seed in seeds], claim.name)
        assert claim.verdict(kept, claim.conclude(kept)) == Verdict.OPPOSITE
    assert "nvfp4 ended after step 0 (seed 1: nan)" in headline(claim.headline, found)
    assert _claim.draw(claim, Rows(rows, claim.name), tmp_path)


def test_a_measure_that_fails_is_told_whole_and_leaves_no_row(stub, capsys) -> None:
    def measure(paths: RunPaths, arm: Arm) -> dict:
        raise KeyError("late_loss")

    stub.claim = replace(stub.claim, measure=measure)
    stub.fails()
    assert stub.made() == []
    printed = capsys.readouterr()
    assert "KeyError: 'late_loss'" in printed.err
    assert json.loads(printed.out.splitlines()[-1])["arms"] == []


def test_what_is_only_tried_leaves_the_rows_of_the_readme_alone(stub, monkeypatch) -> None:
    monkeypatch.setattr(_claim, "ROWS", stub.rows)
    _claim.main(stub.claim, arguments=["--seeds", "1", "--runs", str(stub.runs), "--set", "rl.group=4"])
    assert not stub.rows.exists()
    assert len(read_all(stub.runs / "rows.jsonl")) == 2


def test_the_first_seed_of_all_claims_comes_first(stub) -> None:
    other = replace(stub.claim, name="other", arms=(Arm("three", "rl.toml"),))
    _claim.main(stub.claim, other, arguments=["--seeds", "1,2", "--rows", str(stub.rows), "--runs", str(stub.runs)])
    assert stub.went == [(name, seed) for seed in (1, 2) for name in ("one", "two", "three")]


def test_checkpoints_of_finished_stages_are_dropped_once_there_is_a_row(stub) -> None:
    run = run_of(stub.claim.arms[0], 1, Rows([], "stub"))
    paths = run.folder(stub.runs)
    for stage in ("sft", "rl"):
        (paths.checkpoints(stage) / "step-00000001").mkdir(parents=True)
    stub.main()
    assert not paths.checkpoints("sft").exists()
    assert paths.checkpoints("rl").exists(), "a stage that is not done goes on from it"


@pytest.mark.parametrize("wrong", [["--set", "rl.nonsense=1"], ["--set", "rl.steps=-1"], ["--seeds", "one"]])
def test_a_mistake_is_one_line(wrong, stub, capsys) -> None:
    with pytest.raises(SystemExit) as ended:
        stub.main(*wrong)
    assert ended.value.code == 2
    assert "Traceback" not in capsys.readouterr().err


IMPATIENT = """
import signal, subprocess, sys
sys.path[:0] = [{claims!r}, {benchmarks!r}]
import _arms
signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored where whoever runs the tests is in the background
child = "import signal, sys, time; signal.signal(signal.SIGTERM, lambda *_: (open({file!r}, 'w').write('in order'), "
child += "sys.exit(130))); print('up', file=sys.stderr, flush=True); time.sleep(300)"
_arms._wait_for([sys.executable, "-c", child])
"""


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL])
def test_a_command_that_is_stopped_or_killed_has_its_run_end_in_order(how, tmp_path) -> None:
    file = tmp_path / "ended"
    code = IMPATIENT.format(
        claims=str(_arms.ROOT / "benchmarks/claims"), benchmarks=str(_arms.ROOT / "benchmarks"), file=str(file)
    )
    command = subprocess.Popen([sys.executable, "-c", code], stderr=subprocess.PIPE, text=True, start_new_session=True)
    with command:
        assert command.stderr.readline() == "up\n"
        os.kill(command.pid, how)
        command.stderr.read()  # until its child has gone, too
    assert file.read_text() == "in order"


def test_one_seed_has_figures_without_an_interval() -> None:
    assert stated("ratio", of_seeds([])) == {"ratio": None, "ratio_ci": None}
    assert stated("ratio", of_seeds([1.25])) == {"ratio": 1.25, "ratio_ci": None}
    three = stated("ratio", of_seeds([1.0, 1.25, 1.5]))
    assert three["ratio"] == 1.25
    assert three["ratio_ci"][0] < 1.0 < 1.5 < three["ratio_ci"][1]


def test_figures_are_told_with_their_intervals_or_not_at_all() -> None:
    parts = (points("gain", "pass@1 {} points"), Told("ratio", "{} times as long"), Told("plain", "{} runs", ".0f"))
    found = {"gain": 0.123, "gain_ci": [-0.01, 0.2], "ratio": None, "ratio_ci": None, "plain": 9.0}
    assert headline(parts, found) == "pass@1 +12.3 points [-1.0, +20.0]; 9 runs"
    assert headline(parts, {**found, "gain_by_seed": [0.1, 0.146]}) == (
        "pass@1 +12.3 points [-1.0, +20.0] (+10.0, +14.6); 9 runs"
    )
    assert headline(parts, {**found, "gain_ci": None}) == "pass@1 +12.3 points; 9 runs"
    change = ToldChange("before", "{} %", ".0f", 100.0, "after")
    assert headline((change,), {"before": 0.25, "after": 0.5}) == "25 \u2192 50 %"
    assert headline((change,), {"before": None, "after": None}) == ""
    assert headline(parts, {**found, "gain": None}) == "", "without what it stands for, a claim says nothing"


def test_tasks_need_summaries_that_the_whole_window_solves_in_more_than_the_small_one_holds() -> None:
    def evaluation(long: int, short: int, hard: int) -> dict:
        task = {"samples": 4, "greedy": 0, "turns": 1.0, "cell": ""}
        return {name: {**task, "passed": n} for name, n in (("long", long), ("short", short), ("hard", hard))}

    figures = {
        "off": {"before": {}, "after": evaluation(1, 4, 0)},
        "on": {"before": {}, "after": evaluation(3, 3, 4)},
        "whole window": {"before": {}, "after": evaluation(4, 4, 0), "tokens": {"long": 241.0, "short": 240.0}},
    }
    claim = claim_of("summaries")
    recipe = {"engine": {"context": 240}}  # of the row, whatever the file says by now
    rows = [row("summaries", arm, 1, found, recipe) for arm, found in figures.items()]
    found = claim.conclude(Rows(rows, "summaries"))
    assert (found["tasks_needed"], found["gain_needed"], found["gain_others"]) == (1, 0.5, -0.25)


def test_turns_are_those_of_solved_rollouts() -> None:
    def task(passed: int, of: float) -> dict:
        return {"samples": 4, "passed": passed, "greedy": 0, "turns": of, "cell": ""}

    before, after = {"a": task(2, 6.0), "never": task(0, 0.0)}, {"a": task(4, 4.0), "never": task(1, 3.0)}
    assert gain([(before, after)], turns).mean == -2.0, "a task that one side never solves compares nothing"


def test_the_table_says_what_has_not_been_run(tmp_path) -> None:
    page = tmp_path / "README.md"
    page.write_text("# Hello\n<!-- claims -->\nold\n<!-- end of claims -->\nbye\n")
    text = table.table([], tmp_path, page)
    assert text.count(table.NOT_YET) == len(CLAIMS)
    spine = CLAIMS[0]
    both = rows_of(spine)
    assert "points" in table.table(both, tmp_path, page).splitlines()[2]
    alone = table.table([r for r in both if r.arm == "rl"], tmp_path, page).splitlines()[2]
    assert f"{table.NOT_YET}: continued" in alone
    uneven = [r for r in both if (r.arm, r.seed) != ("continued", 2)]
    assert "| 1, 3 |" in table.table(uneven, tmp_path, page).splitlines()[2]
    table.put_into(page, text)
    assert page.read_text() == f"# Hello\n<!-- claims -->\n{text}\n<!-- end of claims -->\nbye\n"
    table.put_into(page, text)
    assert page.read_text().count("| claim |") == 1
    old = [replace(row, recipe=row.recipe | {"seed": 9}) for row in both[:2]]
    # The continued arm takes its seconds from the other one, so it stands on an earlier recipe too.
    assert "4 of 6 rows by an earlier recipe" in table.table([*old, *both[2:]], tmp_path, page).splitlines()[2]
    assert "earlier" not in table.table(both, tmp_path, page)


def test_the_table_says_whether_it_is_shown_and_by_how_many_versions_of_the_code(tmp_path) -> None:
    page = tmp_path / "README.md"
    rows = rows_of(CLAIMS[0])

    def line(of: list[Row]) -> str:
        return table.table(of, tmp_path, page).splitlines()[2]

    assert line(rows).startswith(f"| {CLAIMS[0].says} | shown | pass@1 ")
    assert line([one for one in rows if one.seed == 2]).startswith(f"| {CLAIMS[0].says} | too few seeds | pass@1 ")
    assert line([]).startswith(f"| {CLAIMS[0].says} |  | {table.NOT_YET} |")
    other = "d" * 16
    seeds_apart = [replace(one, code=other) if one.seed == 2 else one for one in rows]
    assert "of the code" not in line(seeds_apart), "each seed's arms are compared with each other alone"
    arms_apart = [replace(one, code=other) if (one.arm, one.seed) == ("rl", 2) else one for one in rows]
    assert "; arms by 2 versions of the code" in line(arms_apart)


def test_the_pages_hold_what_the_kept_rows_say() -> None:
    def between(page: Path, markers: tuple[str, str]) -> str:
        return page.read_text().partition(markers[0] + "\n")[2].partition("\n" + markers[1])[0]

    rows, page = read_all(), _arms.ROOT / "docs/claims.md"
    assert between(page, table.TABLE) == table.table(rows, _arms.ROOT / "docs/claims", page)
    assert between(_arms.ROOT / "README.md", table.VERDICTS) == table.verdicts(rows)


def test_equal_recipes_share_a_run_and_a_changed_one_does_not() -> None:
    one, two = (run_of(Arm(name, "rl.toml"), 1, Rows([], "x")) for name in ("a", "b"))
    assert one.name == two.name
    assert run_of(Arm("a", "rl.toml"), 2, Rows([], "x")).name != one.name
    assert run_of(Arm("a", "rl.toml"), 1, Rows([], "x"), ["rl.steps=1"]).digest != one.digest
    assert run_of(Arm("a", "rl.toml"), 1, Rows([], "x"), ["cluster.restarts=1", "name=other"]).digest == one.digest
    assert replace(one, seed=1) == one


def test_a_row_outlives_a_field_that_came_later_and_is_at_its_default() -> None:
    run = run_of(Arm("a", "rl.toml"), 1, Rows([], "x"))
    now = settings_of(run.recipe)

    def of(changes: dict) -> Row:
        return row("x", "a", 1, recipe={**now, "rl": {**now["rl"], **changes}})

    assert run.made(of({}))
    assert not run.made(of({"steps": 3}))
    assert not run.made(of({"given_up_since": 1}))
    without = {name: {k: v for k, v in now["rl"].items() if k != name} for name in ("ratio_cap", "steps")}
    assert run.made(row("x", "a", 1, recipe={**now, "rl": without["ratio_cap"]})), "the recipe leaves it at its default"
    assert not run.made(row("x", "a", 1, recipe={**now, "rl": without["steps"]})), "it says something else of it"
    assert not run.made(row("x", "a", 2, recipe=now))
