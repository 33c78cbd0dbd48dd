"""etude report: writes a run's summary, plots and report again, from its files."""

from __future__ import annotations

from pathlib import Path

from etude.journal import RunPaths
from etude.lineage.state import LineageError
from etude.lineage.summary import write_summary


def report_command(run_folder: Path) -> int:
    paths = RunPaths(run_folder)
    if not paths.lineage.exists():
        raise LineageError(f"{run_folder} is not a run folder: it has no lineage.json")
    from etude.view import write_report

    write_summary(paths)
    print(write_report(paths))
    return 0
