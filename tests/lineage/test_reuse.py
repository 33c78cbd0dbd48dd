"""Stages taken over from other runs: only where they would come out the same, whole, their origin on record."""

from __future__ import annotations

import asyncio
import io
import shutil
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.lineage.contexts import open_context

from etude.journal import RunPaths, read_journal
from etude.lineage import LineageError, LineageState, Reuse, Stage, find_donors, run_line
from etude.lineage import reuse as room
from etude.lineage.context import RunContext
from etude.lineage.line import require_unchanged
from etude.lineage.stages import stages_of
from etude.recipe import Recipe, save_recipe

RECIPE = Recipe.model_validate({"name": "r", "compute": {"dtype": "float32", "threads": 1}})


class Made:
    """Four stages in a diamond: two stand on the first, the last on both; each writes what its section says."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.line = (
            self.stage("root", "tasks", ()),
            self.stage("left", "corpus", ("root",)),
            self.stage("right", "sft", ("root",)),
            self.stage("end", "rl", ("left", "right")),
        )

    def stage(self, name: str, section: str, needs: tuple[str, ...]) -> Stage:
        async def run(context: RunContext) -> dict[str, int]:
            self.calls.append(name)
            folder = context.paths.root / name
            folder.mkdir(exist_ok=True)
            read = "".join((context.paths.root / need / "out.txt").read_text() for need in needs)
            (folder / "out.txt").write_text(f"{name}({read}{getattr(context.recipe, section)!r})")
            (context.paths.root / f"{name}.metrics").write_text("1\n")
            return {"made": 1}

        return Stage(name, name, (section,), (name,), run, needs=needs, beside=(f"{name}.metr*",))


def changed(**sections: dict[str, object]) -> Recipe:
    return Recipe.model_validate(RECIPE.model_dump(mode="json", by_alias=True) | sections)


def run(root: Path, recipe: Recipe = RECIPE, reuse: Path | None = None, until: str | None = None) -> tuple[Made, str]:
    made, shown = Made(), io.StringIO()
    context = open_context(root, recipe, shown)
    save_recipe(recipe, context.paths.recipe)
    donors = Reuse(made.line, find_donors(reuse, root) if reuse else ())
    donors.adopt_compute(context)
    try:
        asyncio.run(run_line(context, made.line, donors.take, until))
    finally:
        context.journal.close()
    return made, shown.getvalue()


def stages(root: Path) -> dict:
    return LineageState.load(RunPaths(root).lineage).stages


def test_all_of_it_is_taken_from_an_equal_run(tmp_path) -> None:
    run(tmp_path / "a")
    made, shown = run(tmp_path / "b", reuse=tmp_path / "a")
    assert made.calls == []
    assert shown.count("taken over from a") == 4
    theirs, ours = stages(tmp_path / "a"), stages(tmp_path / "b")
    for name, record in ours.items():
        assert record.taken_from == "../a"
        record.taken_from = ""
        assert record == theirs[name], "its digests, seconds and code are its maker's"
        assert (tmp_path / "b" / f"{name}.metrics").exists()
        assert (tmp_path / "b" / name / "out.txt").samefile(tmp_path / "a" / name / "out.txt")
    told = [e.fields["stage"] for e in read_journal(tmp_path / "b/journal", kind="stage_taken")]
    assert told == ["root", "left", "right", "end"]
    shutil.rmtree(tmp_path / "a")
    assert (tmp_path / "b/end/out.txt").read_text().startswith("end(left(root(")


@pytest.mark.parametrize(
    ("changes", "anew"),
    [
        ({"rl": {"steps": 3}}, ["end"]),
        ({"corpus": {"generated_documents": 9}}, ["left", "end"]),
        ({"tasks": {"train": 9}}, ["root", "left", "right", "end"]),
        ({"seed": 2}, ["root", "left", "right", "end"]),
        ({"cluster": {"restarts": 9}}, []),
    ],
)
def test_what_would_come_out_otherwise_is_made_anew_and_said(changes, anew, tmp_path) -> None:
    run(tmp_path / "a")
    made, shown = run(tmp_path / "b", changed(**changes), reuse=tmp_path / "a")
    assert made.calls == anew
    assert shown.count("made anew: ") == len(anew)
    fresh, _ = run(tmp_path / "fresh", changed(**changes))
    assert len(fresh.calls) == 4
    for name in ("root", "left", "right", "end"):
        assert (tmp_path / "b" / name / "out.txt").read_text() == (tmp_path / "fresh" / name / "out.txt").read_text()
        assert (stages(tmp_path / "b")[name].taken_from == "") == (name in anew)


def test_an_equal_part_of_the_recipe_is_not_enough(tmp_path) -> None:
    """`right` has an equal recipe, but stands on another root."""
    run(tmp_path / "a")
    other = changed(tasks={"train": 9})
    run(tmp_path / "b", other, until="left")
    made, shown = run(tmp_path / "b", other, reuse=tmp_path / "a")
    assert made.calls == ["right", "end"]
    assert "right             made anew: a differs in tasks or seed" in shown


def test_equal_recipes_with_other_bytes_below_are_not_mixed(tmp_path) -> None:
    run(tmp_path / "a")
    run(tmp_path / "b", until="root")
    state = LineageState.load(RunPaths(tmp_path / "b").lineage)
    state.stages["root"].output = "0123456789abcdef"
    state.save(RunPaths(tmp_path / "b").lineage)
    made, shown = run(tmp_path / "b", reuse=tmp_path / "a")
    assert made.calls == ["left", "right"], "what they left has the same bytes, so the end may be taken again"
    assert "a made it from another output of root" in shown


def test_a_folder_of_runs_gives_each_stage_from_whichever_has_it(tmp_path) -> None:
    run(tmp_path / "runs/a", changed(rl={"steps": 3}), until="right")
    run(tmp_path / "runs/b", changed(corpus={"generated_documents": 9}))
    mixed = changed(corpus={"generated_documents": 9}, rl={"steps": 3})
    made, shown = run(tmp_path / "runs/c", mixed, reuse=tmp_path / "runs")
    assert made.calls == ["end"]
    assert "root              taken over from a" in shown
    assert "left              taken over from b" in shown
    again, _ = run(tmp_path / "runs/c", mixed, reuse=tmp_path / "runs")
    assert again.calls == []


def test_files_that_have_changed_since_are_not_taken(tmp_path) -> None:
    run(tmp_path / "a")
    (tmp_path / "a/left/out.txt").write_text("touched")
    made, shown = run(tmp_path / "b", reuse=tmp_path / "a")
    assert made.calls == ["left"], "and what stands on it is still as it was: the bytes came out the same"
    assert "its files in a have changed since they were made" in shown


def test_what_a_probe_chose_is_taken_along(tmp_path, monkeypatch) -> None:
    free = changed(compute={"dtype": "float32", "threads": 0})
    run(tmp_path / "a", free)
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(64)))
    run(tmp_path / "b", free, reuse=tmp_path / "a")
    assert LineageState.load(RunPaths(tmp_path / "b").lineage).compute["threads"] < 64
    run(tmp_path / "c", changed(compute={"dtype": "float32", "threads": 3}), reuse=tmp_path / "a")
    assert LineageState.load(RunPaths(tmp_path / "c").lineage).compute["threads"] == 3


def computed(root: Path, dtype: str, found: str, reuse: Path | None = None) -> tuple[list[str], LineageState]:
    """A run whose stages depend on compute; `found` is what a probe finds there."""
    made, recipe = Made(), changed(compute={"dtype": dtype, "threads": 1})
    line = tuple(replace(stage, sections=(*stage.sections, "compute")) for stage in made.line)
    context = open_context(root, recipe)
    save_recipe(recipe, context.paths.recipe)
    require_unchanged(recipe, context.state, line)
    donors = Reuse(line, find_donors(reuse, root) if reuse else ())
    donors.adopt_compute(context)
    if not context.state.compute:
        context.state.compute = {"device": "cpu", "dtype_name": found, "threads": 1, "reason": "a probe"}
    asyncio.run(run_line(context, line, donors.take))
    context.journal.close()
    return made.calls, LineageState.load(context.paths.lineage)


def test_what_a_probe_found_is_what_another_run_asks_for(tmp_path) -> None:
    """Whether a recipe names the dtype or leaves it to the machine: what was computed in it is the same."""
    every = ["root", "left", "right", "end"]
    assert computed(tmp_path / "a", "auto", "float32")[0] == every
    calls, state = computed(tmp_path / "b", "float32", "", tmp_path / "a")
    assert (calls, state.compute["dtype_name"]) == ([], "float32")
    assert computed(tmp_path / "b", "float32", "")[0] == [], "and it goes on as a run of its own recipe"
    assert computed(tmp_path / "c", "bfloat16", "bfloat16", tmp_path / "a")[0] == every
    assert computed(tmp_path / "d", "auto", "", tmp_path / "a")[0] == []


def test_a_run_that_computed_otherwise_gives_nothing_that_was_computed(tmp_path) -> None:
    computed(tmp_path / "a", "auto", "float32")
    for name, threads, anew in (("b", 64, 4), ("c", 1, 0)):
        chosen = {"device": "cpu", "dtype_name": "float32", "threads": threads, "reason": "other figures"}
        (tmp_path / name).mkdir()
        LineageState(compute=chosen).save(RunPaths(tmp_path / name).lineage)
        assert len(computed(tmp_path / name, "auto", "", tmp_path / "a")[0]) == anew


class Killed(BaseException):
    pass


@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(after=st.integers(0, 16))
def test_killed_anywhere_while_taking_it_ends_as_if_it_had_not_been(after, tmp_path, monkeypatch) -> None:
    if not (tmp_path / "a").exists():  # Whoever takes from a run leaves it as it was.
        run(tmp_path / "a")
    shutil.rmtree(tmp_path / "b", ignore_errors=True)
    left = after

    def count(kind):
        def step(*args, **kwargs):
            nonlocal left
            if left == 0:
                left = -1
                raise Killed
            left -= 1
            return kind(*args, **kwargs)

        return step

    with monkeypatch.context() as patched:
        patched.setattr(room, "_link_or_copy", count(room._link_or_copy))
        patched.setattr(Path, "replace", count(Path.replace))
        with suppress(Killed):
            run(tmp_path / "b", reuse=tmp_path / "a")
    for name, record in stages(tmp_path / "b").items():
        assert record.done
        assert record.output == room.output_digest(tmp_path / "b", [name]), "what is on record is whole"
    made, _ = run(tmp_path / "b", reuse=tmp_path / "a")
    assert made.calls == []
    assert not (tmp_path / "b/.taking").exists()
    for name in ("root", "left", "right", "end"):
        assert (tmp_path / "b" / name / "out.txt").read_text() == (tmp_path / "a" / name / "out.txt").read_text()


def test_a_file_system_without_links_gets_copies(tmp_path, monkeypatch) -> None:
    run(tmp_path / "a")

    def refuse(*_: object) -> None:
        raise OSError("no links here")

    monkeypatch.setattr("os.link", refuse)
    made, _ = run(tmp_path / "b", reuse=tmp_path / "a")
    assert made.calls == []
    assert not (tmp_path / "b/end/out.txt").samefile(tmp_path / "a/end/out.txt")


def test_a_place_that_is_no_folder_is_one_line(tmp_path) -> None:
    with pytest.raises(LineageError, match="no folder: expected a run"):
        find_donors(tmp_path / "nowhere", tmp_path)
    assert find_donors(tmp_path, tmp_path / "own") == []


def test_what_a_stage_leaves_lies_where_it_says() -> None:
    """Every output and pattern is a place inside of the run."""
    for stage in stages_of(RECIPE):
        assert stage.outputs
        for place in (*stage.outputs, *stage.beside):
            assert not Path(place).is_absolute()
            assert ".." not in place
