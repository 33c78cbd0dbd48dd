"""Run a recipe's stages in order, resume them, record where each result came from, and write the run's summary.

A run follows one recipe, and its stages produce one line of checkpoints.
"""

from etude.lineage.guard import require_supported, sole_driver
from etude.lineage.line import Stage, require_stage, require_unchanged, run_line
from etude.lineage.machine import this_machine
from etude.lineage.reuse import Reuse, find_donors
from etude.lineage.state import Finished, LineageError, LineageState, dtype_of, finished_stage, recipe_of
from etude.lineage.summary import write_summary

__all__ = [
    "Finished",
    "LineageError",
    "LineageState",
    "Reuse",
    "Stage",
    "dtype_of",
    "find_donors",
    "finished_stage",
    "recipe_of",
    "require_stage",
    "require_supported",
    "require_unchanged",
    "run_line",
    "sole_driver",
    "this_machine",
    "write_summary",
]
