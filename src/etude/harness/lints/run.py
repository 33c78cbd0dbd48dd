"""Runs a repository's linters on its current and its original files, and reports which problems are new.

Both states of the files are checked in one scratch tree, a copy of the workspace, so that the linters' caches and
leftovers stay out of the workspace. Results for unchanged files are reused. The report names every linter that failed,
so that a failure is not taken for "no problems".
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from etude.harness.lints.compare import sorted_problems, unmatched
from etude.harness.lints.detect import Tree, find_roots, nearest
from etude.harness.lints.diagnostic import Diagnostic
from etude.harness.lints.linter import Linter, builtin_linters
from etude.harness.lints.linter_run import Answer, LinterRun
from etude.harness.paths import within
from etude.harness.workspaces.workspace import Workspace

Files: TypeAlias = Mapping[str, bytes]
MOST_ROOTS = 20


@dataclass(slots=True)
class Report:
    """Result of linting one path, with problems sorted by file and line."""

    fresh: list[Diagnostic] = field(default_factory=list)
    """Problems in the requested path that did not exist when the agent began."""
    old: list[Diagnostic] = field(default_factory=list)
    elsewhere: int = 0
    """Number of new problems outside the requested path."""
    answered: list[str] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)


class Lints:
    def __init__(self, linters: Sequence[Linter] | None = None) -> None:
        self.linters = tuple(linters if linters is not None else builtin_linters())
        self._kept: dict[tuple[bool, str, str, str], tuple[Files, Answer]] = {}
        self._lock = asyncio.Lock()

    async def lint(self, workspace: Workspace, path: str = ".") -> Report:
        """Lint a file or folder of the workspace. Raises NoShell, HostOverloaded, RequestRefused and SandboxError."""
        async with self._lock:
            start, now = workspace.start, await workspace.snapshot()
            trees = Tree(start), Tree(now)
            report = Report()
            for linter in self.linters:
                if linter.scope == "files" and path in now and not path.endswith(linter.suffixes):
                    continue
                roots = find_roots(linter, trees[1])
                before = {root.folder for root in find_roots(linter, trees[0])}
                folders = [root.folder for root in roots]
                wanted = [root for root in roots if within(root.folder, path) or root.folder == nearest(path, folders)]
                if len(wanted) > MOST_ROOTS:
                    report.remarks.append(
                        f"{linter.name}: {len(wanted)} folders are configured, the first {MOST_ROOTS} were linted; "
                        "name a folder to lint others"
                    )
                for root in wanted[:MOST_ROOTS]:
                    run = LinterRun(linter, root, tuple(folders), path, root.folder in before, start)
                    await self._one(workspace, run, start, now, report)
            report.fresh, report.old = sorted_problems(report.fresh), sorted_problems(report.old)
            report.answered = list(dict.fromkeys(report.answered))
            return report

    async def _one(self, workspace: Workspace, run: LinterRun, start: Files, now: Files, report: Report) -> None:
        """Run a linter on the original and the current files, or take cached results, and add its problems to the
        report."""
        was = self._known(True, run, start) if run.existed_at_start else Answer()
        answer = self._known(False, run, now)
        if was is None or answer is None:
            # The current files come last, because the scratch tree must contain them afterwards.
            states = [start, now] if was is None else [now]
            results = await workspace.run_in_scratch(states, run.command(), timeout=run.linter.seconds)
            answer = self._kept_now(False, run, now, run.answer(results[-1], now))
            if was is None:
                was = self._kept_now(True, run, start, run.answer(results[0], start))
        report.remarks += run.remarks(was, answer)
        if answer.failure:
            return
        report.answered.append(run.linter.name)
        fresh = unmatched(was.problems, answer.problems, start, now)
        report.fresh += [problem for problem in fresh if within(problem.path, run.path)]
        report.elsewhere += sum(not within(problem.path, run.path) for problem in fresh)
        new = set(fresh)
        report.old += [problem for problem in answer.problems if problem not in new and within(problem.path, run.path)]

    def _known(self, at_start: bool, run: LinterRun, files: Files) -> Answer | None:
        kept = self._kept.get((at_start, *run.key))
        return kept[1] if kept is not None and kept[0] == files else None

    def _kept_now(self, at_start: bool, run: LinterRun, files: Files, answer: Answer) -> Answer:
        # Failures are not cached: a linter that is not installed now may be installed next time.
        if not answer.failure:
            self._kept[at_start, *run.key] = (files, answer)
        return answer
