"""The verifier of code reviews (`type = "review"`): planted defects must be located and shown, false alarms cost.

Findings are text, compared outside the box with places that no box is told. A cheat can only guess, so the verdict is
sealed if blindly marking changed places passes at most once in a hundred times. With `examples`, a finding must also
demonstrate its defect with an expression whose value the defect changes, which is tried in boxes.

task.toml           [metadata.etude.verifier]  type = "review", threshold, slack, examples
tests/defects.json  places: how many places the change touches; defects: path, first, last (lines), tests that show
                    it, files (with it alone); sound: files of the workspace without any defect
"""

from __future__ import annotations

import time

from pydantic import BaseModel, ConfigDict, Field

from etude.tasks.task import Task, TaskError
from etude.tasks.verdict import Evidence, Judgement, Verdict
from etude.tasks.verifiers.contract import SEALED, Stand
from etude.tasks.verifiers.inputs import read_json, read_table
from etude.tasks.verifiers.review.findings import LIST, TEXT, ReviewError, read_review
from etude.tasks.verifiers.review.proof import unproven
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
    """Least harmonic mean of precision and recall."""
    slack: int = Field(1, ge=0)
    """How many lines above or below a defect a finding may be."""
    examples: bool = False
    """Whether a finding counts only with an example that demonstrates its defect."""


class ReviewVerifier:
    def __init__(self, task: Task) -> None:
        path = task.directory / FILE
        self._config, listed = read_table(task, _Config), read_json(path, _Listed)
        if self._config.examples and not (listed.sound and all(defect.files for defect in listed.defects)):
            raise TaskError(f"{path}: expected sound, and files of each defect: the verifier asks for examples")
        self._defects, self._sound = listed.defects, listed.sound
        self.chance = chance_of_guess(listed.places, len(listed.defects), self._config.threshold)

    @property
    def sealed(self) -> bool:
        return self.chance <= SEALED

    def protects(self, path: str) -> bool:
        return path not in (TEXT, LIST)

    async def examine(self, stand: Stand) -> Verdict:
        started = time.monotonic()
        try:
            findings = read_review(stand.change.files.get(LIST), stand.change.files.get(TEXT))
        except ReviewError as error:
            return Verdict(Judgement.FAIL, str(error), Evidence(touched_protected=stand.change.touched))
        slack, idle = self._config.slack, set[tuple[int, int]]()
        if self._config.examples:
            wrong = await unproven(stand, findings, self._defects, slack, self._sound)
            if isinstance(wrong, Verdict):
                return wrong
            idle = wrong
        score, missed = score_of(findings, self._defects, slack, idle)
        evidence = Evidence(
            tests_expected=len(self._defects),
            tests_passed=score.found,
            failed_tests=tuple(f"{defect.path}:{defect.first}" for defect in missed),
            touched_protected=stand.change.touched,
            seconds=time.monotonic() - started,
            score=score.value,
        )
        passed = score.value >= self._config.threshold
        reason = f"{score.found} of {len(self._defects)} defects found, {score.alarms} false alarms"
        if idle:
            reason += f", {len(idle)} examples that show nothing"
        return Verdict(Judgement.PASS if passed else Judgement.FAIL, reason, evidence)
