"""A claim: arms, what is measured of their runs, what follows from the rows. Its command runs what is missing.

Invariant: what is printed and drawn comes from the rows alone, and a row from a finished run alone. Killed at any
moment, the same command goes on: a run where it was, and with the first arm and seed that has no row. An arm that
fails takes no other with it: the rest is run and told, the command ends with code 1.
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
    name: str
    says: str
    """The sentence that the rows bear out, or not."""
    arms: tuple[Arm, ...]
    """One that takes something from another's row stands behind it."""
    until: str
    """The last stage that its arms need."""
    measure: Callable[[RunPaths, Arm], dict[str, Any]]
    """The figures of a finished run."""
    conclude: Callable[[Rows], dict[str, Any]]
    """From rows to what the claim's command prints; what no row tells is None."""
    decided: tuple[Part, ...]
    """What the sentence says, part by part: whether rows show it."""
    headline: tuple[Told, ...]
    """The cell of the table, from what was concluded; the first figure is the one that the claim stands for."""
    draw: Callable[[Rows], Figure]
    measured: int = 1
    """Counts up whenever `measure` takes something else for its figures: rows by an earlier count are not concluded
    from."""
    about_numbers: bool = False
    """A run that its own numbers ended (`_ended.py`) has a row, too, in which `measure` tells of it."""

    def verdict(self, rows: Rows, found: Mapping[str, Any]) -> str | None:
        """Of what was concluded from these rows."""
        return verdict(self.decided, found, len(rows.seeds_with(arm.name for arm in self.arms)))


def main(*claims: Claim, arguments: Sequence[str] | None = None) -> None:
    """Runs what has no row yet, the first seed of all claims first, then prints a line for each claim."""
    asked = _parser(claims).parse_args(arguments)
    asked.rows = asked.rows or (asked.runs / "rows.jsonl" if asked.set else ROWS)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    code = exit_code(lambda: _main(claims, asked), when_interrupted="interrupted; the same command goes on")
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
    """Of each arm and seed the newest row of those that its recipe, as it is now, has made."""
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
    """What failed, by claim."""
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
            _say(f"{title}: has its row, of {run.name}")
            continue
        else:
            _say(f"{title}: in {asked.runs / run.name}{_to_go(taken, len(wanted) + 1 - place)}")
            if _go(claim, run, asked):
                taken.append(_own_seconds(run.folder(asked.runs)))
                continue
        failed.setdefault(claim.name, []).append(f"{arm.name}, seed {seed}")
    return failed


def _go(claim: Claim, run: Run, asked: argparse.Namespace) -> bool:
    """Whether the run has its row."""
    try:
        _run_to_its_end(claim, run, asked.runs)
        append(_row(claim, run, asked.runs), asked.rows)
    except RunFailed as error:
        _say(f"failed: {error}")
        return False
    except Exception:  # noqa: BLE001 told whole, and in the exit code; hours of other arms must not be lost to it
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
    names = list(stages)  # in their order; another claim may have taken the run further
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
    """Of stages that are done: nothing goes on from them any more, and they are most of what dozens of runs weigh."""
    for name, stage in LineageState.load(paths.lineage).stages.items():
        if stage.done:
            shutil.rmtree(paths.checkpoints(name), ignore_errors=True)


def _own_seconds(paths: RunPaths) -> float:
    """What the run has made itself took, in all its sessions."""
    return sum(stage.seconds for stage in LineageState.load(paths.lineage).stages.values() if not stage.taken_from)


def _to_go(taken: Sequence[float], left: int) -> str:
    """From the arms that were run; at most, since of those left some may have their rows, or share a run."""
    return f"; at most about {left * sum(taken) / len(taken) / 60:.0f} minutes to go" if taken else ""


def _parser(claims: Sequence[Claim]) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description="; ".join(claim.says for claim in claims))
    parser.add_argument("--seeds", type=_seeds, default=SEEDS, help="with commas")
    parser.add_argument("--runs", type=Path, default=ROOT / "runs" / "claims", help="where the runs lie")
    parser.add_argument("--rows", type=Path, help="the file of rows; with --set one beside the runs, not the README's")
    parser.add_argument("--again", action="store_true", help="append a row also where there is one")
    parser.add_argument("--set", nargs="*", default=[], help="section.field=value, for all arms alike")
    return parser


def _seeds(text: str) -> list[int]:
    return [int(seed) for seed in text.split(",")]


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
