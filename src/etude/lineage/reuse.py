"""Taking a stage over from another run, where it would come out the same.

Invariant: a stage is taken only if that run has finished it, and every stage that it stands on, from equal parts of the
recipe (the seed among them), from inputs of equal digest, and on equal compute; and only if the files still have the
digest that is on record. They are put together aside, moved into place whole, and the record is written last: a stage
that was taken by half is simply not done. The record keeps the digest of the code that made the stage.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from etude.journal import RunPaths, code_digest
from etude.lineage.context import RunContext
from etude.lineage.line import Stage
from etude.lineage.state import (
    LineageError,
    LineageState,
    StageRecord,
    output_digest,
    recipe_digest,
    recipe_of,
)
from etude.recipe import Recipe, RecipeError, load_recipe

_ASIDE = ".taking"


@dataclass(frozen=True, slots=True)
class Donor:
    """A run whose stages may be taken over."""

    paths: RunPaths
    state: LineageState
    recipe: Recipe | None
    """None by another version, which fits nothing."""

    def says_of_compute(self, ours: Recipe) -> Recipe:
        """Our recipe in this run's words, if what we ask for is what it says, or what its probe found."""
        dtype = self.state.compute.get("dtype_name")
        if self.recipe is None or dtype is None:
            return ours
        said = self.recipe.compute
        found = said.model_copy(update={"dtype": dtype})
        return ours.model_copy(update={"compute": said}) if ours.compute == found else ours


def find_donors(folder: Path, own: Path) -> list[Donor]:
    """`folder` is a run's, or one that run folders lie in; the run that asks is left out."""
    if not folder.is_dir():
        raise LineageError(f"{folder} is no folder: expected a run, or a folder of runs, to take stages over from")
    roots = [folder] if (folder / "lineage.json").is_file() else sorted(p.parent for p in folder.glob("*/lineage.json"))
    own = own.resolve()
    return [
        Donor(paths, LineageState.load(paths.lineage), _recipe_of(paths))
        for root in roots
        if (paths := RunPaths(root.resolve())).root != own
    ]


class Reuse:
    """Answers `run_line` when it asks for a stage."""

    def __init__(self, stages: Sequence[Stage], donors: Sequence[Donor]) -> None:
        self._stages = {stage.name: stage for stage in stages}
        self._donors = donors

    def adopt_compute(self, context: RunContext) -> None:
        """A run that has computed nothing yet computes as the first donor that does what its recipe asks for: a probe
        of its own might choose otherwise, and then nothing trained could be taken."""
        if context.state.compute:
            return
        for donor in self._donors:
            asked = donor.says_of_compute(context.recipe).compute
            if donor.state.compute and donor.recipe is not None and donor.recipe.compute == asked:
                context.state.compute = dict(donor.state.compute)
                context.save_state()
                return

    def take(self, context: RunContext, stage: Stage) -> StageRecord | None:
        """Puts the stage's files in place; None, and a line that says why, where no run has it as it would come out."""
        if not self._donors:
            return None
        closest = (0, "no run there has done it")
        for donor in self._donors:
            reason = self._unlike(context, stage, donor)
            if reason is None:
                reason = _place(context.paths.root, stage, donor)
            if reason is None:
                return self._taken(context, stage, donor)
            closest = max(closest, reason)
        context.screen.say(f"{stage.title:<17} made anew: {closest[1]}")
        return None

    def _taken(self, context: RunContext, stage: Stage, donor: Donor) -> StageRecord:
        source = os.path.relpath(donor.paths.root, context.paths.root)
        found = donor.state.stages[stage.name]
        other = "" if found.code_digest == code_digest() else f", made by other code ({found.code_digest})"
        context.screen.say(f"{stage.title:<17} taken over from {donor.paths.root.name}{other}")
        # Where that run had taken it over itself, its maker is nearer to the truth, but may be gone.
        own = recipe_digest(recipe_of(context.recipe, stage.name), stage.sections)
        return replace(found, taken_from=source, recipe_digest=own)

    def _unlike(self, context: RunContext, stage: Stage, donor: Donor) -> tuple[int, str] | None:
        """None where the donor's is what would come out here; else why not, the closer the higher the number."""
        name = donor.paths.root.name
        record = donor.state.stages.get(stage.name)
        if record is None or not record.done:
            return 0, "no run there has done it"
        asked = donor.says_of_compute(context.recipe)
        for needed in self._closure(stage):
            theirs = donor.state.stages.get(needed.name)
            if theirs is None or theirs.recipe_digest != recipe_digest(recipe_of(asked, needed.name), needed.sections):
                return 1, f"{name} differs in {', '.join(needed.sections)} or seed"
        ours = {need: context.state.stages[need].output for need in stage.needs}
        if differing := [need for need, output in ours.items() if record.inputs.get(need) != output]:
            return 2, f"{name} made it from another output of {', '.join(differing)}"
        if "compute" in stage.sections and _computing(donor.state) != _computing(context.state):
            return 3, f"{name} computed otherwise"
        return None

    def _closure(self, stage: Stage) -> Iterator[Stage]:
        """What it stands on, then itself."""
        for need in stage.needs:
            yield from self._closure(self._stages[need])
        yield stage


def _computing(state: LineageState) -> dict[str, Any]:
    """What results depend on: the probe's reason speaks of its own seconds, which are never twice the same."""
    return {name: value for name, value in state.compute.items() if name != "reason"}


def _recipe_of(paths: RunPaths) -> Recipe | None:
    try:
        return load_recipe(paths.recipe)
    except RecipeError:
        return None


def _place(root: Path, stage: Stage, donor: Donor) -> tuple[int, str] | None:
    """Links the stage's files into `root`, checked; says what is wrong with them where they are not as on record."""
    aside = root / _ASIDE
    shutil.rmtree(aside, ignore_errors=True)
    source = donor.paths.root
    found = [path for pattern in (*stage.outputs, *stage.beside) for path in sorted(source.glob(pattern))]
    pieces = list(dict.fromkeys(path.relative_to(source) for path in found))
    try:
        for piece in pieces:
            _link(source / piece, aside / piece)
        if output_digest(aside, stage.outputs) != donor.state.stages[stage.name].output:
            return 4, f"its files in {source.name} have changed since they were made"
        for piece in pieces:
            target = root / piece
            if target.is_dir():
                shutil.rmtree(target)
            target.parent.mkdir(parents=True, exist_ok=True)
            (aside / piece).replace(target)
    finally:
        shutil.rmtree(aside, ignore_errors=True)
    return None


def _link(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    if source.is_dir():
        shutil.copytree(source, target, copy_function=_link_or_copy)
    else:
        _link_or_copy(str(source), str(target))


def _link_or_copy(source: str, target: str) -> None:
    """Finished files are never written again, only replaced, so two runs may share them."""
    try:
        os.link(source, target)
    except OSError:  # another file system, or one without hard links
        shutil.copy2(source, target)
