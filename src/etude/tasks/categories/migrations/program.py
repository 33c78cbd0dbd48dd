"""A program in three versions that do the same, with the tests that show it."""

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
    """On the new interface too, written in another way."""
    tests: str
    """A unittest module with one class, ProgramTest."""
    old: OldInterface
    new: tuple[str, ...]
    absent: tuple[str, ...]
    """Files that stand in the old interface's way at grading."""
    dulled: Mapping[str, bytes] = field(default_factory=dict)
    """Over the workspace and the tests: the new interface is there, and answers nothing that is of use."""
    libraries: Mapping[str, bytes] = field(default_factory=dict)

    @property
    def test_names(self) -> list[str]:
        return re.findall(r"def (test_\w+)", self.tests)
