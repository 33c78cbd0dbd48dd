"""report.html: one self-contained page with the table, the pictures and a few rollouts side by side."""

from __future__ import annotations

import base64
import json
from pathlib import Path

from jinja2 import Environment, PackageLoader

from etude.journal import RunPaths, write_atomically
from etude.view.data import read_run
from etude.view.plots import draw_all
from etude.view.rollouts import pairs
from etude.view.table import cell_scores, cell_table, closing_table, counters, measured


def write_report(paths: RunPaths) -> Path:
    """Draws the plots and writes the page; returns its path. Reads files only, and can be run at any time."""
    data = read_run(paths)
    pictures = draw_all(data, paths.plots)
    environment = Environment(loader=PackageLoader("etude.view"), autoescape=True)
    page = environment.get_template("report.html.j2").render(
        name=paths.root.name,
        lines=closing_table(data.summary),
        measured=measured(data.summary),
        cells=cell_table(data.summary),
        cell_scores=cell_scores(data.summary),
        pictures={name: base64.b64encode(file.read_bytes()).decode() for name, file in pictures.items()},
        captions=_CAPTIONS,
        narrow=("scores", "cells", "waiting"),
        pairs=pairs(data),
        diff_class=_diff_class,
        counters=counters(data.summary),
        unfinished=[name for name, record in data.stages.items() if not record["done"]],
        stages=data.stages,
        summary=json.dumps(data.summary, indent=1),
    )
    write_atomically(paths.report, page.encode())
    return paths.report


def _diff_class(line: str) -> str:
    if line.startswith(("@@", "---", "+++")):
        return "hunk"
    return {"+": "add", "-": "del"}.get(line[:1], "")


_CAPTIONS = {
    "scores": "The test tasks, kept aside until the end: the same ones before RL and after it. Bars are 95% intervals.",
    "cells": "The same tasks in four cells. No instance of a test task was in training, whatever its cell.",
    "learning": "Loss of the supervised stages as they ran. Where a curve jumps, what is learnt changes: base begins "
    "with look-up documents, and MTP ends with the trunk learning along.",
    "reinforcement": "RL: what got solved, and what it cost. The dev split is evaluated by versions of the weights.",
    "health": "RL: entropy, clipped tokens, mismatch of trainer and engine, age of data, masked rollouts, deltas.",
    "waiting": "Where time went: every wait has a name.",
}
