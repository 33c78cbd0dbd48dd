"""A claim: arms, what is measured of their runs, what follows from the rows. Its command runs what is missing.

Invariant: what is printed and drawn comes from the rows alone, and a row from a finished run alone. Killed at any
moment, the same command goes on: a run where it was, and with the first arm and seed that has no row.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from _arms import Arm, Run, run_of
from _report import finish, machine
from _rows import ROOT, ROWS, Row, Rows, append, commit, read_all

from etude.journal import RunPaths
from etude.lineage import LineageState

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SEEDS = (1, 2, 3)


@dataclass(frozen=True, slots=True)
class Claim:
    name: str
    says: str
    """The sentence that the rows bear out, or not."""
    arms: tuple[Arm, ...]
    until: str
    """The last stage that its arms need."""
    measure: Callable[[RunPaths, Arm], dict[str, Any]]
    """The figures of a finished run."""
    conclude: Callable[[Rows], dict[str, Any]]
    """From rows to what the claim's command prints; what no row tells is None."""
    headline: Callable[[Mapping[str, Any]], str]
    """The cell of the table, from what was concluded; empty while rows are missing."""
    draw: Callable[[Rows], Figure | None]


def main(claim: Claim, arguments: Sequence[str] | None = None) -> None:
    asked = _parser(claim).parse_args(arguments)
    seeds = [int(seed) for seed in asked.seeds.split(",")]
    wanted = [(seed, arm) for seed in seeds for arm in claim.arms]
    for place, (seed, arm) in enumerate(wanted, 1):
        rows = Rows(read_all(asked.rows), claim.name)
        run = run_of(arm, seed, rows, asked.set)
        assert run is not None, f"arm {arm.name} stands before the one that it needs"
        known = rows.get(arm.name, seed)
        if known is not None and known.recipe == run.digest and not asked.again:
            _say(f"[{place}/{len(wanted)}] {claim.name}: {arm.name}, seed {seed}: has its row")
            continue
        _say(f"[{place}/{len(wanted)}] {claim.name}: {arm.name}, seed {seed}: in {asked.runs / run.name}")
        try:
            run.go(asked.runs, claim.until)
        except subprocess.CalledProcessError as failed:
            raise SystemExit(failed.returncode) from None
        append(_row(claim, run, asked.runs), asked.rows)
    rows = Rows(read_all(asked.rows), claim.name)
    draw(claim, rows, asked.rows.parent)
    finish(f"claims/{claim.name}", {"seeds": rows.seeds, "arms": rows.arms, **claim.conclude(rows)})


def draw(claim: Claim, rows: Rows, folder: Path) -> Path | None:
    figure = claim.draw(rows) if rows else None
    if figure is None:
        return None
    file = folder / f"{claim.name}.png"
    figure.savefig(file, dpi=130)
    return file


def _row(claim: Claim, run: Run, runs: Path) -> Row:
    paths = run.folder(runs)
    stages = list(LineageState.load(paths.lineage).stages.values())
    code = stages[-1].code_digest
    return Row(
        claim=claim.name,
        arm=run.arm.name,
        seed=run.seed,
        recipe=run.digest,
        figures=claim.measure(paths, run.arm),
        code=code,
        parents_code=sorted({stage.code_digest for stage in stages} - {code}),
        date=datetime.now(UTC).strftime("%Y-%m-%d %H:%M"),
        machine=machine(),
        commit=commit(),
        command=f"make bench NAME=claims/{claim.name}",
    )


def _parser(claim: Claim) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=claim.says)
    parser.add_argument("--seeds", default=",".join(map(str, SEEDS)), help="with commas")
    parser.add_argument("--runs", type=Path, default=ROOT / "runs" / "claims", help="where the runs lie")
    parser.add_argument("--rows", type=Path, default=ROWS, help="the file of rows")
    parser.add_argument("--again", action="store_true", help="append a row also where there is one")
    parser.add_argument("--set", nargs="*", default=[], help="section.field=value, for all arms alike")
    return parser


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
