"""The verifier of migrations: checks the source, and runs a hidden test suite in a box without the old interface.

tests/old.json    modules, names and functions of the old interface; `new`: modules of which one must be used
tests/files/...   the hidden suite, and for each file of the old interface a replacement that cannot be imported
tests/dulled/...  a useless version of the new interface, with which the program must fail its tests (`dulled`)
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
from etude.tasks.verifiers.contract import Stand
from etude.tasks.verifiers.inputs import read_json
from etude.tasks.verifiers.migration.new_interface import FOLDER, Dulled
from etude.tasks.verifiers.migration.old_interface import Old, leftovers, used
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
    """Folders of the workspace that hold the old or the new library. They are not checked, and a solution must not
    change them."""


class MigrationVerifier:
    def __init__(self, task: Task) -> None:
        self._listed = read_json(task.directory / FILE, _Listed)
        self._old = Old(tuple(self._listed.modules), tuple(self._listed.names), frozenset(self._listed.functions))
        self._tests = TestsVerifier(task)
        self._dulled = None
        if (task.directory / FOLDER).is_dir():
            self._dulled = Dulled(self._tests.suite, read_files(task.directory, FOLDER))

    @property
    def sealed(self) -> bool:
        """As sealed as the suite: the source is checked outside the box."""
        return self._tests.sealed

    def protects(self, path: str) -> bool:
        return self._is_library(path) or self._tests.protects(path)

    async def examine(self, stand: Stand) -> Verdict:
        if problem := self._unfinished(stand.files):
            return Verdict(Judgement.FAIL, problem, Evidence(touched_protected=stand.change.touched))
        verdict = await self._tests.examine(stand)
        if verdict.passed and self._dulled:
            resting = await self._dulled.examine(await self._tests.equipped(stand), self._reference(stand))
            if not resting.passed:
                return replace(resting, evidence=replace(verdict.evidence, timed_out=resting.evidence.timed_out))
        return replace(verdict, reason=f"the old interface is gone; {verdict.reason}")

    def _reference(self, stand: Stand) -> Change:
        try:
            diff = (stand.task.directory / REFERENCE_DIFF).read_text(encoding="utf-8")
            return stand.pristine.change(diff, self.protects)
        except (DiffError, UnicodeDecodeError) as error:
            raise OSError(f"{stand.task.directory / REFERENCE_DIFF}: {error}") from error

    def _unfinished(self, files: Mapping[str, bytes]) -> str:
        """Why this is not a complete migration; empty if it is."""
        new: set[str] = set()
        for path, data in sorted(files.items()):
            if not path.endswith((".py", ".pyi", ".pyw")) or self._is_library(path):
                continue
            try:
                found = leftovers(data, self._old)
                new |= used(data)
            except (SyntaxError, ValueError, RecursionError) as error:
                return f"{path} cannot be read as Python: {type(error).__name__}"
            if found:
                return f"{path}: {'; '.join(found[:_MOST_NAMED])}"
        if not new.intersection(self._listed.new):
            return f"nothing uses {' or '.join(self._listed.new)}"
        return ""

    def _is_library(self, path: str) -> bool:
        return any(path.startswith(f"{folder}/") for folder in self._listed.libraries)


def old_file(old: Old, new: Collection[str], libraries: Collection[str] = ()) -> dict[str, bytes]:
    """The tests/old.json of a task, to pass to `write_task` beside the hidden suite."""
    listed = {
        "modules": list(old.modules),
        "names": list(old.names),
        "functions": sorted(old.functions),
        "new": list(new),
        "libraries": list(libraries),
    }
    return {FILE: (json.dumps(listed, indent=1) + "\n").encode()}
