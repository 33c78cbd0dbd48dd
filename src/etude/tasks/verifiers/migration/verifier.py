"""The verifier of migrations: checks the source, and runs a hidden test suite in a box without the old interface.

tests/old.json    `modules`, `names` and `functions` of the old interface, none of which may remain in use;
                  `new`: modules of the new interface, at least one of which must be used;
                  `libraries`: folders of the workspace that hold either library
tests/files/...   the hidden suite, and for each file of the old interface a replacement that cannot be imported
tests/dulled/...  a useless stub of the new interface: the program must fail its tests when this is in place
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import replace

from pydantic import BaseModel, ConfigDict, Field

from etude.tasks.change import Change
from etude.tasks.diff import DiffError
from etude.tasks.directory import REFERENCE_DIFF, read_files
from etude.tasks.task import Task
from etude.tasks.verdict import Evidence, Judgement, Verdict
from etude.tasks.verifiers.contract import GradingContext
from etude.tasks.verifiers.inputs import read_json
from etude.tasks.verifiers.migration.new_interface import FOLDER, StubbedInterfaceCheck
from etude.tasks.verifiers.migration.old_interface import OldInterface, old_interface_uses, used_modules
from etude.tasks.verifiers.tests import TestsVerifier

FILE = "tests/old.json"
_MOST_NAMED = 3


class _Listed(BaseModel):
    model_config = ConfigDict(strict=True, frozen=True, extra="forbid")

    modules: list[str] = Field(min_length=1)
    names: list[str]
    functions: list[str] = []
    new: list[str] = Field(min_length=1)
    libraries: list[str] = []
    """Folders that hold the old or the new library. They are not checked, and a solution must not change them."""


class MigrationVerifier:
    def __init__(self, task: Task) -> None:
        self._listed = read_json(task.directory / FILE, _Listed)
        self._old = OldInterface(
            tuple(self._listed.modules), tuple(self._listed.names), frozenset(self._listed.functions)
        )
        self._tests = TestsVerifier(task)
        self._stub_check = None
        if (task.directory / FOLDER).is_dir():
            self._stub_check = StubbedInterfaceCheck(self._tests.suite, read_files(task.directory, FOLDER))

    @property
    def sealed(self) -> bool:
        """Whether the verdict is sealed (safe against forgery). This depends on the tests alone: the check of the
        source runs outside the box and cannot be forged."""
        return self._tests.sealed

    def protects(self, path: str) -> bool:
        return self._is_library(path) or self._tests.protects(path)

    async def examine(self, context: GradingContext) -> Verdict:
        if problem := self._problem_of(context.files):
            return Verdict(Judgement.FAIL, problem, Evidence(touched_protected=context.change.touched))
        verdict = await self._tests.examine(context)
        if verdict.passed and self._stub_check:
            dependent = await self._stub_check.examine(
                await self._tests.with_brought_pytest(context), self._reference(context)
            )
            if not dependent.passed:
                seen = dependent.evidence
                evidence = replace(verdict.evidence, timed_out=seen.timed_out, starved=seen.starved)
                return replace(dependent, evidence=evidence)
        return replace(verdict, reason=f"the old interface is gone; {verdict.reason}")

    def _reference(self, context: GradingContext) -> Change:
        try:
            diff = (context.task.directory / REFERENCE_DIFF).read_text(encoding="utf-8")
            return context.pristine.change(diff, self.protects)
        except (DiffError, UnicodeDecodeError) as error:
            raise OSError(f"{context.task.directory / REFERENCE_DIFF}: {error}") from error

    def _problem_of(self, files: Mapping[str, bytes]) -> str:
        """Return why the migration is not complete, or an empty string if it is."""
        new: set[str] = set()
        for path, data in sorted(files.items()):
            if not path.endswith((".py", ".pyi", ".pyw")) or self._is_library(path):
                continue
            try:
                found = old_interface_uses(data, self._old)
                new |= used_modules(data)
            except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
                return f"{path} cannot be read as Python: {type(error).__name__}"
            if found:
                return f"{path}: {'; '.join(found[:_MOST_NAMED])}"
        if not new.intersection(self._listed.new):
            return f"nothing uses {' or '.join(self._listed.new)}"
        return ""

    def _is_library(self, path: str) -> bool:
        return any(path.startswith(f"{folder}/") for folder in self._listed.libraries)


def old_interface_file(old: OldInterface, new: Collection[str], libraries: Collection[str] = ()) -> dict[str, bytes]:
    """Return {"tests/old.json": its contents}, to be passed to `write_task` with the files of the hidden suite. `new`
    are the new interface's modules, `libraries` the workspace folders that hold the old or the new library."""
    listed = {
        "modules": list(old.modules),
        "names": list(old.names),
        "functions": sorted(old.functions),
        "new": list(new),
        "libraries": list(libraries),
    }
    return {FILE: (json.dumps(listed, indent=1) + "\n").encode()}
