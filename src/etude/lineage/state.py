"""lineage.json: which stages of a run are done, from which inputs and by which code.

A finished stage never runs again. If the stage's part of the recipe has changed since, the run is refused. So all
results of a run come from the recipe.toml in its folder.
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
from etude.recipe.recipe import TRAINING

MODELS = ("rl", "continued", "sft", "mtp", "long", "pretrain", "base")
"""The stages that produce a model, latest first."""


class LineageError(Exception):
    """The run cannot go on. The message is one line that says why and what to do."""


@dataclass(slots=True)
class StageRecord:
    recipe_digest: str
    code_digest: str
    started: float
    seconds: float = 0.0
    """Wall-clock seconds spent on the stage, over all sessions."""
    sessions: int = 0
    """Number of starts of the run that worked on the stage."""
    done: bool = False
    inputs: dict[str, str] = field(default_factory=dict)
    """Digests of the outputs that the stage read at its last start, by name of the stage that made them."""
    output: str = ""
    """Digest of the files that the stage left for later stages."""
    result: dict[str, Any] = field(default_factory=dict)
    taken_from: str = ""
    """The run that the stage was taken over from, relative to this run's folder, or empty. All other fields but
    recipe_digest are then copied from that run's record."""


@dataclass(slots=True)
class LineageState:
    """The contents of lineage.json."""

    stages: dict[str, StageRecord] = field(default_factory=dict)
    compute: dict[str, Any] = field(default_factory=dict)
    """Device, dtype and threads as chosen at the first start, kept so that a resumed run computes the same bits."""

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
    """A finished stage that produced a model."""

    paths: RunPaths
    stage: str
    recipe: Recipe
    """The run's recipe, with the number formats that this stage used (see `recipe_of`)."""

    @property
    def model(self) -> Path:
        return self.paths.model(self.stage)


def finished_stage(run: Path, asked: str | None = None, stages: Sequence[str] = MODELS) -> Finished:
    """Return the finished stage that has the name `asked`. If that is None, return the first of `stages` that has a
    finished model."""
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
    compute = LineageState.load(paths.lineage).compute
    if "dtype_name" not in compute:
        raise LineageError(
            f"{paths.lineage} does not say in which dtype the run computes (compute.dtype_name): restore the file, "
            "or repeat this run's `etude run` command"
        )
    return str(compute["dtype_name"])


def recipe_of(recipe: Recipe, stage: str) -> Recipe:
    """Return the recipe as one stage uses it: stages before `precision.since` round nothing."""
    if stage in ("base", *TRAINING[: TRAINING.index(recipe.precision.since)]):
        return recipe.model_copy(update={"precision": PrecisionRecipe()})
    return recipe


def is_digest_of(digest: str, recipe: Recipe, sections: Sequence[str]) -> bool:
    """Whether a recorded digest is that of the recipe's parts, computed as now or as in earlier versions."""
    return any(digest == recipe_digest(recipe, sections, earlier=earlier) for earlier in (False, True))


def recipe_digest(recipe: Recipe, sections: Sequence[str], *, earlier: bool = False) -> str:
    """Return the digest of the recipe's parts that a stage depends on: whole sections or single fields ("rl.steps").
    `earlier` is that of `Section.made_from`."""
    values = recipe.made_from(earlier=earlier)
    parts = {name: _at(values, name) for name in sections if name in values or name not in recipe.LATER}
    return _digest(parts | {"seed": recipe.seed})


def output_digest(root: Path, outputs: Sequence[str]) -> str:
    """Return a digest of the names and bytes of all files in `outputs`, which are files and folders below `root`."""
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
