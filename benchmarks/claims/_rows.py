"""The rows of claims: one per (claim, arm, seed), appended when its run has ended and never changed.

A row stores all that its claim needs to be concluded and drawn again without the run: figures and outcomes by task.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from etude.journal import append_rows, drop_torn_line, read_rows

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
ROWS = ROOT / "docs" / "claims" / "rows.jsonl"


@dataclass(frozen=True, slots=True)
class Row:
    claim: str
    arm: str
    seed: int
    recipe: dict[str, Any]
    """The parts of the resolved recipe that can change a result (`_arms.settings_of`)."""
    figures: dict[str, Any]
    code: str
    """Digest of the code that made the last stage."""
    parents_code: list[str] = field(default_factory=list)
    """Digests of other code that made earlier stages."""
    measured: int = 1
    """`Claim.measured` when the row was made."""
    date: str = ""
    machine: str = ""
    commit: str = ""
    command: str = ""


class Rows:
    """The newest row of each (arm, seed) of one claim."""

    def __init__(self, rows: Iterable[Row], claim: str) -> None:
        self._newest = {(row.arm, row.seed): row for row in rows if row.claim == claim}

    def __len__(self) -> int:
        return len(self._newest)

    def get(self, arm: str, seed: int) -> Row | None:
        return self._newest.get((arm, seed))

    def row(self, arm: str, seed: int) -> Row:
        return self._newest[arm, seed]

    def of(self, arm: str) -> dict[int, dict[str, Any]]:
        """Figures of an arm by seed, in order of the seeds."""
        return {seed: row.figures for (name, seed), row in sorted(self._newest.items()) if name == arm}

    def pairs(self, one: str, other: str) -> list[tuple[dict[str, Any], dict[str, Any]]]:
        """Figures of two arms for the seeds that both have."""
        first, second = self.of(one), self.of(other)
        return [(first[seed], second[seed]) for seed in first if seed in second]

    def seeds_with(self, arms: Iterable[str]) -> list[int]:
        """Seeds for which each of these arms has a row."""
        wanted = list(arms)
        return [seed for seed in self.seeds if all((arm, seed) in self._newest for arm in wanted)]

    @property
    def all(self) -> list[Row]:
        return list(self._newest.values())

    @property
    def arms(self) -> list[str]:
        return list(dict.fromkeys(arm for arm, _ in self._newest))

    @property
    def seeds(self) -> list[int]:
        return sorted({seed for _, seed in self._newest})


def read_all(file: Path = ROWS) -> list[Row]:
    return [Row(**values) for values in read_rows(file)] if file.exists() else []


def append(row: Row, file: Path = ROWS) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    drop_torn_line(file)
    append_rows(file, [asdict(row)])


def commit() -> str:
    """Commit of the checkout, with a + if files differ from it; empty outside a git checkout."""
    asked = ["git", "-C", str(ROOT), "describe", "--always", "--dirty=+", "--abbrev=10", "--exclude=*"]
    found = subprocess.run(asked, capture_output=True, text=True, check=False)
    return found.stdout.strip()


# Python searches only the script's own folder for modules; the other benchmarks' helpers are one folder up.
sys.path.append(str(HERE.parent))
