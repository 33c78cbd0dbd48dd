"""Writes report.html, one self-contained page: a summary, results, plots, and each stage's digests."""

from __future__ import annotations

import base64
import json
from pathlib import Path

from jinja2 import Environment, PackageLoader

from etude.journal import RunPaths, write_atomically
from etude.view.cores import summed
from etude.view.data import read_run
from etude.view.plots import draw_all
from etude.view.rollouts import pairs, told_of_pairs
from etude.view.story import story
from etude.view.table import STAGES, cell_scores, cell_table, closing_table, counters, measured, minutes


def write_report(paths: RunPaths) -> Path:
    """Draw the plots, write the page and return its path. Only files of the run are read, so this works even for an
    unfinished run."""
    data = read_run(paths)
    pictures = draw_all(data, paths.plots)
    environment = Environment(loader=PackageLoader("etude.view"), autoescape=True, trim_blocks=True, lstrip_blocks=True)
    page = environment.get_template("report.html.j2").render(
        name=paths.root.name,
        story=story(data),
        unfinished=[STAGES.get(name, name) for name, record in data.stages.items() if not record["done"]],
        pairs=pairs(data),
        told_of_pairs=told_of_pairs(data),
        diff_class=_diff_class,
        stage_names=STAGES,
        lines=closing_table(data.summary),
        minutes=minutes(data.summary),
        measured=measured(data.summary),
        cells=cell_table(data.summary),
        cell_scores=cell_scores(data.summary),
        pictures={name: base64.b64encode(file.read_bytes()).decode() for name, file in pictures.items()},
        captions=_CAPTIONS,
        cores=summed(data.parts),
        core_wall=sum(sample.seconds for sample in data.cores),
        counters=counters(data.summary),
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
    "scores": "The same test tasks before and after, with 95% intervals over tasks.",
    "learning": "Loss of the supervised stages as they ran. Where a curve jumps, what is learnt changes: the base "
    "model begins with look-up documents, and the draft head ends with the rest of the network learning along.",
    "reinforcement": "RL: what got solved in training and on tasks of the dev split, and what it cost.",
    "health": "Is RL well behaved? What it explores, what the trust region cuts off, how far trainer and engine are "
    "apart, how old its data is, what infrastructure failed, how small new weights travel.",
    "cores": "Who used the cores while RL ran, each service with all that it started; and where nobody did, who waited "
    "for whom just then. An idle core-second is shared by all who waited and computed nothing themselves.",
}
