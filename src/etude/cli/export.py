"""etude export: writes a stage's model as a checkpoint outside the run."""

from __future__ import annotations

import shutil
from pathlib import Path

from etude.lineage.state import LineageError, finished_stage


def export_command(run: Path, folder: Path, stage: str | None, experts: str | None) -> int:
    found = finished_stage(run, stage)
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise LineageError(f"{folder} is there already: name a folder that is new or empty")
    from etude.model import load_hf, save_hf

    folder = folder.resolve()
    aside = folder.with_name(f".{folder.name}.partial")  # an interrupted export starts from the beginning
    shutil.rmtree(aside, ignore_errors=True)
    save_hf(load_hf(found.model), aside, found.paths.root, experts=experts)
    aside.replace(folder)
    before, after = (sum(file.stat().st_size for file in where.iterdir()) for where in (found.model, folder))
    said = f", its experts in {experts}: {after / 1e6:.1f} MB of {before / 1e6:.1f}" if experts else ""
    print(f"{folder}: {found.stage} of {run}{said}")
    return 0
