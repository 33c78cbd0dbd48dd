"""The verifier of code reviews (`type = "review"`): the agent must locate planted defects, and false alarms lower its
score.

Findings are compared with the defects' lines outside of any box, so an agent that cheats can only guess. The verdict is
sealed (safe against forgery) if findings at random changed lines pass at most once in a hundred times. With the setting
`examples`, a finding must also give an expression whose value the defect changes; it is evaluated in boxes.
"""

from __future__ import annotations

import time

from pydantic import BaseModel, ConfigDict, Field

from etude.tasks.task import Task, TaskError
from etude.tasks.verdict import Evidence, Judgement, Verdict
from etude.tasks.verifiers.contract import SEALED, GradingContext
from etude.tasks.verifiers.inputs import read_json, read_table
from etude.tasks.verifiers.review.findings import LIST, TEXT, ReviewError, read_review
from etude.tasks.verifiers.review.proof import unproven_findings
from etude.tasks.verifiers.review.score import Defect, chance_of_guess, score_of

FILE = "tests/defects.json"


class _Listed(BaseModel):
    model_config = ConfigDict(strict=True, frozen=True, extra="forbid")

    places: int = Field(ge=1)
    defects: list[Defect] = Field(min_length=1)
    sound: dict[str, str] = {}


class _Config(BaseModel):
    model_config = ConfigDict(strict=True, frozen=True)

    threshold: float = Field(0.88, gt=0.0, le=1.0)
    """Smallest passing score, as the harmonic mean of precision and recall (F1)."""
    slack: int = Field(1, ge=0)
    """Number of lines that a finding may be above or below a defect."""
    examples: bool = False
    """Whether a finding counts only with an example that demonstrates its defect."""


class ReviewVerifier:
    def __init__(self, task: Task) -> None:
        path = task.directory / FILE
        self._config, listed = read_table(task, _Config), read_json(path, _Listed)
        if self._config.examples and not (listed.sound and all(defect.files for defect in listed.defects)):
            raise TaskError(
                f"{path}: expected `sound`, and `files` of each defect, because the verifier requires examples"
            )
        self._defects, self._sound = listed.defects, listed.sound
        self.chance = chance_of_guess(listed.places, len(listed.defects), self._config.threshold)

    @property
    def sealed(self) -> bool:
        return self.chance <= SEALED

    def protects(self, path: str) -> bool:
        return path not in (TEXT, LIST)

    async def examine(self, context: GradingContext) -> Verdict:
        started = time.monotonic()
        try:
            findings = read_review(context.change.files.get(LIST), context.change.files.get(TEXT))
        except ReviewError as error:
            return Verdict(Judgement.FAIL, str(error), Evidence(touched_protected=context.change.touched))
        slack, idle = self._config.slack, set[tuple[int, int]]()
        if self._config.examples:
            wrong = await unproven_findings(context, findings, self._defects, slack, self._sound)
            if isinstance(wrong, Verdict):
                return wrong
            idle = wrong
        score, missed = score_of(findings, self._defects, slack, idle)
        evidence = Evidence(
            tests_expected=len(self._defects),
            tests_passed=score.found,
            failed_tests=tuple(f"{defect.path}:{defect.first}" for defect in missed),
            touched_protected=context.change.touched,
            seconds=time.monotonic() - started,
            score=score.value,
        )
        passed = score.value >= self._config.threshold
        reason = f"{score.found} of {len(self._defects)} defects found, {score.false_alarms} false alarms"
        if idle:
            reason += f", {len(idle)} examples that do not show their defect"
        return Verdict(Judgement.PASS if passed else Judgement.FAIL, reason, evidence)
