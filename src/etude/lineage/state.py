"""lineage.json: which stages of a run are done, from what inputs, by which code.

A stage that is done is never done again; one whose part of the recipe has changed since is refused, by name, so that a
lineage is always the product of the recipe beside it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from etude.journal import RunPaths, write_atomically
from etude.recipe import Recipe, load_recipe
from etude.recipe.precision import PrecisionRecipe

MODELS = ("rl", "continued", "sft", "mtp", "long", "pretrain")
"""The stages that leave a model, the latest first."""


class LineageError(Exception):
    """The run cannot go on: one line that says why and what to do."""


@dataclass(slots=True)
class StageRecord:
    recipe_digest: str
    code_digest: str
    started: float
    seconds: float = 0.0
    """Wall-clock, over all the sessions that worked on the stage."""
    sessions: int = 0
    """More than one if the stage was interrupted and resumed."""
    done: bool = False
    inputs: dict[str, str] = field(default_factory=dict)
    """The output digests of the stages that it needs, as it found them."""
    output: str = ""
    """A digest of the files that it left for later stages."""
    result: dict[str, Any] = field(default_factory=dict)
    taken_from: str = ""
    """The run that made it, as a path from this run's folder, where it was taken over: all else here is then that
    run's own record."""


@dataclass(slots=True)
class LineageState:
    stages: dict[str, StageRecord] = field(default_factory=dict)
    compute: dict[str, Any] = field(default_factory=dict)
    """What the probe chose at the start: kept, so that a resumed run computes the same bits."""

    @classmethod
    def load(cls, path: Path) -> LineageState:
        if not path.exists():
            return cls()
        try:
            values = json.loads(path.read_text(encoding="utf-8"))
            stages = {name: StageRecord(**record) for name, record in values["stages"].items()}
            return cls(stages, dict(values["compute"]))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise LineageError(f"{path} is damaged ({error}); restore it, or start in another folder") from error

    def save(self, path: Path) -> None:
        write_atomically(path, json.dumps(asdict(self), indent=1).encode())


@dataclass(frozen=True, slots=True)
class Finished:
    """A stage that is done, and has left a model."""

    paths: RunPaths
    stage: str
    recipe: Recipe
    """As it is for this stage."""

    @property
    def model(self) -> Path:
        return self.paths.model(self.stage)


def finished_stage(run: Path, asked: str | None = None, stages: Sequence[str] = MODELS) -> Finished:
    """The stage that is asked for, else the first of `stages` that has left a model."""
    paths = RunPaths(run)
    if not paths.recipe.is_file():
        raise LineageError(f"{run} is not a run folder: it has no recipe.toml; train one with `etude run`")
    if asked is not None and asked not in stages:
        raise LineageError(f"there is no stage {asked!r}: expected one of {', '.join(stages)}")
    for stage in stages if asked is None else (asked,):
        if paths.model(stage).exists():
            return Finished(paths, stage, recipe_of(load_recipe(paths.recipe), stage))
    which = asked or f"{', '.join(stages[:-1])} or {stages[-1]}"
    raise LineageError(f"{run} has no finished model of stage {which} yet")


def dtype_of(paths: RunPaths) -> str:
    """The dtype that a run computes in, by its name."""
    compute = LineageState.load(paths.lineage).compute
    if "dtype_name" not in compute:
        raise LineageError(
            f"{paths.lineage} does not say in which dtype the run computes (compute.dtype_name): restore the file, or "
            "give the `etude run` command of this run again"
        )
    return str(compute["dtype_name"])


def recipe_of(recipe: Recipe, stage: str) -> Recipe:
    """As it is for one stage: before `precision.since` nothing is rounded."""
    order = ("pretrain", "long", "mtp", "sft", "rl")
    if stage in order[: order.index(recipe.precision.since)]:
        return recipe.model_copy(update={"precision": PrecisionRecipe()})
    return recipe


def recipe_digest(recipe: Recipe, sections: Sequence[str]) -> str:
    """A digest of the parts of the recipe that a stage depends on: whole sections, or single fields ("rl.steps")."""
    values = recipe.made_from()
    parts = {name: _at(values, name) for name in sections if name in values or name not in recipe.LATER}
    return _digest(parts | {"seed": recipe.seed})


def output_digest(root: Path, outputs: Sequence[str]) -> str:
    """A digest of the names and bytes of every file of these outputs."""
    whole = hashlib.sha256()
    for output in outputs:
        place = root / output
        for file in sorted(place.rglob("*")) if place.is_dir() else [place]:
            if file.is_file():
                whole.update(f"{file.relative_to(root)}\0{file.stat().st_size}\0".encode())
                with file.open("rb") as data:
                    while part := data.read(1 << 20):
                        whole.update(part)
    return whole.hexdigest()[:16]


def _at(values: Mapping[str, Any], place: str) -> Any:
    found: Any = values
    for name in place.split("."):
        found = found[name]
    return found


def _digest(values: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()[:16]
