"""Finds out which lines of the parser an input reaches that no earlier input has reached."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from types import CodeType, FrameType
from typing import Any


class ReachedLines:
    """Collects the steps from line to line within functions of some modules."""

    def __init__(self, modules: tuple[str, ...]) -> None:
        self._modules = modules
        self._watched: dict[CodeType, bool] = {}
        self.steps: set[tuple[CodeType, int, int]] = set()
        """(function, line before, line) of each step that was made so far."""

    def __len__(self) -> int:
        return len(self.steps)

    @contextlib.contextmanager
    def collect(self) -> Iterator[None]:
        sys.settrace(self._call)
        try:
            yield
        finally:
            sys.settrace(None)

    def _call(self, frame: FrameType, event: str, argument: Any) -> Any:
        code = frame.f_code
        watched = self._watched.get(code)
        if watched is None:
            watched = self._watched[code] = frame.f_globals.get("__name__", "").startswith(self._modules)
        if not watched:
            return None
        before, steps = 0, self.steps

        def line(frame: FrameType, event: str, argument: Any) -> Any:
            nonlocal before
            if event == "line":
                steps.add((code, before, frame.f_lineno))
                before = frame.f_lineno
            return line

        return line
