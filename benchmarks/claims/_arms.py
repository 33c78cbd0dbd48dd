"""The arms of a claim. An arm is a recipe; an arm with a seed is a run, whose folder is named by the recipe's digest.

Arms with equal recipes therefore share one run, whichever claim they belong to. Runs whose recipes differ only in later
stages share the earlier ones: each run takes over from the others every stage that would come out the same.
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
    """A run ended with an error, which it has printed itself."""


def nothing(rows: Rows, seed: int) -> list[str] | None:
    """No overrides: the default of `Arm.overrides`."""
    return []


@dataclass(frozen=True, slots=True)
class Arm:
    name: str
    recipe: str
    """A file in recipes/claims."""
    overrides: Callable[[Rows, int], list[str] | None] = nothing
    """Recipe overrides that depend on rows of other arms with this seed; returns None while those rows are missing."""


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
        """Whether the row was measured on this run: same arm and seed, and a recipe that still means the same."""
        same = (row.arm, row.seed) == (self.arm.name, self.seed)
        return same and _still_says(row.recipe, settings_of(self.recipe), settings_of(Recipe(name="defaults")))

    def go(self, runs: Path, until: str) -> None:
        """Run the missing stages up to `until`. After an interruption the same call resumes."""
        runs.mkdir(parents=True, exist_ok=True)
        etude = [sys.executable, "-m", "etude.cli.main", "run", str(RECIPES / self.arm.recipe), *self.overrides]
        places = ["--runs", str(runs), "--name", self.name, "--reuse", str(runs), "--until", until]
        if code := _wait_for([*etude, *places]):
            raise RunFailed(f"it ended with exit code {code}; its error is above, its journal in {runs / self.name}")


def run_of(arm: Arm, seed: int, rows: Rows, changes: Sequence[str] = ()) -> Run | None:
    """Return the run of an arm with a seed, or None while the arm needs another arm's missing row.

    `changes`: recipe overrides for all arms alike."""
    own = arm.overrides(rows, seed)
    if own is None:
        return None
    overrides = (*changes, *own, f"seed={seed}")
    recipe = load_recipe(RECIPES / arm.recipe, overrides)
    return Run(arm, seed, recipe, _digest(recipe), overrides)


def settings_of(recipe: Recipe) -> dict[str, Any]:
    """The parts of a recipe that can change a result: all but its name and the cluster."""
    return recipe.model_dump(mode="json", by_alias=True, exclude={"name", "cluster"})


def _digest(recipe: Recipe) -> str:
    return hashlib.sha256(json.dumps(settings_of(recipe), sort_keys=True).encode()).hexdigest()[:12]


def _still_says(then: Any, now: Any, default: Any) -> bool:
    """Whether a recipe means the same now as when a row was made.

    A field that recipes did not have then must be at its default, which keeps the old behaviour. So a new field does
    not invalidate rows that took hours."""
    if not isinstance(then, dict) or not isinstance(now, dict):
        return bool(then == now)
    default = default if isinstance(default, dict) else {}
    return then.keys() <= now.keys() and all(
        _still_says(then[name], value, default.get(name)) if name in then else value == default.get(name)
        for name, value in now.items()
    )


def _wait_for(command: Sequence[str]) -> int:
    """Run a command and return its exit code.

    The command has its own process group, so on Ctrl-C it gets a single SIGTERM, from here, and can end in order. If
    this process dies, the kernel sends that SIGTERM."""
    child = subprocess.Popen(command, stdout=sys.stderr, process_group=0, preexec_fn=_end_with_parent)
    try:
        return child.wait()
    except KeyboardInterrupt:
        child.send_signal(signal.SIGTERM)
        child.wait()
        raise


def _end_with_parent() -> None:
    kernel.prctl(kernel.PR_SET_PDEATHSIG, signal.SIGTERM)
