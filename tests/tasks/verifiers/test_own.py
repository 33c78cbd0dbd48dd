"""A verifier that somebody brings is registered by name, and grades the tasks that name it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from etude.tasks import GradingContext, Judgement, Verdict, Verifier, open_verifier, register_verifier
from etude.tasks import verifiers as registry

from ..conftest import Grade
from . import projects


class Mentions:
    """Passes a change that adds the word it is told."""

    sealed = True

    def __init__(self, word: str) -> None:
        self.word = word.encode()

    def protects(self, path: str) -> bool:
        return path == "kept.txt"

    async def examine(self, context: GradingContext) -> Verdict:
        found = any(self.word in data for data in context.files.values())
        return Verdict(Judgement.PASS if found else Judgement.FAIL, "looked for the word")


def test_it_grades_and_no_name_is_taken_twice(grade: Grade, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_VERIFIERS", dict(registry._VERIFIERS))
    register_verifier("mentions", lambda task: Mentions(str(task.verifier["word"])))
    task = replace(projects.project(tmp_path / "task", "unittest"), verifier={"type": "mentions", "word": "xyzzy"})
    assert isinstance(open_verifier(task), Verifier)
    said = "--- /dev/null\n+++ b/said.txt\n@@ -0,0 +1 @@\n+xyzzy\n"
    found = grade(task, said, "", said.replace("said", "kept"))
    assert [verdict.judgement for verdict in found] == [Judgement.PASS, Judgement.FAIL, Judgement.FAIL]
    with pytest.raises(ValueError, match="'mentions' already"):
        register_verifier("mentions", Mentions)  # type: ignore[arg-type]
