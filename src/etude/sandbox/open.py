"""From a recipe to a backend and to limits: the one place that knows every backend by name."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING

from etude.recipe.acting import SandboxRecipe
from etude.sandbox.contract import Limits, Sandboxes, SandboxUnavailable
from etude.sandbox.modes import open_mode
from etude.sandbox.oci import OciSandboxes

if TYPE_CHECKING:
    from etude.sandbox.fleet.opening import Fleet


def open_sandboxes(recipe: SandboxRecipe, root: Path, fleet: Fleet | None = None) -> Sandboxes:
    """The backend that the recipe names, over images kept in `root`; SandboxUnavailable says what the host lacks.

    Where the recipe wants boxes on the cluster's nodes, they are those of `fleet`, which whoever has the cluster opens.
    """
    if recipe.hosts:
        if fleet is None:
            raise SandboxUnavailable(
                f"sandbox.hosts = {recipe.hosts} asks for boxes on the nodes of a cluster, and there is none here: "
                "leave it out"
            )
        return fleet.sandboxes()
    if recipe.backend == "oci":
        if recipe.mode != "auto":
            raise SandboxUnavailable(
                f'sandbox.mode = "{recipe.mode}" does not go with sandbox.backend = "oci", where the engine keeps code '
                "in: leave one of the two out"
            )
        return OciSandboxes(root, endpoint=recipe.endpoint, runtime=recipe.runtime, base=recipe.base)
    return open_mode(recipe.mode, root)


def beside(recipe: SandboxRecipe) -> SandboxRecipe:
    """The same boxes, but in the process that opens them: what a fleet's host has, and who has no cluster."""
    return recipe.model_copy(update={"hosts": 0})


def limits_of(recipe: SandboxRecipe) -> Limits:
    return Limits(memory_mb=recipe.memory_mb, processes=recipe.processes, cpu_seconds=math.ceil(recipe.command_seconds))
