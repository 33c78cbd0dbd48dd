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
    """The part of a fleet that `open_sandboxes` uses. A fleet runs boxes on the nodes of a cluster (see
    fleet/open_fleet.py)."""

    def sandboxes(self) -> Sandboxes: ...


def open_sandboxes(recipe: SandboxRecipe, root: Path, fleet: OpenFleet | None = None) -> Sandboxes:
    """Open the backend that the recipe names, with its images in `root`. Raise SandboxUnavailable if this host cannot
    run it; the message says what the host lacks.

    If the recipe sets `sandbox.hosts`, boxes run on the cluster's nodes. The backend then comes from `fleet`, which the
    owner of the cluster has opened.
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


def without_fleet(recipe: SandboxRecipe) -> SandboxRecipe:
    """Return a copy of the recipe in which boxes run on this host instead of a fleet. It is for the fleet's own hosts,
    and for running without a cluster."""
    return recipe.model_copy(update={"hosts": 0})


def limits_of(recipe: SandboxRecipe) -> Limits:
    """Return the limits that the recipe sets for each box."""
    return Limits(memory_mb=recipe.memory_mb, processes=recipe.processes, cpu_seconds=math.ceil(recipe.command_seconds))
