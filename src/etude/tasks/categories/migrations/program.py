"""A program in three equivalent versions (one on the old interface, two on the new), with tests that all three pass."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from etude.tasks.verifiers.migration import OldInterface


@dataclass(frozen=True, slots=True)
class Program:
    name: str
    kind: str
    about: str
    instruction: str
    before: str
    after: str
    other: str
    """A second version of the program on the new interface, written differently."""
    tests: str
    """Source of a unittest module that all versions of the program pass. It has one class, ProgramTest."""
    old: OldInterface
    new: tuple[str, ...]
    absent: tuple[str, ...]
    """Paths of files that are written at grading to make the old interface absent. Each one replaces or hides a module
    of the old interface, and raises ImportError when imported."""
    dulled: Mapping[str, bytes] = field(default_factory=dict)
    """A stub of the new interface that returns nothing useful: files to lay over the workspace and the tests. A program
    that really uses the new interface fails its tests with this stub."""
    libraries: Mapping[str, bytes] = field(default_factory=dict)

    @property
    def test_names(self) -> list[str]:
        return re.findall(r"def (test_\w+)", self.tests)
