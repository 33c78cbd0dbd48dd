"""Takes a finished stage over from another run (the donor) if this run would produce the same.

Invariant: a stage is taken only if the donor finished it from inputs with the same digests, and if the files that it
left still have their recorded digest. The two recipes must agree in the seed and in all parts that the stage, or a
stage it depends on, uses. Where the stage depends on the compute settings, these must be the same too.

Files are first collected in a temporary folder, then moved into place. The record is written last, so a stage that was
taken only in part counts as not done. The record keeps the digest of the code that made the stage.
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
    is_digest_of,
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
    """The run's recipe; None if this version of Étude cannot read it."""

    def says_of_compute(self, ours: Recipe) -> Recipe:
        """Return our recipe in the form whose digest can be compared with that of the donor's recipe. The donor's
        compute section may leave the dtype to a probe, while ours names the dtype that this probe chose. If they differ
        only in this, the donor's section replaces ours."""
        dtype = self.state.compute.get("dtype_name")
        if self.recipe is None or dtype is None:
            return ours
        said = self.recipe.compute
        found = said.model_copy(update={"dtype": dtype})
        return ours.model_copy(update={"compute": said}) if ours.compute == found else ours


def find_donors(folder: Path, own: Path) -> list[Donor]:
    """Return the run in `folder`, or else all runs in its subfolders, but not `own`, the run that takes the stages."""
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
    """Takes finished stages over from other runs that the user named (--reuse)."""

    def __init__(self, stages: Sequence[Stage], donors: Sequence[Donor]) -> None:
        self._stages = {stage.name: stage for stage in stages}
        self._donors = donors

    def adopt_compute(self, context: RunContext) -> None:
        """If this run has no compute settings yet, adopt those of the first donor whose recipe has the same compute
        section. A new probe might choose another dtype, and then no trained stage of a donor could be taken."""
        if context.state.compute:
            return
        for donor in self._donors:
            asked = donor.says_of_compute(context.recipe).compute
            if donor.state.compute and donor.recipe is not None and donor.recipe.compute == asked:
                context.state.compute = dict(donor.state.compute)
                context.save_state()
                return

    def take(self, context: RunContext, stage: Stage) -> StageRecord | None:
        """Put the files that a fitting donor has of the stage into this run's folder, and return the stage's record. If
        no donor fits, show why the closest does not, and return None."""
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
        # The donor may have taken the stage over itself. The record names the donor, since the first maker may be gone.
        own = recipe_digest(recipe_of(context.recipe, stage.name), stage.sections)
        return replace(found, taken_from=source, recipe_digest=own)

    def _unlike(self, context: RunContext, stage: Stage, donor: Donor) -> tuple[int, str] | None:
        """Return None if the donor made the stage exactly as this run would. Otherwise return how close the donor is
        (higher is closer) and why it differs."""
        name = donor.paths.root.name
        record = donor.state.stages.get(stage.name)
        if record is None or not record.done:
            return 0, "no run there has done it"
        asked = donor.says_of_compute(context.recipe)
        for needed in self._closure(stage):
            theirs = donor.state.stages.get(needed.name)
            own = recipe_of(asked, needed.name)
            if theirs is None or not is_digest_of(theirs.recipe_digest, own, needed.sections):
                return 1, f"{name} differs in {', '.join(needed.sections)} or seed"
        ours = {need: context.state.stages[need].output for need in stage.needs}
        if differing := [need for need, output in ours.items() if record.inputs.get(need) != output]:
            return 2, f"{name} made it from another output of {', '.join(differing)}"
        if "compute" in stage.sections and _computing(donor.state) != _computing(context.state):
            return 3, f"{name} used other compute settings, such as dtype or threads"
        return None

    def _closure(self, stage: Stage) -> Iterator[Stage]:
        """Yield the stages that `stage` depends on, directly or not, then `stage` itself."""
        for need in stage.needs:
            yield from self._closure(self._stages[need])
        yield stage


def _computing(state: LineageState) -> dict[str, Any]:
    """Return the compute settings that results depend on: all but `reason`, which may contain measured speeds."""
    return {name: value for name, value in state.compute.items() if name != "reason"}


def _recipe_of(paths: RunPaths) -> Recipe | None:
    try:
        return load_recipe(paths.recipe)
    except RecipeError:
        return None


def _place(root: Path, stage: Stage, donor: Donor) -> tuple[int, str] | None:
    """Link the donor's files of the stage into `root`, and return None. If they no longer have their recorded digest,
    leave `root` unchanged. Then return how close the donor comes to fitting (a higher number is closer), and why it
    does not fit."""
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
    """Hard-link a file, or copy it if that fails. Sharing is safe: finished files are replaced, never modified."""
    try:
        os.link(source, target)
    except OSError:  # another file system, or one without hard links
        shutil.copy2(source, target)
