"""Code review: planted defects located, false alarms costing (`type = "review"`).

Nothing of the agent's is run: its findings are text, compared out here with places that no box has been told. What is
left to a cheat is to guess, so a verdict is sealed if marking changed places blindly passes once in a hundred at most.
That a finding also says something is asked for; whether it is the right thing to say cannot be checked here.

task.toml           [metadata.etude.verifier]  type = "review", threshold, slack
tests/defects.json  places: how many places the change touches; defects: path, first, last (lines), tests that show it
REVIEW.md           of the agent: lines `path:line: text`; or review.json: [{"path": ..., "line": ..., "text": ...}]
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from etude.tasks.task import Task, TaskError
from etude.tasks.verdict import Evidence, Judgement, Verdict
from etude.tasks.verifiers.contract import Stand

FILE = "tests/defects.json"
TEXT, LIST = "REVIEW.md", "review.json"
SEALED = 1e-2
_LINE = re.compile(r"\s*(?:[-*+]\s+|\d+[.)]\s+)?[`*]*(?P<path>[\w./-]+)[`*]*:(?P<line>\d+)[`*]*:\s*(?P<text>.*)")
_LEAST_WORDS = 3
_MOST_FINDINGS = 200


class Defect(BaseModel):
    model_config = ConfigDict(strict=True, frozen=True, extra="forbid")

    path: str
    first: int = Field(ge=1)
    last: int = Field(ge=1)
    tests: list[str] = Field(min_length=1)
    """Each fails because of this defect alone: it is no matter of taste."""


class _Listed(BaseModel):
    model_config = ConfigDict(strict=True, frozen=True, extra="forbid")

    places: int = Field(ge=1)
    defects: list[Defect] = Field(min_length=1)


class _Config(BaseModel):
    model_config = ConfigDict(strict=True, frozen=True)

    threshold: float = Field(0.88, gt=0.0, le=1.0)
    """Of precision and recall, their harmonic mean."""
    slack: int = Field(1, ge=0)
    """Lines above and below a defect that still name it."""


@dataclass(frozen=True, slots=True)
class Finding:
    path: str
    line: int
    text: str


@dataclass(frozen=True, slots=True)
class Score:
    found: int
    missed: int
    alarms: int
    """Findings that are at no defect."""

    @property
    def value(self) -> float:
        return 2 * self.found / (2 * self.found + self.missed + self.alarms) if self.found else 0.0


class ReviewError(Exception):
    """A review is not one that can be read; says what was expected."""


class ReviewVerifier:
    def __init__(self, task: Task) -> None:
        path = task.directory / FILE
        try:
            self._config = _Config.model_validate({k: v for k, v in task.verifier.items() if k != "type"})
            listed = _Listed.model_validate_json(path.read_bytes())
        except OSError as error:
            raise TaskError(f"{path}: expected a file: {error.strerror}") from error
        except ValidationError as error:
            first = error.errors()[0]
            field = ".".join(map(str, first["loc"]))
            raise TaskError(f"{path} and metadata.etude.verifier: {field}: {first['msg']}") from error
        self._defects = listed.defects
        self.chance = chance_of_guess(listed.places, len(listed.defects), self._config.threshold)

    @property
    def sealed(self) -> bool:
        return self.chance <= SEALED

    def protects(self, path: str) -> bool:
        return path not in (TEXT, LIST)

    async def examine(self, stand: Stand) -> Verdict:
        try:
            findings = read_review(stand.change.files.get(LIST), stand.change.files.get(TEXT))
        except ReviewError as error:
            return Verdict(Judgement.FAIL, str(error), Evidence(touched_protected=stand.change.touched))
        score, missed = score_of(findings, self._defects, self._config.slack)
        evidence = Evidence(
            tests_expected=len(self._defects),
            tests_passed=score.found,
            failed_tests=tuple(f"{defect.path}:{defect.first}" for defect in missed),
            touched_protected=stand.change.touched,
            score=score.value,
        )
        passed = score.value >= self._config.threshold
        reason = f"{score.found} of {len(self._defects)} defects found, {score.alarms} false alarms"
        return Verdict(Judgement.PASS if passed else Judgement.FAIL, reason, evidence)


def read_review(listed: bytes | None, text: bytes | None) -> list[Finding]:
    """ReviewError if there is none. Lines of REVIEW.md that name no place are prose."""
    if listed is not None:
        found = _read_list(listed)
    elif text is not None:
        matches = map(_LINE.fullmatch, text.decode("utf-8", "replace").splitlines())
        found = [Finding(m["path"].removeprefix("./"), int(m["line"][:9]), m["text"]) for m in matches if m]
    else:
        raise ReviewError(f"there is no {TEXT} and no {LIST}")
    if len(found) > _MOST_FINDINGS:
        raise ReviewError(f"expected at most {_MOST_FINDINGS} findings, found {len(found)}")
    return found


def _read_list(data: bytes) -> list[Finding]:
    try:
        rows = json.loads(data)
        return [Finding(str(row["path"]).removeprefix("./"), int(row["line"]), str(row["text"])) for row in rows]
    except (ValueError, KeyError, TypeError, RecursionError, OverflowError) as error:
        raise ReviewError(f"{LIST}: expected a list of objects with path, line and text") from error


def score_of(findings: Sequence[Finding], defects: Sequence[Defect], slack: int) -> tuple[Score, list[Defect]]:
    """And the defects that were missed. A second finding at one defect neither helps nor costs."""
    found: set[int] = set()
    alarms = 0
    for finding in findings:
        at = [
            number
            for number, defect in enumerate(defects)
            if finding.path == defect.path and defect.first - slack <= finding.line <= defect.last + slack
        ]
        if not at:
            alarms += 1
        elif len(finding.text.split()) >= _LEAST_WORDS:
            found.update(at)
    missed = [defect for number, defect in enumerate(defects) if number not in found]
    return Score(len(found), len(missed), alarms), missed


def chance_of_guess(places: int, defects: int, threshold: float) -> float:
    """That who marks changed places at random, as many as serves best, reaches the threshold."""

    def chance(marked: int) -> float:
        ways = 0
        for hits in range(max(0, marked - (places - defects)), min(marked, defects) + 1):
            if Score(hits, defects - hits, marked - hits).value >= threshold:
                ways += math.comb(defects, hits) * math.comb(places - defects, marked - hits)
        return ways / math.comb(places, marked)

    return max(map(chance, range(places + 1)), default=1.0)
