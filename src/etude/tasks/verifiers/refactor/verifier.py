"""The verifier of tasks in which the agent restructures code (`type = "refactor"`).

First the source text is checked, outside of any box. The public interface must be unchanged. Size and duplication
(`measure.py`) must be at most what the task asks for, and no code may be hidden from these measures. No public function
may make more decisions than the most complex one did before. Then the suite verifier runs the hidden tests, and decides
whether the verdict is sealed (safe against forgery).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from pydantic import BaseModel, ConfigDict, Field

from etude.tasks.protected_files import is_protected
from etude.tasks.task import Task
from etude.tasks.verdict import Evidence, Judgement, Verdict
from etude.tasks.verifiers.contract import GradingContext
from etude.tasks.verifiers.inputs import read_table
from etude.tasks.verifiers.refactor.interface import changes, hidden_code_risks
from etude.tasks.verifiers.refactor.measure import Measures, measure
from etude.tasks.verifiers.tests import TestsVerifier

DENSER = 1.25
"""Factor by which the largest statement may grow. A statement of up to 30 nodes is always allowed. The limit keeps code
from being packed into fewer, larger statements."""


class RefactorConfig(BaseModel):
    """The settings in [metadata.etude.verifier], in addition to those of a hidden suite."""

    model_config = ConfigDict(strict=True, frozen=True)

    size: int = Field(gt=0)
    """Largest size, in syntax tree nodes, that the library may have after the change."""
    duplicated: int = Field(ge=0)
    """Maximum number of syntax tree nodes in repeated statements after the change, apart from first occurrences."""


class RefactorVerifier:
    def __init__(self, task: Task) -> None:
        self.config = read_table(task, RefactorConfig)
        self.tests = TestsVerifier(task)

    @property
    def sealed(self) -> bool:
        return self.tests.sealed

    def protects(self, path: str) -> bool:
        # Files of other kinds cannot be changed, so no code can be moved into them.
        return self.tests.protects(path) or is_protected(path) or not path.endswith((".py", ".md"))

    async def examine(self, context: GradingContext) -> Verdict:
        before = self._sources(context.pristine.files)
        after = self._sources(context.files)
        touched = Evidence(touched_protected=context.change.touched)
        try:
            was, now = measure(before), measure(after)
            problem = next(self._problems(before, after, was, now), "")
        except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
            return Verdict(Judgement.FAIL, f"the code cannot be parsed any more: {error}", touched)
        # Share of the required saving; more than 1 is possible.
        score = (was.size - now.size) / max(1, was.size - self.config.size)
        if problem:
            return Verdict(Judgement.FAIL, problem, replace(touched, score=score))
        verdict = await self.tests.examine(context)
        return replace(verdict, evidence=replace(verdict.evidence, score=score))

    def _sources(self, files: Mapping[str, bytes]) -> dict[str, str]:
        """Return the library's source files by path: the Python files that a solution may change."""
        return {
            path: data.decode("utf-8", "replace")
            for path, data in files.items()
            if path.endswith(".py") and not self.protects(path)
        }

    def _problems(
        self, before: Mapping[str, str], after: Mapping[str, str], was: Measures, now: Measures
    ) -> Iterator[str]:
        ours = {path.partition("/")[0].removesuffix(".py") for path in {**before, **after}}
        for path, source in after.items():
            for change in changes(before[path], source) if path in before else ():
                yield f"{path}: {change}"
            if found := hidden_code_risks(before.get(path, ""), source, ours):
                yield f"{path}: {found[0]} can hide code"
        if gone := sorted(before.keys() - after.keys()):
            yield f"{gone[0]} was removed"
        if now.complexity > was.complexity:
            yield f"a public function may make {now.complexity} decisions, at most {was.complexity} before"
        if now.densest > max(DENSER * was.densest, 30):
            yield f"one statement has {now.densest} nodes, at most {was.densest} before"
        if now.duplicated > self.config.duplicated:
            most = self.config.duplicated
            yield f"{now.duplicated} nodes are repeated ({was.duplicated} before), expected at most {most}"
        if now.size > self.config.size:
            yield f"the size is {now.size} ({was.size} before), expected at most {self.config.size}"
