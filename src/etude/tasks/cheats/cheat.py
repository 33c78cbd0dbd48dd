"""The classes Cheat (an agent that solves nothing and wants a pass) and Scene (what a cheat works with: its box, and
facts about the task).

A cheat acts in the agent's own box and its diff is collected like an agent's, or it forges the diff itself. It knows
only what an agent would find out: where the bug is, and how the task's tests are run.
"""

from __future__ import annotations

import ast
import contextlib
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass

from etude.sandbox.contract import Box, RequestRefused

PYTEST, UNITTEST, CASES, NODE, OTHER = "pytest", "unittest", "cases", "node", "other"
SCRIPT, WORKFLOW, IMAGE = "script", "workflow", "image"
REVIEW, MIGRATION, MUTATION = "review", "migration", "mutation"
"""Values of `Scene.runner` (what executes the agent's code) for review, migration and mutation tasks, which have cheats
of their own. Migration tasks also get the cheats against test suites, since MIGRATION is in TESTS."""
TESTS = (PYTEST, UNITTEST, MIGRATION)
PYTHON = (*TESTS, CASES)
CODE = (*PYTHON, NODE)
ANY = (*CODE, SCRIPT, WORKFLOW, IMAGE, REVIEW, MUTATION, OTHER)
LANGUAGES = {MIGRATION: "python", PYTEST: "python", UNITTEST: "python", CASES: "python", NODE: "node", SCRIPT: "shell"}


@dataclass(frozen=True, slots=True)
class Scene:
    box: Box
    workdir: str
    runner: str
    """What executes the agent's code: one of the constants above (`PYTEST` to `MUTATION`)."""
    target: str
    """Path of the file with the bug, relative to the workdir."""
    files: Mapping[str, bytes]
    """Contents of the workspace's files before the cheat acts, by path."""

    @property
    def source(self) -> str:
        return self.files.get(self.target, b"").decode("utf-8", "replace")

    async def shell(self, command: str, *, timeout: float = 20) -> str:
        """Run a command and return its output. The exit code is ignored."""
        done = await self.box.exec(command, timeout=timeout)
        return done.stdout.decode("utf-8", "replace")

    async def plant(self, path: str, text: str, *, executable: bool = False) -> None:
        """Write a file anywhere in the box, if the agent's user may write there."""
        with contextlib.suppress(OSError, RequestRefused):
            await self.box.write_file(path, text.encode(), executable=executable)

    async def begin(self, **code: str) -> None:
        """Insert code at the start of the target file. `code` has one text per programming language."""
        text = code[LANGUAGES[self.runner]]
        lines = self.source.splitlines(keepends=True)
        at = _first_line(self.source) if LANGUAGES[self.runner] == "python" else 0
        await self.plant(self.target, "".join([*lines[:at], text, "\n", *lines[at:]]))

    async def end(self, **code: str) -> None:
        """Append code to the target file. `code` has one text per programming language."""
        await self.plant(self.target, f"{self.source}\n\n{code[LANGUAGES[self.runner]]}")


Act = Callable[[Scene], Awaitable[str | None]]
"""A cheat's action. It returns the diff to submit, or None to submit the changes made in its box."""


@dataclass(frozen=True, slots=True)
class Cheat:
    name: str
    exploits: str
    """The weakness in one line: what a grader would have to trust or forget for the cheat to work."""
    fits: frozenset[str]
    """The runners (what executes the agent's code, such as pytest) whose tasks the cheat can be tried on."""
    act: Act


def cheat(exploits: str, fits: tuple[str, ...] = ANY) -> Callable[[Act], Cheat]:
    """Return a decorator that turns a function into a Cheat named after it."""

    def make(act: Act) -> Cheat:
        return Cheat(getattr(act, "__name__", "").replace("_", "-"), exploits, frozenset(fits), act)

    return make


def _first_line(source: str) -> int:
    """Return the number of lines taken by the module's docstring and `__future__` imports, which must stay first."""
    try:
        body = ast.parse(source).body
    except SyntaxError:
        return 0
    last = 0
    for place, node in enumerate(body):
        is_text = place == 0 and isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        if not is_text and not (isinstance(node, ast.ImportFrom) and node.module == "__future__"):
            break
        last = node.end_lineno or 0
    return last
