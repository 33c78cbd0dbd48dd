"""Scores the findings of a review by the planted defects that they locate and by their false alarms. Also computes how
likely random findings are to pass."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from pydantic import BaseModel, ConfigDict, Field

from etude.tasks.verifiers.review.findings import Finding

_LEAST_WORDS = 3


class Defect(BaseModel):
    """A defect planted in the code to review, at the lines `first` to `last` of a file."""

    model_config = ConfigDict(strict=True, frozen=True, extra="forbid")

    path: str
    first: int = Field(ge=1)
    last: int = Field(ge=1)
    tests: list[str] = Field(min_length=1)
    """Tests that fail because of this defect alone. They prove that the defect is not a matter of taste."""
    files: dict[str, str] = {}
    """Contents of the reviewed files, by path, with this defect and no other. Required if findings must contain
    examples, since these are then run on the files."""

    def is_at(self, finding: Finding, slack: int) -> bool:
        """Return whether a finding is at this defect, at most `slack` lines above or below."""
        near = self.first - slack <= finding.line <= self.last + slack
        return finding.path == self.path and near


@dataclass(frozen=True, slots=True)
class Score:
    found: int
    missed: int
    false_alarms: int
    """Number of findings that are not at any defect."""

    @property
    def value(self) -> float:
        """The F1 score: the harmonic mean of precision and recall."""
        return 2 * self.found / (2 * self.found + self.missed + self.false_alarms) if self.found else 0.0


def score_of(
    findings: Sequence[Finding], defects: Sequence[Defect], slack: int, unproven: Collection[tuple[int, int]] = ()
) -> tuple[Score, list[Defect]]:
    """Return a review's score and the defects that it missed. A finding outside all defects is a false alarm. A finding
    at a defect counts for nothing if it is unproven (`unproven` has index pairs (finding, defect)), has fewer than
    three words, or repeats another."""
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
    """Return the probability that random findings reach an F1 score of `threshold`, for the most favourable number of
    findings. `places` is how many places the reviewed change touches; `defects` is how many of them have a defect."""

    def chance(marked: int) -> float:
        ways = 0
        for hits in range(max(0, marked - (places - defects)), min(marked, defects) + 1):
            if Score(hits, defects - hits, marked - hits).value >= threshold:
                ways += math.comb(defects, hits) * math.comb(places - defects, marked - hits)
        return ways / math.comb(places, marked)

    return max(map(chance, range(places + 1)), default=1.0)
