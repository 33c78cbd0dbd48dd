"""Scores findings, and computes how often a blind guess would pass. Each located defect counts; each false alarm
costs."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from pydantic import BaseModel, ConfigDict, Field

from etude.tasks.verifiers.review.findings import Finding

_LEAST_WORDS = 3


class Defect(BaseModel):
    """A planted defect, and the lines where it is."""

    model_config = ConfigDict(strict=True, frozen=True, extra="forbid")

    path: str
    first: int = Field(ge=1)
    last: int = Field(ge=1)
    tests: list[str] = Field(min_length=1)
    """Tests that fail because of this defect alone, which proves that the defect is not a matter of taste."""
    files: dict[str, str] = {}
    """Files of the workspace with only this defect. Required if findings need examples."""

    def is_at(self, finding: Finding, slack: int) -> bool:
        """Return whether a finding is at this defect, at most `slack` lines above or below."""
        near = self.first - slack <= finding.line <= self.last + slack
        return finding.path == self.path and near


@dataclass(frozen=True, slots=True)
class Score:
    """How many defects a review found and missed, and its false alarms."""

    found: int
    missed: int
    false_alarms: int
    """Findings at no defect."""

    @property
    def value(self) -> float:
        """The harmonic mean of precision and recall."""
        return 2 * self.found / (2 * self.found + self.missed + self.false_alarms) if self.found else 0.0


def score_of(
    findings: Sequence[Finding], defects: Sequence[Defect], slack: int, unproven: Collection[tuple[int, int]] = ()
) -> tuple[Score, list[Defect]]:
    """Return the score, and the defects that were missed. `unproven` are the pairs (finding, defect), by their indexes,
    in which the example does not show the defect; such a finding neither helps nor costs. A second finding at one
    defect does neither as well."""
    found: set[int] = set()
    false_alarms = 0
    for place, finding in enumerate(findings):
        at = [number for number, defect in enumerate(defects) if defect.is_at(finding, slack)]
        if not at:
            false_alarms += 1
        elif len(finding.text.split()) >= _LEAST_WORDS:
            found.update(number for number in at if (place, number) not in unproven)
    missed = [defect for number, defect in enumerate(defects) if number not in found]
    return Score(len(found), len(missed), false_alarms), missed


def chance_of_guess(places: int, defects: int, threshold: float) -> float:
    """Return the probability that marking changed places at random reaches the threshold, for the number of marks with
    which it is most likely. Of the `places` that the change touches, `defects` have a defect."""

    def chance(marked: int) -> float:
        ways = 0
        for hits in range(max(0, marked - (places - defects)), min(marked, defects) + 1):
            if Score(hits, defects - hits, marked - hits).value >= threshold:
                ways += math.comb(defects, hits) * math.comb(places - defects, marked - hits)
        return ways / math.comb(places, marked)

    return max(map(chance, range(places + 1)), default=1.0)
