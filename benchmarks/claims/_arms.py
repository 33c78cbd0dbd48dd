"""An arm is a recipe; with a seed it is a run, in a folder that its recipe's digest names.

So arms whose recipes are equal share one run, whatever claim they belong to, and arms that differ late share what comes
before: each run takes over from the others every stage that would come out the same.
"""

from __future__ import annotations

import hashlib
import json
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from _rows import ROOT, Row, Rows

from etude.journal import RunPaths
from etude.recipe import Recipe, load_recipe
from etude.sandbox.inside import kernel

RECIPES = ROOT / "recipes" / "claims"


class RunFailed(Exception):
    """A run ended with an error of its own, which it has told."""


def nothing(rows: Rows, seed: int) -> list[str] | None:
    return []


@dataclass(frozen=True, slots=True)
class Arm:
    name: str
    recipe: str
    """A file of recipes/claims."""
    overrides: Callable[[Rows, int], list[str] | None] = nothing
    """What it takes from the rows of other arms of this seed; None while those are missing."""


@dataclass(frozen=True, slots=True)
class Run:
    """One arm with one seed."""

    arm: Arm
    seed: int
    recipe: Recipe
    digest: str
    overrides: tuple[str, ...]

    @property
    def name(self) -> str:
        return f"{Path(self.arm.recipe).stem}-{self.seed}-{self.digest}"

    def folder(self, runs: Path) -> RunPaths:
        return RunPaths(runs / self.name)

    def made(self, row: Row) -> bool:
        """Whether this is what the row tells of, by the recipe as it is now."""
        same = (row.arm, row.seed) == (self.arm.name, self.seed)
        return same and _still_says(row.recipe, settings_of(self.recipe), settings_of(Recipe(name="defaults")))

    def go(self, runs: Path, until: str) -> None:
        """Runs the stages that are missing; interrupted, the same call goes on."""
        runs.mkdir(parents=True, exist_ok=True)
        etude = [sys.executable, "-m", "etude.cli.main", "run", str(RECIPES / self.arm.recipe), *self.overrides]
        places = ["--runs", str(runs), "--name", self.name, "--reuse", str(runs), "--until", until]
        if code := _wait_for([*etude, *places]):
            raise RunFailed(f"it ended with exit code {code}; what it was is in {runs / self.name}")


def run_of(arm: Arm, seed: int, rows: Rows, changes: Sequence[str] = ()) -> Run | None:
    """`changes` hold for all arms alike. None while the arm waits for another one's row."""
    own = arm.overrides(rows, seed)
    if own is None:
        return None
    overrides = (*changes, *own, f"seed={seed}")
    recipe = load_recipe(RECIPES / arm.recipe, overrides)
    return Run(arm, seed, recipe, _digest(recipe), overrides)


def settings_of(recipe: Recipe) -> dict[str, Any]:
    """Everything that can change a result."""
    return recipe.model_dump(mode="json", by_alias=True, exclude={"name", "cluster"})


def _digest(recipe: Recipe) -> str:
    return hashlib.sha256(json.dumps(settings_of(recipe), sort_keys=True).encode()).hexdigest()[:12]


def _still_says(then: Any, now: Any, default: Any) -> bool:
    """Whether a recipe says what it said then. What is new since in all recipes must be at its default, which stands
    for what was before; so hours of rows outlive a field that they do not speak of."""
    if not isinstance(then, dict) or not isinstance(now, dict):
        return bool(then == now)
    default = default if isinstance(default, dict) else {}
    return then.keys() <= now.keys() and all(
        _still_says(then[name], value, default.get(name)) if name in then else value == default.get(name)
        for name, value in now.items()
    )


def _wait_for(command: Sequence[str]) -> int:
    """In a process group of its own, so that Ctrl-C reaches it once, from here, and it ends in order. Should this
    process die unasked, the kernel asks it."""
    child = subprocess.Popen(command, stdout=sys.stderr, process_group=0, preexec_fn=_end_with_parent)
    try:
        return child.wait()
    except KeyboardInterrupt:
        child.send_signal(signal.SIGTERM)
        child.wait()
        raise


def _end_with_parent() -> None:
    kernel.prctl(kernel.PR_SET_PDEATHSIG, signal.SIGTERM)
