"""etude doctor numerics: prints a table or JSON, writes a plot to the run folder, and fails on broken numbers."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from etude.journal import RunPaths


def numerics_command(run: Path, stage: str | None, formats: Sequence[str], sequences: int | None, as_json: bool) -> int:
    from etude.lineage.numerics import SEQUENCES, examine, examine_checkpoint
    from etude.lineage.state import LineageError
    from etude.model import PoisonedWeights
    from etude.model.precision.weight_checks import summary
    from etude.view.numerics import draw_numerics, numerics_table

    lone = (run / "config.json").is_file() and not RunPaths(run).recipe.is_file()
    if lone and (stage is not None or formats or sequences is not None):
        raise LineageError(f"{run} is a checkpoint, not a run: leave out --stage, --formats and --sequences")
    report = examine_checkpoint(run) if lone else examine(run, stage, formats, sequences or SEQUENCES)
    found = asdict(report) | {"blessed": not report.faults}
    if report.formats:
        draw_numerics(found, RunPaths(run).plots / "numerics.png")
    print(json.dumps(found, indent=1) if as_json else numerics_table(found))
    if report.faults:
        raise PoisonedWeights(f"{report.checkpoint} is not blessed: {summary(report.faults)}")
    return 0
