"""Scores findings: defects located count, false alarms cost; and computes how often a blind guess would pass."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from pydantic import BaseModel, ConfigDict, Field

from etude.tasks.verifiers.review.findings import Finding

_LEAST_WORDS = 3


class Defect(BaseModel):
    model_config = ConfigDict(strict=True, frozen=True, extra="forbid")

    path: str
    first: int = Field(ge=1)
    last: int = Field(ge=1)
    tests: list[str] = Field(min_length=1)
    """Tests that fail because of this defect alone, which proves that it is no matter of taste."""
    files: dict[str, str] = {}
    """Files of the workspace with only this defect. Required where findings need examples."""

    def is_at(self, finding: Finding, slack: int) -> bool:
        near = self.first - slack <= finding.line <= self.last + slack
        return finding.path == self.path and near


@dataclass(frozen=True, slots=True)
class Score:
    found: int
    missed: int
    alarms: int
    """Findings that are at no defect."""

    @property
    def value(self) -> float:
        return 2 * self.found / (2 * self.found + self.missed + self.alarms) if self.found else 0.0


def score_of(
    findings: Sequence[Finding], defects: Sequence[Defect], slack: int, unproven: Collection[tuple[int, int]] = ()
) -> tuple[Score, list[Defect]]:
    """The score, and the defects that were missed. A second finding at one defect neither helps nor costs, and neither
    does one whose example does not show the defect: those are in `unproven`, by the indexes of finding and defect."""
    found: set[int] = set()
    alarms = 0
    for place, finding in enumerate(findings):
        at = [number for number, defect in enumerate(defects) if defect.is_at(finding, slack)]
        if not at:
            alarms += 1
        elif len(finding.text.split()) >= _LEAST_WORDS:
            found.update(number for number in at if (place, number) not in unproven)
    missed = [defect for number, defect in enumerate(defects) if number not in found]
    return Score(len(found), len(missed), alarms), missed


def chance_of_guess(places: int, defects: int, threshold: float) -> float:
    """Probability that marking changed places at random reaches the threshold, with the number of marks that serves
    best."""

    def chance(marked: int) -> float:
        ways = 0
        for hits in range(max(0, marked - (places - defects)), min(marked, defects) + 1):
            if Score(hits, defects - hits, marked - hits).value >= threshold:
                ways += math.comb(defects, hits) * math.comb(places - defects, marked - hits)
        return ways / math.comb(places, marked)

    return max(map(chance, range(places + 1)), default=1.0)
