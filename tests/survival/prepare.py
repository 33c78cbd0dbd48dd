"""Runs a recipe's stages up to SFT, the state that every killed RL run starts from. runner.py runs this as a script."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from etude.journal import Journal, RunPaths
from etude.lineage import LineageState, run_line, sole_driver
from etude.lineage.context import RunContext
from etude.lineage.screen import Screen
from etude.lineage.stages import stages_of
from etude.recipe import load_recipe


async def main(recipe_file: Path, root: Path) -> None:
    paths = RunPaths(root)
    with sole_driver(paths.root, paths.lock):
        journal = Journal(paths.journal, "driver")
        recipe = load_recipe(recipe_file)
        context = RunContext(recipe, paths, LineageState.load(paths.lineage), journal, Screen(journal))
        try:
            await run_line(context, stages_of(recipe), until="sft")
        finally:
            await context.close()


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), Path(sys.argv[2])))
