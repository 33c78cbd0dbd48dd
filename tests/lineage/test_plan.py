"""A plan is a probe of the machine times what a recipe asks for: more of it, more seconds, and in proportion."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

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
SMALL = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "q_lora_rank": 16,
    "kv_lora_rank": 16,
    "qk_nope_head_dim": 8,
    "qk_rope_head_dim": 8,
    "v_head_dim": 8,
    "intermediate_size": 64,
    "moe_intermediate_size": 32,
    "n_routed_experts": 4,
}
counts = st.integers(1, 1000)
paces = st.builds(Pace, *[st.floats(1e-6, 10)] * 3)


def recipe_with(**sections: dict[str, Any]) -> Recipe:
    return Recipe.model_validate({"name": "planned", "corpus": GENERATED, **sections})


def seconds_of(recipe: Recipe, pace: Pace = PACE) -> dict[str, float]:
    return {name: seconds for name, _, seconds in plan_stages(recipe, pace)}


def tokens_of(recipe: Recipe) -> dict[str, int]:
    return {name: tokens for name, tokens, _ in plan_stages(recipe, PACE)}


@pytest.mark.parametrize("stage", ["pretrain", "long", "mtp", "sft"])
@pytest.mark.parametrize("field", ["steps", "batch"])
@given(count=counts, times=st.integers(1, 9))
def test_a_supervised_stage_is_in_proportion_to_its_steps_and_batch(stage, field, count, times) -> None:
    one, more = (recipe_with(**{stage: {field: n}}) for n in (count, count * times))
    assert tokens_of(more)[stage] == times * tokens_of(one)[stage]
    assert seconds_of(more)[stage] == pytest.approx(times * seconds_of(one)[stage])
    others = set(seconds_of(one)) - {stage}
    assert {name: seconds_of(one)[name] for name in others} == {name: seconds_of(more)[name] for name in others}


@given(steps=counts, joint=counts)
def test_joint_steps_are_steps(steps, joint) -> None:
    apart = seconds_of(recipe_with(mtp={"steps": steps, "joint_steps": joint}))
    assert apart == pytest.approx(seconds_of(recipe_with(mtp={"steps": steps + joint})))


@given(steps=counts, times=st.integers(1, 9))
def test_rl_is_in_proportion_to_its_rollouts_where_nothing_is_evaluated(steps, times) -> None:
    rl = {"prompts_per_step": 16, "group": 8, "evaluate_every": 0}
    one = seconds_of(recipe_with(rl={**rl, "steps": steps}))["rl"]
    for more in ({"steps": steps * times}, {"steps": steps, "prompts_per_step": 16 * times}):
        assert seconds_of(recipe_with(rl={**rl, **more}))["rl"] == pytest.approx(times * one)


@given(dev=counts)
def test_an_evaluated_step_costs_what_its_tasks_cost(dev) -> None:
    def rl(every: int) -> float:
        return seconds_of(recipe_with(tasks={"dev": dev}, rl={"steps": 8, "evaluate_every": every}))["rl"]

    once = (rl(8) - rl(0)) / 2  # before the first step and after the last
    assert rl(4) - rl(0) == pytest.approx(3 * once)
    assert once > 0


@given(tasks=st.tuples(counts, counts, counts), place=st.integers(0, 2), more=counts)
def test_each_task_more_is_gated_and_each_test_task_tried(tasks, place, more) -> None:
    names = ("train", "dev", "test")
    before = recipe_with(tasks=dict(zip(names, tasks, strict=True)))
    after = recipe_with(tasks={**before.tasks.model_dump(), names[place]: tasks[place] + more})
    gained = seconds_of(after)["tasks"] - seconds_of(before)["tasks"]
    gating = (before.tasks.gate_runs + planning._GATE_GRADINGS) * PACE.grading
    assert gained == pytest.approx(more * gating)
    tried = seconds_of(after)["evaluate"] / seconds_of(before)["evaluate"]
    assert tried == pytest.approx((tasks[2] + more * (place == 2)) / tasks[2])


@given(count=counts, times=st.integers(1, 9))
def test_documents_count(count, times) -> None:
    one, more = (recipe_with(corpus={**GENERATED, "generated_documents": n}) for n in (count, count * times))
    assert seconds_of(more)["corpus"] == pytest.approx(times * seconds_of(one)["corpus"])


@given(count=counts, times=st.integers(2, 9), train=counts)
def test_demonstrations_count_less_where_they_show_a_task_again(count, times, train) -> None:
    def planned(number: int, tasks: int = train, **sft: Any) -> float:
        shown = recipe_with(tasks={"train": tasks}, sft={"demonstrations": number, **sft})
        return seconds_of(shown)["demonstrations"]

    assert planned(count) < planned(count * times) <= times * planned(count) * (1 + 1e-9)
    always_new = count * times <= train
    assert (planned(count * times) == pytest.approx(times * planned(count))) == always_new
    assert planned(count, kinds=["op"]) <= planned(count) <= planned(count, tasks=train * times)


def test_code_counts_by_its_bytes_and_generated_documents_only_where_they_are_read(tmp_path) -> None:
    (tmp_path / "tests").mkdir()
    for name, length in (("a.py", 4000), ("b.py", 8000), ("short.py", 100), ("tests/c.py", 4000), ("d.txt", 4000)):
        (tmp_path / name).write_text("#" * length)
    alone = {"sources": [], "generated_documents": 9999}
    assert seconds_of(recipe_with(corpus=alone))["corpus"] == 0
    code = seconds_of(recipe_with(corpus={**alone, "folders": [str(tmp_path)]}))["corpus"]
    assert seconds_of(recipe_with(corpus={**alone, "folders": [str(tmp_path)] * 3}))["corpus"] == pytest.approx(
        3 * code
    )
    assert code == pytest.approx(12_000 * planning._CODE_DOCUMENTS * PACE.document)
    with pytest.raises(CorpusError, match="nowhere is not a folder"):
        seconds_of(recipe_with(corpus={**alone, "folders": [str(tmp_path / "nowhere")]}))


@given(pace=paces, slower=st.floats(1, 20))
def test_a_machine_that_is_slower_throughout_takes_longer_by_as_much(pace, slower) -> None:
    recipe = recipe_with()
    slow = Pace(pace.token * slower, pace.grading * slower, pace.document * slower)
    assert seconds_of(recipe, slow) == pytest.approx({n: s * slower for n, s in seconds_of(recipe, pace).items()})


@given(pace=paces)
def test_slow_boxes_slow_what_uses_boxes(pace) -> None:
    slow = Pace(pace.token, pace.grading * 2, pace.document)
    before, after = (seconds_of(recipe_with(), one) for one in (pace, slow))
    changed = {name for name in before if after[name] > before[name]}
    assert {"tasks", "demonstrations"} <= changed <= {"tasks", "demonstrations", "rl", "evaluate"}


@pytest.mark.parametrize("sections", [{}, {"continued": {"seconds": 77.0}}, {"rl": {"steps": 0}}])
def test_the_stages_are_those_of_the_line(sections) -> None:
    recipe = recipe_with(**sections)
    assert [name for name, *_ in plan_stages(recipe, PACE)] == [stage.name for stage in stages_of(recipe)]


def test_sft_that_is_continued_takes_the_time_it_is_given_on_any_machine() -> None:
    recipe = recipe_with(continued={"seconds": 77.0})
    assert seconds_of(recipe)["continued"] == seconds_of(recipe, Pace(1.0, 1.0, 1.0))["continued"] == 77.0


def test_a_stage_without_steps_takes_nothing() -> None:
    none = {stage: {"steps": 0} for stage in ("pretrain", "long", "mtp", "sft")}
    recipe = recipe_with(**none, rl={"steps": 0, "evaluate_every": 0})
    assert {name for name, seconds in seconds_of(recipe).items() if not seconds} == {*none, "rl"}


def test_one_edit_is_tried_beside_the_rest() -> None:
    def evaluation(**fields: int) -> float:
        return seconds_of(recipe_with(evaluation=fields))["evaluate"]

    assert evaluation(samples=4, one_edit=4) == pytest.approx(2 * evaluation(samples=4))


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


def test_a_mode_that_grades_nothing_is_said() -> None:
    recipe = recipe_with(model=SMALL, pretrain={"batch": 1, "length": 64}, sandbox={"mode": "plain"})
    pace = probe(recipe, Compute("cpu", "float32", 1, "for a test"))
    assert "etude sandbox doctor" in pace.unprobed
    assert 0 < pace.grading < 1
