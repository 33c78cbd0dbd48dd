"""etude run: runs or resumes the stages of a recipe. Mistakes are reported before anything heavy is imported."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from etude.journal import Journal, RunPaths
from etude.lineage import (
    LineageState,
    Reuse,
    Stage,
    find_donors,
    require_stage,
    require_supported,
    require_unchanged,
    run_line,
    sole_driver,
    this_machine,
    write_summary,
)
from etude.lineage.context import RunContext
from etude.lineage.screen import Screen
from etude.recipe import Recipe, load_recipe, save_recipe
from etude.view import closing_table, last_trained, plain


def run_command(
    recipe_file: Path,
    overrides: Sequence[str],
    runs: Path,
    name: str | None,
    dry_run: bool,
    reuse: Path | None = None,
    until: str | None = None,
) -> int:
    recipe = load_recipe(recipe_file, [*overrides, *([f'name="{name}"'] if name else [])])
    if dry_run:
        require_supported(recipe)
        from etude.cli.plan import describe_plan  # late, so that mistakes are reported without torch

        print(describe_plan(recipe))
        return 0
    paths = RunPaths((runs / recipe.name).resolve())
    with sole_driver(paths.root, paths.lock):
        gc.disable()  # An import makes hardly any garbage, and to look for it takes a tenth of the import's time.
        from etude.lineage.room import require_room
        from etude.lineage.stages import stages_of
        from etude.view import write_report

        gc.enable()
        stages = stages_of(recipe)
        require_stage(until, stages)
        state = LineageState.load(paths.lineage)
        require_unchanged(recipe, state, stages)
        donors = Reuse(stages, find_donors(reuse, paths.root) if reuse else ())
        require_supported(recipe, paths)
        require_room(recipe, paths, state)
        save_recipe(recipe, paths.recipe)
        begun = time.monotonic()
        # Treat SIGTERM like Ctrl-C, so that services are shut down in order.
        signal.signal(signal.SIGTERM, signal.default_int_handler)
        asyncio.run(_run(recipe, paths, state, stages, donors, until))
        summary = write_summary(paths)
        report = write_report(paths)
    _show(summary, report, time.monotonic() - begun)
    return 0


async def _run(
    recipe: Recipe,
    paths: RunPaths,
    state: LineageState,
    stages: Sequence[Stage],
    donors: Reuse,
    until: str | None,
) -> None:
    from etude.lineage.base import network_of
    from etude.model import parameters_of
    from etude.model.precision.kernels import implementation_for

    journal = Journal(paths.journal, "driver")
    screen = Screen(journal)
    context = RunContext(recipe, paths, state, journal, screen)
    screen.say(f"{'going on with' if state.stages else 'a new run in'} {_near(paths.root)}")
    donors.adopt_compute(context)
    compute = context.compute()
    screen.say(f"computing on {compute}")
    config = network_of(recipe, paths)
    network = parameters_of(config)
    here = {**this_machine(), "accelerator": compute.accelerator}
    journal.event("run_started", parameters=network.total, active=network.active, **here)
    if config.mixture:
        screen.say(f"matmuls of experts {implementation_for(recipe.precision, compute.device, compute.dtype).by}")
    if recipe.precision.rounds:
        screen.say(f"precision: {recipe.precision}")
    try:
        await run_line(context, stages, donors.take, until)
    finally:
        await context.close()
        journal.close()


def _show(summary: dict[str, Any], report: Path, seconds: float) -> None:
    lines = closing_table(summary)
    console = Console()
    if console.is_terminal:
        table = Table(box=None, pad_edge=False, padding=(0, 3, 0, 0), header_style="dim", title_justify="left")
        for title in ("stage", "what it shows"):
            table.add_column(title)
        for title in ("before", "after", "seconds"):
            table.add_column(title, justify="right")
        for line in lines:
            taken = "" if line.seconds is None else f"{line.seconds:.0f}"
            table.add_row(line.stage, line.shows, line.before, f"[bold]{line.after}[/]", taken)
        console.print()
        console.print(table)
    else:
        print(plain(lines))
    whole = sum(summary["seconds"].values())
    now = "" if seconds >= whole - 60 else f", {_minutes(seconds)} of them just now"
    print(f"\n{_minutes(whole)} in all{now}")
    last = summary.get(last_trained(summary), {})
    planned = 4 if "one_edit_after" in last else 2
    if (looks := last.get("test_evaluations", 0)) > planned:
        print(
            f"note: this run was evaluated on its test tasks {looks} times; before and after training makes {planned}"
        )
    print(f"report  {_near(report)}\nplots   {_near(report.parent / 'plots')}")
    print(f"next    etude chat {_near(report.parent)}")


def _minutes(seconds: float) -> str:
    return f"{seconds:.0f} seconds" if seconds < 100 else f"{seconds / 60:.1f} minutes"


def _near(path: Path) -> str:
    """Return a path inside the working directory relative to that directory, any other path unchanged."""
    here = os.path.relpath(path)
    return str(path) if here.startswith("..") else here
