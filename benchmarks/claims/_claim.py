"""A claim: its arms, what is measured on their runs, and what is concluded from the rows. Its command runs what is
missing.

Invariant: everything printed and drawn comes from the rows alone, and a row comes only from a run that has ended. If
the command is killed, the same command resumes at the first arm and seed without a row, whose run continues where it
was. If an arm fails, the others still run and are reported, and the exit code is 1.
"""

from __future__ import annotations

import argparse
import shutil
import signal
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from _arms import Arm, Run, RunFailed, run_of, settings_of
from _ended import ended
from _figures import Told
from _report import finish, machine
from _rows import ROOT, ROWS, Row, Rows, append, commit, read_all
from _verdict import SEEDS, Part, verdict

from etude.cli.errors import exit_code
from etude.journal import RunPaths
from etude.lineage import LineageState

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True, slots=True)
class Claim:
    """One claim about training, and how it is run, measured, concluded and drawn."""

    name: str
    says: str
    """The claim as a sentence, which the rows confirm or not."""
    arms: tuple[Arm, ...]
    """The runs that are compared. An arm that needs another arm's row comes after it."""
    until: str
    """The last stage that its arms run."""
    measure: Callable[[RunPaths, Arm], dict[str, Any]]
    """Returns the figures of a finished run, which become its row."""
    conclude: Callable[[Rows], dict[str, Any]]
    """Returns what the claim's command prints, computed from the rows; a figure without rows is None."""
    decided: tuple[Part, ...]
    """One test for each part of the sentence: whether the concluded figures show it."""
    headline: tuple[Told, ...]
    """The text of the table's cell, from the concluded figures. The first one is the claim's main figure."""
    draw: Callable[[Rows], Figure]
    measured: int = 1
    """Version of `measure`; raised whenever it measures something else. Rows of another version are ignored."""
    about_numbers: bool = False
    """Whether a run that ended because its numbers were not finite (`_ended.py`) gets a row too, in which `measure`
    says so."""

    def verdict(self, rows: Rows, found: Mapping[str, Any]) -> str | None:
        """Verdict on the concluded figures `found`, given which seeds these rows have."""
        return verdict(self.decided, found, len(rows.seeds_with(arm.name for arm in self.arms)))


def main(*claims: Claim, arguments: Sequence[str] | None = None) -> None:
    """Run every arm and seed without a row, seed by seed over all claims, then print a line for each claim."""
    asked = _parser(claims).parse_args(arguments)
    asked.rows = asked.rows or (asked.runs / "rows.jsonl" if asked.set else ROWS)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    code = exit_code(lambda: _main(claims, asked), when_interrupted="interrupted; the same command resumes")
    if code:
        raise SystemExit(code)


def _main(claims: Sequence[Claim], asked: argparse.Namespace) -> int:
    failed = _run_missing(claims, asked)
    for claim in claims:
        rows = current(claim, read_all(asked.rows), asked.set)
        draw(claim, rows, asked.rows.parent)
        own = {"failed": failed[claim.name]} if claim.name in failed else {}
        found = claim.conclude(rows)
        told = {"seeds": rows.seeds, "arms": rows.arms, "verdict": claim.verdict(rows, found), **found, **own}
        finish(f"claims/{claim.name}", told)
    return 1 if failed else 0


def current(claim: Claim, rows: Sequence[Row], changes: Sequence[str] = ()) -> Rows:
    """Return the newest row of each arm and seed that was made with its recipe as it is now."""
    own = [row for row in rows if (row.claim, row.measured) == (claim.name, claim.measured)]
    kept: list[Row] = []
    for seed in sorted({row.seed for row in own}):
        for arm in claim.arms:
            run = run_of(arm, seed, Rows(kept, claim.name), changes)
            kept += [row for row in own if run is not None and run.made(row)][-1:]
    return Rows(kept, claim.name)


def draw(claim: Claim, rows: Rows, folder: Path) -> Path | None:
    if not rows:
        return None
    file = folder / f"{claim.name}.png"
    claim.draw(rows).savefig(file, dpi=130)
    return file


def _run_missing(claims: Sequence[Claim], asked: argparse.Namespace) -> dict[str, list[str]]:
    """Run every arm and seed without a row; return those that failed, by claim."""
    failed: dict[str, list[str]] = {}
    wanted = [(seed, claim, arm) for seed in asked.seeds for claim in claims for arm in claim.arms]
    taken: list[float] = []
    for place, (seed, claim, arm) in enumerate(wanted, 1):
        title = f"[{place}/{len(wanted)}] {claim.name}: {arm.name}, seed {seed}"
        rows = current(claim, read_all(asked.rows), asked.set)
        run = run_of(arm, seed, rows, asked.set)
        if run is None:
            _say(f"{title}: not run, since the arm that it needs has no row")
        elif rows.get(arm.name, seed) is not None and not asked.again:
            _say(f"{title}: already has a row, from the run {run.name}")
            continue
        else:
            _say(f"{title}: in {asked.runs / run.name}{_to_go(taken, len(wanted) + 1 - place)}")
            if _go(claim, run, asked):
                taken.append(_own_seconds(run.folder(asked.runs)))
                continue
        failed.setdefault(claim.name, []).append(f"{arm.name}, seed {seed}")
    return failed


def _go(claim: Claim, run: Run, asked: argparse.Namespace) -> bool:
    """Run to the end and append its row; return whether that succeeded. Failures are printed, not raised."""
    try:
        _run_to_its_end(claim, run, asked.runs)
        append(_row(claim, run, asked.runs), asked.rows)
    except RunFailed as error:
        _say(f"failed: {error}")
        return False
    except Exception:  # noqa: BLE001 printed, and in the exit code; the other arms, which take hours, must still run
        traceback.print_exc()
        return False
    _drop_checkpoints(run.folder(asked.runs))
    return True


def _run_to_its_end(claim: Claim, run: Run, runs: Path) -> None:
    try:
        run.go(runs, claim.until)
    except RunFailed:
        end = ended(run.folder(runs), claim.until) if claim.about_numbers else None
        if end is None:
            raise
        _say(f"ended after step {end['step']}: {end['why']}")


def _row(claim: Claim, run: Run, runs: Path) -> Row:
    paths = run.folder(runs)
    stages = LineageState.load(paths.lineage).stages
    code = stages[claim.until].code_digest
    names = list(stages)  # in order of running; another claim may have run stages beyond `until`
    parents = {stages[name].code_digest for name in names[: names.index(claim.until)]}
    return Row(
        claim=claim.name,
        arm=run.arm.name,
        seed=run.seed,
        recipe=settings_of(run.recipe),
        figures=claim.measure(paths, run.arm),
        code=code,
        parents_code=sorted(parents - {code}),
        measured=claim.measured,
        date=datetime.now(UTC).strftime("%Y-%m-%d %H:%M"),
        machine=machine(),
        commit=commit(),
        command=f"make bench NAME=claims/{claim.name}",
    )


def _drop_checkpoints(paths: RunPaths) -> None:
    """Remove the checkpoints of finished stages: nothing resumes from them, and they are most of a run's disk space."""
    for name, stage in LineageState.load(paths.lineage).stages.items():
        if stage.done:
            shutil.rmtree(paths.checkpoints(name), ignore_errors=True)


def _own_seconds(paths: RunPaths) -> float:
    """Seconds that the run spent on its own stages, without those taken over, over all sessions."""
    return sum(stage.seconds for stage in LineageState.load(paths.lineage).stages.values() if not stage.taken_from)


def _to_go(taken: Sequence[float], left: int) -> str:
    """Upper estimate of the time left, from the arms run so far. Some that are left may have rows or share a run."""
    return f"; at most about {left * sum(taken) / len(taken) / 60:.0f} minutes to go" if taken else ""


def _parser(claims: Sequence[Claim]) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description="; ".join(claim.says for claim in claims))
    parser.add_argument("--seeds", type=_seeds, default=SEEDS, help="seeds to run, separated by commas (default 1,2,3)")
    parser.add_argument(
        "--runs", type=Path, default=ROOT / "runs" / "claims", help="folder of the runs (default runs/claims)"
    )
    parser.add_argument(
        "--rows",
        type=Path,
        help="file of rows to read and append to (default docs/claims/rows.jsonl; with --set rows.jsonl in --runs, so "
        "that changed recipes do not enter the published claims)",
    )
    parser.add_argument(
        "--again", action="store_true", help="measure again and append a new row even if an arm and seed has one"
    )
    parser.add_argument(
        "--set",
        nargs="*",
        default=[],
        help="recipe overrides for all arms, as section.field=value; use them to try a claim with a smaller recipe",
    )
    return parser


def _seeds(text: str) -> list[int]:
    return [int(seed) for seed in text.split(",")]


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
