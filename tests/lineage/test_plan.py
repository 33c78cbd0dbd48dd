"""A plan is a probe of the machine times what a recipe asks for: more of it, more seconds, and in proportion."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from tests.lineage.examined import MODEL

from etude.cli.plan import describe_plan
from etude.corpus import CorpusError
from etude.lineage import plan as planning
from etude.lineage.plan import plan_run, plan_stages
from etude.lineage.probe import Pace, probe
from etude.lineage.stages import stages_of
from etude.recipe import Recipe, load_recipe
from etude.sandbox.contract import SandboxUnavailable
from etude.training.compute import Compute

PACE = Pace(token=5e-5, grading=0.02, document=5e-4)
GENERATED = {"sources": ["generated"]}
SMALL = MODEL | {"max_position_embeddings": 512}
UNEVALUATED = {"evaluate_every": 0}


def documents(count: int) -> dict[str, Any]:
    return {**GENERATED, "generated_documents": count}


def tasks(count: int) -> dict[str, Any]:
    return {"tasks": dict.fromkeys(("train", "dev", "test"), count)}


def recipe_with(**sections: dict[str, Any]) -> Recipe:
    return Recipe.model_validate({"name": "planned", "corpus": GENERATED, **sections})


def seconds_of(recipe: Recipe, pace: Pace = PACE) -> dict[str, float]:
    return {name: seconds for name, _, seconds in plan_stages(recipe, pace)}


@pytest.mark.parametrize(
    ("one", "more", "stages", "times"),
    [
        ({"pretrain": {"steps": 7}}, {"pretrain": {"steps": 21}}, {"pretrain"}, 3),
        ({"long": {"batch": 2}}, {"long": {"batch": 8}}, {"long"}, 4),
        ({"mtp": {"steps": 4, "joint_steps": 6}}, {"mtp": {"steps": 8, "joint_steps": 12}}, {"mtp"}, 2),
        ({"sft": {"batch": 2}}, {"sft": {"batch": 8}}, {"sft"}, 4),
        ({"rl": {"steps": 3} | UNEVALUATED}, {"rl": {"steps": 9} | UNEVALUATED}, {"rl"}, 3),
        ({"rl": {"group": 4} | UNEVALUATED}, {"rl": {"group": 8} | UNEVALUATED}, {"rl"}, 2),
        ({"evaluation": {"samples": 3}}, {"evaluation": {"samples": 3, "one_edit": 3}}, {"evaluate"}, 2),
        ({"corpus": documents(10)}, {"corpus": documents(50)}, {"corpus"}, 5),
        ({"sft": {"demonstrations": 30}}, {"sft": {"demonstrations": 90}}, {"demonstrations"}, 3),
        ({"rl": UNEVALUATED} | tasks(5), {"rl": UNEVALUATED} | tasks(15), {"tasks", "evaluate"}, 3),
    ],
)
def test_a_stage_is_in_proportion_to_what_is_asked_of_it(one, more, stages, times) -> None:
    before, after = seconds_of(recipe_with(**one)), seconds_of(recipe_with(**more))
    assert {name for name in before if after[name] != pytest.approx(before[name])} - {
        "demonstrations"
    } | stages == stages
    for stage in stages:
        assert after[stage] == pytest.approx(times * before[stage])


def test_training_costs_what_its_arithmetic_costs() -> None:
    """Attention by the square of the length, a trunk that is not trained a third, and drafts besides."""

    def sft(**sections: dict[str, Any]) -> float:
        return seconds_of(recipe_with(**sections))["sft"]

    short, long, longest = (sft(sft={"length": length, "batch": 4096 // length}) for length in (64, 1024, 4096))
    assert long > short
    assert longest - long == pytest.approx((long - short) * (4096 - 1024) / (1024 - 64))
    none, one, two = (sft(model={"num_nextn_predict_layers": heads}) for heads in (0, 1, 2))
    assert sft(sft={"draft_loss": 0.0}) == none < one
    assert two - one == pytest.approx(one - none)
    rows = {"length": 256, "batch": 4}
    alone, joint = (
        seconds_of(recipe_with(pretrain=rows | {"steps": 10}, mtp=rows | {"steps": steps, "joint_steps": 10 - steps}))
        for steps in (10, 0)
    )
    assert joint["mtp"] - alone["mtp"] == pytest.approx(2 / 3 * joint["pretrain"])


def test_an_evaluated_step_costs_what_its_tasks_cost() -> None:
    def rl(every: int, dev: int = 10) -> float:
        return seconds_of(recipe_with(tasks={"dev": dev}, rl={"steps": 8, "evaluate_every": every}))["rl"]

    once = (rl(8) - rl(0)) / 2  # before the first step and after the last
    assert once > 0
    assert rl(4) - rl(0) == pytest.approx(3 * once)
    assert rl(4, dev=20) - rl(0) == pytest.approx(6 * once)


def test_demonstrations_count_less_where_they_show_a_task_again() -> None:
    def planned(number: int, **sft: Any) -> float:
        return seconds_of(recipe_with(tasks={"train": 50}, sft={"demonstrations": number, **sft}))["demonstrations"]

    assert planned(50) < planned(100) < 2 * planned(50)
    assert planned(100, kinds=["op"]) < planned(100)


def test_code_counts_by_its_bytes_and_generated_documents_only_where_they_are_read(tmp_path) -> None:
    (tmp_path / "tests").mkdir()
    for name, length in (("a.py", 4000), ("b.py", 8000), ("short.py", 100), ("tests/c.py", 4000), ("d.txt", 4000)):
        (tmp_path / name).write_text("#" * length)

    def corpus(*folders: Path) -> float:
        section = {"sources": [], "generated_documents": 9999, "folders": list(map(str, folders))}
        return seconds_of(recipe_with(corpus=section))["corpus"]

    assert corpus() == 0
    assert corpus(tmp_path) == pytest.approx(12_000 * planning._CODE_DOCUMENTS * PACE.document)
    named = {"sources": [], "code": {"a": {"path": str(tmp_path)}}}
    assert seconds_of(recipe_with(corpus=named))["corpus"] == pytest.approx(corpus(tmp_path) / 12_000 * 16_100)
    with pytest.raises(CorpusError, match="nowhere is not a folder"):
        corpus(tmp_path / "nowhere")


def test_a_slower_machine_takes_longer_at_what_it_is_slower_at() -> None:
    planned = seconds_of(recipe_with())
    slow = Pace(2 * PACE.token, 2 * PACE.grading, 2 * PACE.document)
    assert seconds_of(recipe_with(), slow) == pytest.approx({name: 2 * taken for name, taken in planned.items()})
    boxes = seconds_of(recipe_with(), Pace(PACE.token, 2 * PACE.grading, PACE.document))
    assert {name for name in planned if boxes[name] > planned[name]} == {"tasks", "demonstrations", "rl", "evaluate"}


@pytest.mark.parametrize("sections", [{}, {"continued": {"seconds": 77.0}}, {"rl": {"steps": 0}}])
def test_the_stages_are_those_of_the_line(sections) -> None:
    recipe = recipe_with(**sections)
    assert [name for name, *_ in plan_stages(recipe, PACE)] == [stage.name for stage in stages_of(recipe)]


def test_sft_that_is_continued_takes_the_time_it_is_given_on_any_machine() -> None:
    recipe = recipe_with(continued={"seconds": 77.0})
    assert seconds_of(recipe)["continued"] == seconds_of(recipe, Pace(1.0, 1.0, 1.0))["continued"] == 77.0


def test_the_tiny_recipe_is_planned_as_a_calm_run_of_it_went() -> None:
    """On two cores, with 96 test tasks. The laptop's half hour is what these seconds must not leave in silence. The
    pace is what the run's tasks, corpus and base model imply, so the weights are judged by the other stages."""
    recipe = load_recipe(Path("recipes/tiny.toml"), ["tasks.test=96"])
    took = {"tasks": 108.0, "corpus": 22.7, "pretrain": 182.0, "long": 33.2, "mtp": 43.9, "demonstrations": 21.8}
    took |= {"sft": 56.0, "rl": 247.2, "evaluate": 54.0}
    planned = seconds_of(recipe, Pace(token=4.9e-5, grading=0.019, document=5.4e-4))
    assert planned.keys() == took.keys()
    judged = took.keys() - {"tasks", "corpus", "pretrain"}
    assert {name for name in judged if not 1 / 1.3 <= planned[name] / took[name] <= 1.3} == set()


def test_this_machine_is_probed_for_a_plan() -> None:
    recipe = recipe_with(model=SMALL, pretrain={"batch": 1, "length": 64}, compute={"dtype": "float32", "threads": 1})
    plan = plan_run(recipe)
    assert min(plan.pace.token, plan.pace.grading, plan.pace.document) > 0
    assert not plan.pace.unprobed
    assert plan.stages == plan_stages(recipe, plan.pace)
    assert str(plan.pace).endswith("(graded here)")


def test_where_there_are_no_boxes_the_plan_says_so_and_is_still_a_recipe(tmp_path, monkeypatch) -> None:
    def none(*_: object) -> None:
        raise SandboxUnavailable("no boxes here:\nask whoever has some")

    monkeypatch.setattr("etude.lineage.probe.open_setup", none)
    recipe = recipe_with(model=SMALL, pretrain={"batch": 1, "length": 64}, compute={"dtype": "float32", "threads": 1})
    file = tmp_path / "planned.toml"
    file.write_text(describe_plan(recipe))
    assert "no boxes here: ask whoever has some" in file.read_text()
    assert load_recipe(file) == recipe


def test_the_plan_says_what_each_stage_takes_and_what_to_change_where_it_does_not_fit(monkeypatch) -> None:
    def none(*_: object) -> None:
        raise SandboxUnavailable("no boxes here")

    monkeypatch.setattr("etude.lineage.probe.open_setup", none)
    monkeypatch.setattr(planning, "free_memory", lambda device: 550_000_000)
    rows = {"batch": 1, "length": 64}
    stages = {"pretrain": rows, "sft": rows, "stages": ["pretrain", "sft"]}
    recipe = recipe_with(model=SMALL, engine={"cache_slots": 9000}, compute={"dtype": "float32"}, **stages)
    lines = describe_plan(recipe).partition("# plan\n")[2].splitlines()
    first = next(number for number, line in enumerate(lines) if line.startswith("# memory"))
    assert "550 MB free; " in lines[first]
    needs, (too_much, disk) = lines[first + 1 : first + 4], lines[first + 4 : first + 6]
    assert [line.split()[1] for line in needs] == ["pretrain", "sft", "evaluate"]
    assert ": masters " in needs[1]
    assert ": engine with weights " in needs[2]
    assert too_much.startswith("# too much        evaluate does not fit: set engine.cache_slots=")
    assert disk.startswith("# disk")


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_a_plan_for_a_gpu_needs_none() -> None:
    recipe = recipe_with(model=SMALL, pretrain={"batch": 1, "length": 64}, compute={"device": "cuda"})
    assert "cuda, bfloat16" in (said := describe_plan(recipe))
    assert "no CUDA device is here" in said


def test_a_mode_that_grades_nothing_is_said() -> None:
    recipe = recipe_with(model=SMALL, pretrain={"batch": 1, "length": 64}, sandbox={"mode": "plain"})
    pace = probe(recipe, Compute("cpu", "float32", 1, "for a test"))
    assert "etude sandbox doctor" in pace.unprobed
    assert 0 < pace.grading < 1
