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
        return (row.arm, row.seed, row.recipe) == (self.arm.name, self.seed, self.digest)

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


def _digest(recipe: Recipe) -> str:
    """Of everything that can change a result."""
    values = recipe.model_dump(mode="json", by_alias=True, exclude={"name", "cluster"})
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()[:12]


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
