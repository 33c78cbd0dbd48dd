"""Stages in order, each done once, each resumed where it was; what a lineage is made of is on record."""

from __future__ import annotations

import asyncio
import json
import os
import time
from itertools import product

import pytest
from tests.lineage.contexts import open_context

from etude.journal import RunPaths, read_journal
from etude.lineage import (
    LineageError,
    LineageState,
    Stage,
    require_stage,
    require_unchanged,
    run_line,
    sole_driver,
)
from etude.lineage.context import RunContext
from etude.lineage.stages import stages_of
from etude.lineage.state import MODELS, StageRecord, output_digest, recipe_digest
from etude.recipe import Recipe
from etude.recipe.recipe import TRAINING

RECIPE = Recipe.model_validate({"name": "r", "compute": {"dtype": "float32", "threads": 1}})


class Work:
    """A stage that writes a file in parts and can be interrupted between any two."""

    def __init__(self, name: str, parts: int, needs: tuple[str, ...] = ()) -> None:
        self.name, self.parts, self.interrupt_after = name, parts, -1
        self.calls = 0
        self.stage = Stage(name, name, ("tasks",), (f"{name}.txt",), self.run, needs=needs)

    async def run(self, context: RunContext) -> dict[str, int]:
        self.calls += 1
        file = context.paths.root / f"{self.name}.txt"
        for part in range(len(file.read_text()) if file.exists() else 0, self.parts):
            if part == self.interrupt_after:
                self.interrupt_after = -1
                raise KeyboardInterrupt
            with file.open("a") as out:
                out.write(str(part))
            await asyncio.sleep(0)
        return {"parts": self.parts}


def run(root, works: list[Work], recipe: Recipe = RECIPE, until: str | None = None) -> RunContext:
    context = open_context(root, recipe)
    try:
        asyncio.run(run_line(context, [work.stage for work in works], until=until))
    finally:
        context.journal.close()
    return context


@pytest.mark.parametrize(("stage", "part"), [(0, 0), (1, 1), (2, 2)])
def test_a_stage_interrupted_anywhere_is_called_again_and_nothing_else_is(stage, part, tmp_path) -> None:
    works = [Work(name, 3) for name in ("one", "two", "three")]
    works[stage].interrupt_after = part
    root = tmp_path / "run"
    with pytest.raises(KeyboardInterrupt):
        run(root, works)
    stages = LineageState.load(RunPaths(root).lineage).stages
    assert [r.done for r in stages.values()] == [True] * stage + [False]
    state = run(root, works).state
    assert [work.calls for work in works] == [2 if n == stage else 1 for n in range(3)]
    assert [r.sessions for r in state.stages.values()] == [2 if n == stage else 1 for n in range(3)]
    assert all(r.done and r.result == {"parts": 3} for r in state.stages.values())
    assert [(root / f"{w.name}.txt").read_text() for w in works] == ["012"] * 3
    calls = [work.calls for work in works]
    run(root, works)
    assert [work.calls for work in works] == calls, "what is done is not done again"


def test_the_journal_says_why_a_stage_ended(tmp_path) -> None:
    work = Work("one", 2)

    async def fail(context: RunContext) -> dict[str, int]:
        raise LineageError("no tasks left")

    run(tmp_path / "run", [work])
    broken = Work("two", 1)
    broken.stage = Stage("two", "two", ("tasks",), (), fail)
    with pytest.raises(LineageError):
        run(tmp_path / "run", [work, broken])
    ends = [e.fields for e in read_journal(tmp_path / "run" / "journal", kind="stage_interrupted")]
    assert [(e["stage"], e["reason"], e["error"]) for e in ends] == [
        ("two", "no tasks left", "etude.lineage.state.LineageError")
    ]


def test_inputs_and_outputs_are_on_record(tmp_path) -> None:
    works = [Work("one", 2), Work("two", 2, needs=("one",))]
    state = run(tmp_path / "run", works).state
    one, two = state.stages["one"], state.stages["two"]
    assert one.inputs == {}
    assert two.inputs == {"one": one.output}
    assert one.output == output_digest(tmp_path / "run", ["one.txt"])
    (tmp_path / "run/one.txt").write_text("02")
    assert one.output != output_digest(tmp_path / "run", ["one.txt"])
    assert one.recipe_digest == recipe_digest(RECIPE, ["tasks"])
    assert len(one.code_digest) == 16


def test_a_changed_recipe_is_refused_by_name_and_nothing_runs(tmp_path) -> None:
    works = [Work(name, 2) for name in ("one", "two")]
    run(tmp_path / "run", works)
    for changes in ({"tasks": {"train": 7}}, {"seed": 9}):
        other = Recipe.model_validate(RECIPE.model_dump(mode="json", by_alias=True) | changes)
        with pytest.raises(LineageError, match=r"changed in tasks or seed since stage one was run.*--name"):
            run(tmp_path / "run", works, other)
    harmless = RECIPE.model_copy(update={"cluster": RECIPE.cluster.model_copy(update={"restarts": 9})})
    run(tmp_path / "run", works, harmless)
    assert [work.calls for work in works] == [1, 1]


def test_what_only_fits_work_into_memory_may_change_also_in_runs_of_earlier_versions(tmp_path) -> None:
    """The digests are those that a version left which compared the values of these fields."""
    left = {"sft": "60328237bffcc428", "rl": "4be6d85e90084cd7", "evaluate": "17cbc58b184007b0"}
    fitted = {"engine": {"slots": 48, "cache_slots": 64}, "rl": {"microbatch_tokens": 8192}}
    began = Recipe.model_validate({"name": "older", **fitted, "sft": {"microbatch_tokens": 4096}})
    smaller = Recipe.model_validate({"name": "older", "compute": {"checkpoint_activations": "blocks"}})
    other = Recipe.model_validate({"name": "older", **fitted, "sft": {"microbatch_tokens": 4096, "batch": 7}})
    stages = [stage for stage in stages_of(began) if stage.name in left]
    state = LineageState({name: StageRecord(digest, "", 0.0, done=True) for name, digest in left.items()})
    require_unchanged(began, state, stages)
    for changed in (smaller, other):
        with pytest.raises(LineageError, match="since stage sft was run"):
            require_unchanged(changed, state, stages)
    context = open_context(tmp_path / "run", began)
    context.state.stages.update(state.stages)
    asyncio.run(run_line(context, stages))
    context.journal.close()
    renewed = LineageState.load(context.paths.lineage)
    require_unchanged(smaller, renewed, stages)
    with pytest.raises(LineageError, match="since stage sft was run"):
        require_unchanged(other, renewed, stages)


def test_every_section_of_the_recipe_belongs_to_a_stage() -> None:
    continued = stages_of(Recipe.model_validate({"name": "r", "continued": {"seconds": 60}}))
    covered = {section.partition(".")[0] for stage in (*stages_of(RECIPE), *continued) for section in stage.sections}
    assert covered == set(Recipe.model_fields) - {"schema_version", "name", "seed", "cluster", "stages"}
    require_unchanged(RECIPE, LineageState(), stages_of(RECIPE))


def test_a_stage_needs_earlier_ones_only() -> None:
    """Whatever training stages are left out."""
    for left_out in product((False, True), repeat=len(TRAINING) - 1):
        listed = ["pretrain", *(stage for stage, out in zip(TRAINING[1:], left_out, strict=True) if not out)]
        for seconds in (0, 60) if "rl" in listed else (0,):
            recipe = Recipe.model_validate({"name": "r", "stages": listed, "continued": {"seconds": seconds}})
            line = stages_of(recipe)
            names = [stage.name for stage in line]
            assert all(set(stage.needs) <= set(names[:place]) for place, stage in enumerate(line))
            assert [name for name in names if name in MODELS] == recipe.training
            assert ("demonstrations" in names) == ("sft" in listed)
            assert set(line[-1].needs) == {"tasks", "corpus", *recipe.training[-2:]}
    names = [stage.name for stage in stages_of(RECIPE)]
    assert names == ["tasks", "corpus", "pretrain", "long", "mtp", "demonstrations", "sft", "rl", "evaluate"]


@pytest.mark.parametrize("stages", [[], ["sft", "rl"], ["pretrain", "sft", "mtp"], ["pretrain", "pretrain"]])
def test_stages_in_another_order_are_refused(stages: list[str]) -> None:
    with pytest.raises(ValueError, match=r"stages must (begin with pretrain|name some of)"):
        Recipe.model_validate({"name": "r", "stages": stages})


def test_a_stage_begun_with_another_model_is_not_continued() -> None:
    """A stage that the user puts in between afterwards would not be used by those that are done."""
    started = time.time()
    shorter = RECIPE.model_copy(update={"stages": ["pretrain", "sft", "rl"]})
    done = {
        stage.name: StageRecord(
            recipe_digest(shorter, stage.sections), "", started, inputs=dict.fromkeys(stage.needs, ""), done=True
        )
        for stage in stages_of(shorter)
    }
    require_unchanged(shorter, LineageState(done), stages_of(shorter))
    with pytest.raises(LineageError, match="stage sft was begun with the model of pretrain"):
        require_unchanged(RECIPE, LineageState(done), stages_of(RECIPE))


def test_a_single_field_may_be_what_a_stage_depends_on() -> None:
    other = RECIPE.model_copy(update={"tasks": RECIPE.tasks.model_copy(update={"dev": 7})})
    assert recipe_digest(RECIPE, ["tasks.train"]) == recipe_digest(other, ["tasks.train"])
    assert recipe_digest(RECIPE, ["tasks.dev"]) != recipe_digest(other, ["tasks.dev"])


def test_a_line_may_end_early_and_go_on_later(tmp_path) -> None:
    works = [Work(name, 1) for name in ("one", "two", "three")]
    run(tmp_path / "run", works, until="two")
    assert [work.calls for work in works] == [1, 1, 0]
    run(tmp_path / "run", works, until="one")
    run(tmp_path / "run", works)
    assert [work.calls for work in works] == [1, 1, 1]
    with pytest.raises(LineageError, match="no stage 'four': expected one of one, two, three"):
        require_stage("four", [work.stage for work in works])


def test_a_stage_that_the_recipe_has_no_more_is_refused(tmp_path) -> None:
    works = [Work(name, 1) for name in ("one", "two")]
    run(tmp_path / "run", works)
    with pytest.raises(LineageError, match="begun stage two"):
        run(tmp_path / "run", works[:1])


@pytest.mark.parametrize(
    "text", ["{", "[]", "{}", '{"stages": {"x": {"y": 1}}, "compute": {}}', '{"stages": {}, "compute": 3}']
)
def test_a_damaged_lineage_is_one_line(text, tmp_path) -> None:
    file = tmp_path / "lineage.json"
    file.write_text(text)
    with pytest.raises(LineageError, match="damaged") as caught:
        LineageState.load(file)
    assert "\n" not in str(caught.value)
    assert str(file) in str(caught.value)


def test_the_probe_is_asked_once_in_the_life_of_a_run(tmp_path) -> None:
    work = Work("one", 1)
    first = run(tmp_path / "run", [work]).compute()
    other = RECIPE.model_copy(update={"compute": RECIPE.compute.model_copy(update={"threads": 2})})
    assert run(tmp_path / "run", [work], other).compute() == first
    assert json.loads((tmp_path / "run/lineage.json").read_text())["compute"]["dtype_name"] == "float32"


def test_one_driver_per_folder(tmp_path) -> None:
    root = tmp_path / "run"
    with sole_driver(root, root / "lock"):
        assert root.stat().st_mode & 0o777 == 0o700
        with (
            pytest.raises(LineageError, match=rf"another run \(process {os.getpid()}\) is working in"),
            sole_driver(root, root / "lock"),
        ):
            pass
    with sole_driver(root, root / "lock"):
        pass
