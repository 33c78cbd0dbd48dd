"""Runs what a repository uses over its files as they are and as they were, and tells what is new.

Both are looked at in one scratch tree, so the linters' own leftovers and caches stay out of the workspace. What was
found over equal files is not looked for again. A linter that gave no answer is always told as such: nobody takes its
silence for "no problems".
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from etude.harness.lints.compare import in_order, unmatched
from etude.harness.lints.detect import Tree, find_roots, nearest, within
from etude.harness.lints.diagnostic import Diagnostic
from etude.harness.lints.linter import Linter, builtin_linters
from etude.harness.lints.look import Answer, Look
from etude.harness.workspace import Workspace

Files: TypeAlias = Mapping[str, bytes]
MOST_ROOTS = 20
"""Configured folders that one call looks at, for each linter."""


@dataclass(slots=True)
class Report:
    """What a look found. `fresh` and `old` are in order of place."""

    fresh: list[Diagnostic] = field(default_factory=list)
    old: list[Diagnostic] = field(default_factory=list)
    elsewhere: int = 0
    """New ones outside of the path that was asked for."""
    answered: list[str] = field(default_factory=list)
    """Linters that gave an answer."""
    remarks: list[str] = field(default_factory=list)
    """What has to be known beside it: who gave no answer, and why."""


class Lints:
    """Of one run: remembers its answers."""

    def __init__(self, linters: Sequence[Linter] | None = None) -> None:
        self.linters = tuple(linters if linters is not None else builtin_linters())
        self._kept: dict[tuple[bool, str, str, str], tuple[Files, Answer]] = {}
        self._lock = asyncio.Lock()

    async def look(self, workspace: Workspace, path: str = ".") -> Report:
        """At a file or folder; "." is everything. NoShell, HostOverloaded, RequestRefused and what ends a run leave
        it."""
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
                        f"{linter.name}: {len(wanted)} folders are configured, the first {MOST_ROOTS} were looked at; "
                        "name a folder for others"
                    )
                for root in wanted[:MOST_ROOTS]:
                    look = Look(linter, root, tuple(folders), path, root.folder in before, start)
                    await self._one(workspace, look, start, now, report)
            report.fresh, report.old = in_order(report.fresh), in_order(report.old)
            report.answered = list(dict.fromkeys(report.answered))
            return report

    async def _one(self, workspace: Workspace, look: Look, start: Files, now: Files, report: Report) -> None:
        was = self._known(True, look, start) if look.was_there else Answer()
        answer = self._known(False, look, now)
        if was is None or answer is None:
            # The tree has to end at what is now.
            states = [start, now] if was is None else [now]
            results = await workspace.aside(states, look.command(), timeout=look.linter.seconds)
            answer = self._kept_now(False, look, now, look.answer(results[-1], now))
            if was is None:
                was = self._kept_now(True, look, start, look.answer(results[0], start))
        report.remarks += look.remarks(was, answer)
        if answer.failure:
            return
        report.answered.append(look.linter.name)
        fresh = unmatched(was.problems, answer.problems, start, now)
        report.fresh += [problem for problem in fresh if within(problem.path, look.path)]
        report.elsewhere += sum(not within(problem.path, look.path) for problem in fresh)
        new = set(fresh)
        report.old += [problem for problem in answer.problems if problem not in new and within(problem.path, look.path)]

    def _known(self, at_start: bool, look: Look, files: Files) -> Answer | None:
        kept = self._kept.get((at_start, *look.key))
        return kept[1] if kept is not None and kept[0] == files else None

    def _kept_now(self, at_start: bool, look: Look, files: Files, answer: Answer) -> Answer:
        # What is not installed may be, the next time.
        if not answer.failure:
            self._kept[at_start, *look.key] = (files, answer)
        return answer
