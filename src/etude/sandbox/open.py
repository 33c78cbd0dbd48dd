"""Turns a recipe into a backend and its limits. This is the only place that knows every backend by name."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Protocol

from etude.recipe.acting import SandboxRecipe
from etude.sandbox.contract import Limits, Sandboxes, SandboxUnavailable
from etude.sandbox.modes import open_mode
from etude.sandbox.oci import OciSandboxes


class OpenFleet(Protocol):
    def sandboxes(self) -> Sandboxes: ...


def open_sandboxes(recipe: SandboxRecipe, root: Path, fleet: OpenFleet | None = None) -> Sandboxes:
    """Opens the backend that the recipe names, with its images in `root`; SandboxUnavailable says what the host lacks.

    If the recipe asks for boxes on the cluster's nodes, they are those of `fleet`, opened by whoever holds the cluster.
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
    """The same recipe with boxes in this process, not on a fleet: for a fleet's host, or without a cluster."""
    return recipe.model_copy(update={"hosts": 0})


def limits_of(recipe: SandboxRecipe) -> Limits:
    return Limits(memory_mb=recipe.memory_mb, processes=recipe.processes, cpu_seconds=math.ceil(recipe.command_seconds))
