"""Claims: arms are recipes that load, a row comes from a finished run once, what is concluded comes from rows alone."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import _arms
import _claim
import everything
import numpy as np
import pytest
import table
from _arms import Arm, Run, RunFailed, run_of, settings_of
from _claim import Claim
from _figures import Told, headline, of_seeds, points, stated
from _outcomes import at, gain, greedy, pass1, turns
from _rows import Row, Rows, append, read_all
from matplotlib.figure import Figure
from tests.benchmarks.figures import FIGURES

from etude.journal import RunPaths
from etude.lineage import LineageState
from etude.lineage.stages import stages_of
from etude.lineage.state import StageRecord
from etude.recipe import load_recipe
from etude.rl import length_cost

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


def test_every_recipe_of_claims_is_an_arm() -> None:
    used = {arm.recipe for claim in CLAIMS for arm in claim.arms}
    below = {"base.toml"}
    assert {file.name for file in _arms.RECIPES.glob("*.toml")} == used | below


def fields(values: dict, above: str = "") -> dict[str, object]:
    """Of a recipe, by their dotted names."""
    flat: dict[str, object] = {}
    for name, value in values.items():
        flat |= fields(value, f"{above}{name}.") if isinstance(value, dict) else {f"{above}{name}": value}
    return flat


def test_an_arm_differs_from_the_whole_recipe_in_what_it_is_about_and_in_nothing_else() -> None:
    recipes = {file.stem: fields(load_recipe(file).model_dump()) for file in _arms.RECIPES.glob("*.toml")}
    changed = {
        name: {field for field, value in values.items() if value != recipes["base"][field]}
        for name, values in recipes.items()
    }
    length, threads = "rl.reward.length", {"engine.threads", "rl.trainer_threads"}
    longer, low = {"rl.steps", "rl.prompts_per_step", "rl.evaluate_every"}, {"precision.experts", "precision.emulate"}
    assert changed == {
        "base": set(),
        "rl": {"evaluation.one_edit", "rl.evaluate_samples"},
        "spine-rl": {"evaluation.one_edit", "rl.evaluate_every", "rl.evaluate_samples", "tasks.test_draw"},
        "sft-continued": {"continued.seconds", "tasks.test_draw"},
        "no-long-phase": {"pretrain.steps", "long.steps"},
        "budget-quarter": {"pretrain.steps"},
        "budget-half": {"pretrain.steps"},
        "replay-off": {"rl.replay.mode"},
        "replay-on": {"rl.replay.mode"},
        "length-concave": {"harness.max_turns"},
        "length-none": {"harness.max_turns", f"{length}.scale"},
        "length-linear": {"harness.max_turns", f"{length}.scale", f"{length}.q"},
        "summaries-on": {"engine.context", "harness.max_turns", "harness.summary_trigger"},
        "summaries-off": {"engine.context", "harness.max_turns", "harness.summary_trigger"},
        "rl-bf16": longer,
        "rl-mxfp8": {*longer, *low, "precision.since"},
        "rl-nvfp4": {*longer, *low, "precision.since"},
        "rl-nvfp4-tensor": {*longer, *low, "precision.since"},
        "rl-nvfp4-reciprocal": {*longer, *low, "precision.since", "precision.reciprocal_bits"},
        "pretrain-mxfp8": low,
        "pretrain-nvfp4": low,
        "swaps-in-flight": {"rl.evaluate_every"},
        "swaps-waiting": {"rl.evaluate_every", "rl.max_staleness", *threads},
    }


def test_budgets_of_tokens_are_what_the_claims_say() -> None:
    def tokens(name: str) -> tuple[int, int]:
        recipe = load_recipe(_arms.RECIPES / f"{name}.toml")
        return tuple(stage.steps * stage.batch * stage.length for stage in (recipe.pretrain, recipe.long))

    assert sum(tokens("no-long-phase")) == sum(tokens("rl")), "without the long phase as many are read"
    assert tokens("no-long-phase")[1] == 0
    least, middle, most = (tokens(name)[0] for name in ("budget-quarter", "budget-half", "rl"))
    assert middle / least == most / middle, "evenly spaced by their logarithms"


@by_name
def test_without_rows_nothing_is_claimed(claim) -> None:
    found = claim.conclude(Rows([], claim.name))
    assert headline(claim.headline, found) == ""
    assert _claim.draw(claim, Rows([], claim.name), Path()) is None
    json.dumps(found)


@by_name
def test_rows_are_concluded_told_and_drawn(claim, tmp_path) -> None:
    rows = Rows(rows_of(claim), claim.name)
    found = claim.conclude(rows)
    json.dumps(found)
    assert headline(claim.headline, found)
    picture = _claim.draw(claim, rows, tmp_path)
    assert picture is not None
    assert picture.read_bytes()[:4] == b"\x89PNG"


@by_name
def test_rows_of_some_arms_and_seeds_are_no_mistake(claim, tmp_path) -> None:
    everything = rows_of(claim)
    for kept in (everything[:1], everything[:4], everything[-1:], rows_of(claim, (2,))):
        rows = Rows(kept, claim.name)
        headline(claim.headline, claim.conclude(rows))
        _claim.draw(claim, rows, tmp_path)


def test_the_spine_has_the_keys_that_are_promised() -> None:
    claim = CLAIMS[0]
    found = claim.conclude(Rows(rows_of(claim), "spine"))
    promised = """tasks k sft_pass1 sft_greedy rl_pass1 rl_greedy pass1_gain pass1_gain_ci greedy_gain_ci
    gain_over_sft_continued_ci pass8_gain_ci cells first_edit_before first_edit_after truncated_before truncated_after
    minutes_per_seed"""
    assert found.keys() >= set(promised.split())
    assert found["pass1_gain"] == pytest.approx(found["rl_pass1"] - found["sft_pass1"], abs=2e-4)
    low, high = found["pass1_gain_ci"]
    assert low < found["pass1_gain"] < high
    assert found["one_edit_before"] < found["one_edit_after"], "of the seeds that were also run with one edit"
    assert set(found["cells"]) == {"both_seen", "both_unseen"}


def test_gains_pair_tasks_by_name_within_a_seed() -> None:
    def task(passed: int, one: int | None) -> dict:
        return {"samples": 4, "passed": passed, "greedy": one, "turns": 1.0, "full": 0.0, "cell": ""}

    before = {"a": task(1, 0), "b": task(2, 1), "gone": task(4, 1)}
    after = {"b": task(4, None), "a": task(2, 1), "new": task(0, 0)}
    assert gain([(before, after)], pass1).mean == pytest.approx((0.25 + 0.5) / 2)
    assert gain([(before, after)], greedy).mean == 1.0, "a task without a greedy sample says nothing"
    assert gain([(before, after)], at(4)).mean == 0.0
    assert gain([(before, after)], at(5)) is None
    other = {"a": task(3, 1)}
    assert gain([(before, after), (before, other)], pass1).mean == pytest.approx((0.375 + 0.5) / 2), "seeds weigh alike"


def test_swaps_count_seconds_to_the_reward_that_both_reach() -> None:
    claim = next(claim for claim in CLAIMS if claim.name == "swaps")
    quick = {"seconds": [float(s) for s in range(1, 11)], "reward": [s / 10 for s in range(1, 11)], "staleness": 1.0}
    slow = {**quick, "seconds": [2.0 * s for s in range(1, 11)]}
    rows = [row("swaps", arm, seed, f) for arm, f in (("in flight", quick), ("waiting", slow)) for seed in (1, 2)]
    found = claim.conclude(Rows(rows, "swaps"))
    assert (found["seconds_in_flight"], found["seconds_waiting"], found["ratio"]) == ([10.0] * 2, [20.0] * 2, 2.0)
    assert (found["ratio_on_the_way"], found["ratio_of_all_steps"]) == (2.0, 2.0)


def test_swaps_that_end_on_a_plateau_are_told_by_the_way_there() -> None:
    claim = next(claim for claim in CLAIMS if claim.name == "swaps")
    seconds = [float(s) for s in range(1, 21)]
    steady = {"seconds": seconds, "reward": [min(0.1 * s, 1.0) for s in seconds], "staleness": 1.0}
    # As quick as the other, but a little less at the end: the goal is met when noise lets it be.
    unlucky = {**steady, "reward": [*steady["reward"][:12], 0.9, 0.9, 0.9, 0.9, 0.9, 0.9, 0.95, 1.0]}
    rows = [row("swaps", arm, 1, f) for arm, f in (("in flight", steady), ("waiting", unlucky))]
    found = claim.conclude(Rows(rows, "swaps"))
    assert found["ratio_on_the_way"] == pytest.approx(1.0, abs=0.02)
    assert found["ratio_of_all_steps"] == 1.0


def test_the_linear_cost_is_as_dear_at_the_last_turn_as_the_concave_one() -> None:
    claim = next(claim for claim in CLAIMS if claim.name == "length_cost")
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


@pytest.mark.parametrize("kill_at", [0, 1, 2, 3])
def test_a_command_that_was_killed_goes_on_with_what_has_no_row(kill_at, monkeypatch, tmp_path, capsys) -> None:
    stub = Stub(monkeypatch, tmp_path)
    stub.kill_at = kill_at
    with pytest.raises(SystemExit) as ended:
        stub.main()
    assert ended.value.code == 130
    assert len(read_all(stub.rows)) == kill_at
    stub.main()
    assert stub.went == [("one", 1), ("two", 1), ("one", 2), ("two", 2)]
    told = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert (told["bench"], told["n"], told["seeds"], told["arms"]) == ("claims/stub", [1, 3], [1, 2], ["one", "two"])
    found = read_all(stub.rows)
    assert [(r.arm, r.seed, r.code, r.parents_code) for r in found[:2]] == [
        ("one", 1, "new", ["old"]),
        ("two", 1, "new", ["old"]),
    ]
    assert found[0].recipe != found[1].recipe, "the second arm's recipe has what the first one's row says"
    stub.main()
    assert len(read_all(stub.rows)) == 4
    stub.main("--set", "rl.group=4")
    assert len(read_all(stub.rows)) == 8, "another recipe is another row"
    stub.main("--again", "--set", "rl.group=4")
    assert len(read_all(stub.rows)) == 12


def test_an_arm_that_fails_takes_no_other_with_it(monkeypatch, tmp_path, capsys) -> None:
    stub = Stub(monkeypatch, tmp_path)

    def fail_once(run: Run, runs: Path) -> None:
        if (run.arm.name, run.seed) == ("one", 1):
            raise RunFailed("it ended with exit code 2")
        Stub.go(stub, run, runs)

    stub.go = fail_once
    with pytest.raises(SystemExit) as ended:
        stub.main()
    assert ended.value.code == 1
    assert stub.went == [("one", 2), ("two", 2)], "arm two of seed 1 waits for the row that is missing"
    printed = capsys.readouterr()
    told = json.loads(printed.out.splitlines()[-1])
    assert (told["seeds"], told["failed"]) == ([2], ["one, seed 1", "two, seed 1"])
    assert "failed: it ended with exit code 2" in printed.err
    del stub.go
    stub.main()
    assert stub.went == [("one", 2), ("two", 2), ("one", 1), ("two", 1)]
    assert "failed" not in json.loads(capsys.readouterr().out.splitlines()[-1])


def test_a_measure_that_fails_is_told_whole_and_leaves_no_row(monkeypatch, tmp_path, capsys) -> None:
    stub = Stub(monkeypatch, tmp_path)

    def measure(paths: RunPaths, arm: Arm) -> dict:
        raise KeyError("late_loss")

    stub.claim = replace(stub.claim, measure=measure)
    with pytest.raises(SystemExit) as ended:
        stub.main()
    assert ended.value.code == 1
    assert read_all(stub.rows) == []
    printed = capsys.readouterr()
    assert "KeyError: 'late_loss'" in printed.err
    assert json.loads(printed.out.splitlines()[-1])["arms"] == []


def test_rows_of_another_recipe_are_kept_and_not_concluded(monkeypatch, tmp_path, capsys) -> None:
    stub = Stub(monkeypatch, tmp_path)
    stub.main()
    stub.main("--set", "rl.group=4")
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["n"] == [5, 7]
    stub.main()
    assert stub.went == [("one", 1), ("two", 1), ("one", 2), ("two", 2)] * 2, "the first rows hold again"
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["n"] == [1, 3]


def test_what_is_only_tried_leaves_the_rows_of_the_readme_alone(monkeypatch, tmp_path) -> None:
    stub = Stub(monkeypatch, tmp_path)
    monkeypatch.setattr(_claim, "ROWS", stub.rows)
    _claim.main(stub.claim, arguments=["--seeds", "1", "--runs", str(stub.runs), "--set", "rl.group=4"])
    assert not stub.rows.exists()
    assert len(read_all(stub.runs / "rows.jsonl")) == 2


def test_the_first_seed_of_all_claims_comes_first(monkeypatch, tmp_path) -> None:
    stub = Stub(monkeypatch, tmp_path)
    other = replace(stub.claim, name="other", arms=(Arm("three", "rl.toml"),))
    _claim.main(stub.claim, other, arguments=["--seeds", "1,2", "--rows", str(stub.rows), "--runs", str(stub.runs)])
    assert [seed for _, seed in stub.went] == [1, 1, 1, 2, 2, 2]
    assert [name for name, _ in stub.went[:3]] == ["one", "two", "three"]


def test_checkpoints_of_finished_stages_are_dropped_once_there_is_a_row(monkeypatch, tmp_path) -> None:
    stub = Stub(monkeypatch, tmp_path)
    run = run_of(stub.claim.arms[0], 1, Rows([], "stub"))
    paths = run.folder(stub.runs)
    for stage in ("sft", "rl"):
        (paths.checkpoints(stage) / "step-00000001").mkdir(parents=True)
    stub.main()
    assert not paths.checkpoints("sft").exists()
    assert paths.checkpoints("rl").exists(), "a stage that is not done goes on from it"


@pytest.mark.parametrize("wrong", [["--set", "rl.nonsense=1"], ["--set", "rl.steps=-1"], ["--seeds", "one"]])
def test_a_mistake_is_one_line(wrong, monkeypatch, tmp_path, capsys) -> None:
    with pytest.raises(SystemExit) as ended:
        Stub(monkeypatch, tmp_path).main(*wrong)
    assert ended.value.code == 2
    assert "Traceback" not in capsys.readouterr().err


IMPATIENT = """
import signal, subprocess, sys
sys.path[:0] = [{claims!r}, {benchmarks!r}]
import _arms
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
    assert headline(parts, found) == "pass@1 +12.3 points, 95 %: -1.0 to +20.0; 9 runs"
    assert headline(parts, {**found, "gain_ci": None}) == "pass@1 +12.3 points, one seed; 9 runs"
    assert headline(parts, {**found, "gain": None}) == "", "without what it stands for, a claim says nothing"


def test_tasks_need_summaries_where_rollouts_without_fill_the_window() -> None:
    def evaluation(passed: int, full: float) -> dict:
        task = {"samples": 4, "passed": passed, "greedy": 0, "turns": 1.0, "cell": ""}
        return {"long": {**task, "full": full}, "short": {**task, "passed": 4, "full": 0.0}}

    figures = {
        "off": {"before": evaluation(0, 0.5), "after": evaluation(1, 0.75)},
        "on": {"before": evaluation(0, 0.0), "after": evaluation(3, 0.0)},
    }
    claim = next(claim for claim in CLAIMS if claim.name == "summaries")
    found = claim.conclude(Rows([row("summaries", arm, 1, found) for arm, found in figures.items()], "summaries"))
    assert (found["tasks_needed"], found["gain_needed"], found["gain_others"]) == (1, 0.5, 0.0)


def test_turns_are_those_of_solved_rollouts() -> None:
    def task(passed: int, of: float) -> dict:
        return {"samples": 4, "passed": passed, "greedy": 0, "turns": of, "full": 0.0, "cell": ""}

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


def test_the_readme_holds_the_table_of_the_rows_that_are_kept() -> None:
    page = _arms.ROOT / "README.md"
    kept = page.read_text().partition(table.BEGIN + "\n")[2].partition("\n" + table.END)[0]
    assert kept == table.table(read_all(), _arms.ROOT / "docs/claims", page)


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


def test_figures_vary_enough_to_mean_something() -> None:
    spine = FIGURES["spine"]("rl", 1)
    assert np.std([task["passed"] for task in spine["after"].values()]) > 0
