"""Opens the sandbox backend that a recipe names. Only this module knows all backends by name."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Protocol

from etude.recipe.acting import SandboxRecipe
from etude.sandbox.contract import Limits, Sandboxes, SandboxUnavailable
from etude.sandbox.modes import open_mode
from etude.sandbox.oci import OciSandboxes


class OpenFleet(Protocol):
    """The part of a fleet (fleet/open_fleet.py) that `open_sandboxes` uses."""

    def sandboxes(self) -> Sandboxes: ...


def open_sandboxes(recipe: SandboxRecipe, root: Path, fleet: OpenFleet | None = None) -> Sandboxes:
    """Open the backend that the recipe names, with its images in `root`. Raise SandboxUnavailable, which says what this
    host lacks, if it cannot run here. With `sandbox.hosts`, boxes run on the cluster's nodes and the backend comes from
    `fleet`."""
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


def without_fleet(recipe: SandboxRecipe) -> SandboxRecipe:
    """Return a copy of the recipe that runs boxes on this host: for a fleet's own hosts, and if there is no cluster."""
    return recipe.model_copy(update={"hosts": 0})


def limits_of(recipe: SandboxRecipe) -> Limits:
    return Limits(memory_mb=recipe.memory_mb, processes=recipe.processes, cpu_seconds=math.ceil(recipe.command_seconds))
