"""The context of a run in a test."""

from __future__ import annotations

from io import StringIO
from pathlib import Path

from rich.console import Console

from etude.journal import Journal, RunPaths
from etude.lineage import LineageState
from etude.lineage.context import RunContext
from etude.lineage.screen import Screen
from etude.recipe import Recipe


def open_context(root: Path, recipe: Recipe, shown: StringIO | None = None) -> RunContext:
    paths = RunPaths(root)
    root.mkdir(parents=True, exist_ok=True)
    journal = Journal(paths.journal, "driver")
    screen = Screen(journal, Console(file=shown or StringIO(), width=200))
    return RunContext(recipe, paths, LineageState.load(paths.lineage), journal, screen)
