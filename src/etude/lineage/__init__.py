"""The line of stages: resume, provenance, summary.

One recipe, one line of checkpoints.
"""

from etude.lineage.guard import require_room, require_supported, sole_driver
from etude.lineage.line import Stage, require_stage, require_unchanged, run_line
from etude.lineage.reuse import Reuse, find_donors
from etude.lineage.state import LineageError, LineageState, recipe_of
from etude.lineage.summary import write_summary

__all__ = [
    "LineageError",
    "LineageState",
    "Reuse",
    "Stage",
    "find_donors",
    "recipe_of",
    "require_room",
    "require_stage",
    "require_supported",
    "require_unchanged",
    "run_line",
    "sole_driver",
    "write_summary",
]
