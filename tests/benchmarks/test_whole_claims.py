"""Every claim from its arms to its table, on real runs of a recipe shrunk until it learns nothing."""

from __future__ import annotations

import json
import re
import shutil
import signal
from pathlib import Path
from typing import Any

import _arms
import _claim
import everything
import mtp
import pytest
import table
from _arms import Run
from _rows import Rows, read_all

import etude.view
from etude.cli.run import run_command
from etude.journal import RunPaths, read_metrics
from etude.lineage import LineageState
from etude.recipe import load_recipe

SHRINK = 60
"""What the arms say of steps is divided by it, and the shrunk base's 20 are a sixtieth of the real one's."""


@pytest.fixture
def shrunk(tmp_path: Path, monkeypatch) -> Path:
    recipes = tmp_path / "recipes"
    shutil.copytree(_arms.RECIPES, recipes)
    for file in recipes.glob("*.toml"):
        said = file.read_text()
        file.write_text(re.sub(r"^steps = (\d+)$", lambda m: f"steps = {int(m[1]) // SHRINK}", said, flags=re.M))
    shutil.copy(Path(__file__).with_name("base.toml"), recipes)
    monkeypatch.setattr(_arms, "RECIPES", recipes)
    monkeypatch.setattr(mtp, "ROUNDS", 1)
    monkeypatch.setattr(etude.view, "write_report", lambda paths: paths.report)  # seconds each, and no claim reads it
    before = signal.getsignal(signal.SIGTERM)
    yield tmp_path
    signal.signal(signal.SIGTERM, before)


def go_here(run: Run, runs: Path, until: str) -> None:
    """In this process, which has imported everything once."""
    runs.mkdir(exist_ok=True)
    assert run_command(_arms.RECIPES / run.arm.recipe, run.overrides, runs, run.name, False, runs, until) == 0


@pytest.mark.soak
@pytest.mark.timeout(900)
def test_every_claim_is_run_told_and_not_run_again(shrunk, monkeypatch, capsys) -> None:
    monkeypatch.setattr(Run, "go", go_here)
    claims = everything.claims()
    rows, runs = shrunk / "docs" / "rows.jsonl", shrunk / "runs"
    arguments = ["--seeds", "1", "--rows", str(rows), "--runs", str(runs)]
    _claim.main(*claims, arguments=arguments)
    told = _lines(capsys.readouterr().out)

    found = read_all(rows)
    assert [(row.claim, row.arm) for row in found] == [(claim.name, arm.name) for claim in claims for arm in claim.arms]
    recipes = {arm.recipe for claim in claims for arm in claim.arms}
    assert len(list(runs.iterdir())) == len(recipes), "arms of equal recipes share a run"
    assert list(told) == [f"claims/{claim.name}" for claim in claims]
    assert not any("failed" in line for line in told.values())
    (whole,) = runs.glob("rl-1-*")
    trained = [row["step"] for row in read_metrics(RunPaths(whole).metrics("rl")) if row["trained_tokens"]]
    for step in range(3):
        dev = json.loads((whole / "eval" / f"dev-step-{step:06d}" / "summary.json").read_text())
        assert dev["versions"] == [step, step], "each after the end, with the weights of its step"
    assert trained, "in no step did two rollouts of a group differ"
    assert [step for step, *_ in Rows(found, "replay").of("filter")[1]["probes"]] == trained
    (other,) = runs.glob("sft-continued-1-*")
    took = [row["seconds"] for row in read_metrics(RunPaths(other).metrics("continued"))]
    given = load_recipe(RunPaths(other).recipe).continued.seconds
    assert given == Rows(found, "spine").of("rl")[1]["learning_seconds"]
    assert sum(took) + took[-1] / 2 >= given, "another round is begun where half of one fits"
    _measured({claim.name: Rows(found, claim.name) for claim in claims}, told)
    _shared(
        {folder.name.rpartition("-1-")[0]: LineageState.load(RunPaths(folder).lineage) for folder in runs.iterdir()}
    )
    assert not list(runs.glob("*/stages/*/checkpoints")), "of finished stages none is kept"
    assert {file.stem for file in rows.parent.glob("*.png")} == {claim.name for claim in claims}
    assert table.NOT_YET not in table.table(found, rows.parent, shrunk / "README.md")

    def never(run: Run, runs: Path, until: str) -> None:
        raise AssertionError(f"{run.name} has its row")

    monkeypatch.setattr(Run, "go", never)
    monkeypatch.setattr(_claim, "draw", lambda *_: None)  # seconds each, and they are drawn
    _claim.main(*claims, arguments=arguments)
    assert _lines(capsys.readouterr().out).keys() == told.keys()
    assert read_all(rows) == found


def _lines(printed: str) -> dict[str, dict[str, Any]]:
    lines = [json.loads(line) for line in printed.splitlines() if line.startswith("{")]
    return {line["bench"]: line for line in lines}


def _measured(rows: dict[str, Rows], told: dict[str, dict[str, Any]]) -> None:
    """What each claim is about came out of the runs, whatever it says."""
    spine = told["claims/spine"]
    assert spine["tasks"] == 2
    assert all(line["verdict"] in ("too few seeds", None) for line in told.values()), "which decides nothing"
    assert told["claims/long_phase"]["verdict"] == told["claims/plateau"]["verdict"] == "too few seeds"
    assert spine["pass1_gain_ci"] is spine["pass1_gain_student_ci"] is spine["one_edit_gain_ci"] is None
    assert len(spine["pass1_gain_by_seed"]) == len(spine["gain_over_sft_continued_by_seed"]) == 1
    assert spine["pass8_gain_by_seed"] == [], "two samples know no best of eight"
    assert len(spine["sft_held_out"]) == 1
    assert 0 <= spine["sft_valid_calls"] <= 1
    assert spine["cells"]
    figures = rows["spine"].of("rl")[1]
    assert [step for step, *_ in figures["dev"]] == [0, 2], "as seldom as its recipe says"
    assert all(figures["curves"].values())
    assert 0 < figures["learning_seconds"] < figures["seconds"]["rl"]

    long = rows["long_phase"].of("without")[1]
    assert long["late_loss"] == min(long["plain"], long["rescaled"])
    assert told["claims/long_phase"]["late_loss_saved"] is not None
    assert told["claims/long_phase"]["late_loss_saved_ci"] is None, "one seed knows nothing of others"
    assert all(
        rate > 0 for rates in rows["mtp"].of("one model")[1]["tokens_per_second"].values() for rate in rates.values()
    )
    assert rows["mtp"].of("one model")[1]["accepted_per_draft"].keys() == {"1", "8", "64"}
    assert told["claims/plateau"]["loss_twice"] != told["claims/plateau"]["loss_recipe"]
    for arm in ("in flight", "waiting"):
        seconds = rows["swaps"].of(arm)[1]["seconds"]
        assert seconds == sorted(seconds)
        assert len(seconds) == 2
    reciprocal = rows["precision_rl"].of("reciprocal")[1]
    assert [step for step, *_ in reciprocal["probes"]]
    assert all(shares["8"] > shares["24"] >= 0 for shares in reciprocal["changed"].values())
    assert told["claims/precision_rl"]["ended"] == told["claims/precision_pretraining"]["ended"] == []
    assert rows["swaps"].of("waiting")[1]["staleness"] == 0
    for name in ("summaries", "length_cost", "plateau"):
        for arm in rows[name].arms:
            figures = rows[name].of(arm)[1]
            assert figures["before"].keys() == figures["after"].keys()
            assert len(figures["before"]) == 2
    assert [run["steps"] for run in told["claims/budgets"]["runs"]] == [5, 10, 20]
    assert all(run["loss"] > 0 for run in told["claims/budgets"]["runs"])


def _shared(lineages: dict[str, LineageState]) -> None:
    """Arms start from the same weights: what comes before their difference was made once."""
    origin = {
        name: {stage: record.output for stage, record in found.stages.items()} for name, found in lineages.items()
    }
    same_until = {
        "sft-twice": "mtp",
        "length-concave": "sft",
        "length-none": "sft",
        "length-linear": "sft",
        "replay-off": "sft",
        "replay-on": "sft",
        "trust-difference": "sft",
        "swaps-in-flight": "sft",
        "swaps-waiting": "sft",
        "summaries-on": "mtp",
        "summaries-off": "mtp",
        "budget-quarter": "corpus",
        "budget-half": "corpus",
        "no-long-phase": "corpus",
        "pretrain-mxfp8": "corpus",
        "pretrain-nvfp4": "corpus",
        "rl-bf16": "sft",
        "rl-mxfp8": "sft",
        "rl-nvfp4": "sft",
        "rl-nvfp4-tensor": "sft",
        "rl-nvfp4-reciprocal": "sft",
        "rl-nvfp4-reciprocal10": "sft",
    }
    assert lineages.keys() == {"rl", "spine-rl", "sft-continued", *same_until}
    # The spine's two stand on a drawing of the test of their own, which changes no weights.
    for stage in ("corpus", "pretrain", "long", "mtp", "sft"):
        assert origin["spine-rl"][stage] == origin["rl"][stage]
    shared = [(name, stage, "rl") for name, stage in same_until.items()] + [("sft-continued", "sft", "spine-rl")]
    for name, stage, root in shared:
        assert lineages[name].stages[stage].taken_from, f"{name} made {stage} anew"
        assert origin[name][stage] == origin[root][stage]
