"""From a recipe to a backend and to limits: the one place that knows every backend by name."""

from __future__ import annotations

import math
from pathlib import Path

from etude.recipe.acting import SandboxRecipe
from etude.sandbox.contract import Limits, Sandboxes, SandboxUnavailable
from etude.sandbox.modes import open_mode
from etude.sandbox.oci import OciSandboxes


def open_sandboxes(recipe: SandboxRecipe, root: Path) -> Sandboxes:
    """The backend that the recipe names, over images kept in `root`; SandboxUnavailable says what the host lacks."""
    if recipe.backend == "oci":
        if recipe.mode != "auto":
            raise SandboxUnavailable(
                f'sandbox.mode = "{recipe.mode}" does not go with sandbox.backend = "oci", where the engine keeps code '
                "in: leave one of the two out"
            )
        return OciSandboxes(root, endpoint=recipe.endpoint, runtime=recipe.runtime, base=recipe.base)
    return open_mode(recipe.mode, root)


def limits_of(recipe: SandboxRecipe) -> Limits:
    return Limits(memory_mb=recipe.memory_mb, processes=recipe.processes, cpu_seconds=math.ceil(recipe.command_seconds))
