"""The tool lints: runs the repository's linters, returns their problems, new ones first, and names failed linters."""

from __future__ import annotations

from typing import Any

from etude.harness.lints.diagnostic import Diagnostic
from etude.harness.tools.context import Output, ToolContext, ToolProblem
from etude.harness.workspaces.workspace import clean_path

MOST_SHOWN = 100
"""Maximum number of problems to return, for new and for older problems separately."""


async def lints(run: ToolContext, arguments: dict[str, Any]) -> Output:
    path = clean_path(arguments.get("path", "."), run.workspace.workdir)
    files = await run.workspace.files()
    if path != "." and path not in files and not any(name.startswith(f"{path}/") for name in files):
        raise ToolProblem(run.say("no_file", path=path, hint=""))
    report = await run.lints.lint(run.workspace, path)
    if not report.answered and not report.remarks:
        names = ", ".join(linter.name for linter in run.lints.linters)
        return Output([run.say("no_linter", path=path, linters=names)])
    lines: list[str] = []
    if report.fresh:
        lines += [run.say("lints_new", count=len(report.fresh)), *_shown(run, report.fresh)]
    elif report.answered:
        lines.append(run.say("lints_none", linters=", ".join(report.answered)))
    if report.elsewhere:
        lines.append(run.say("lints_elsewhere", count=report.elsewhere, path=path))
    if report.old:
        count = len({problem.path for problem in report.old})
        lines.append(run.say("lints_old", count=len(report.old), files=count))
        if arguments.get("older", False):
            lines += _shown(run, report.old)
    return Output([*report.remarks, *lines], ok=bool(report.answered))


def _shown(run: ToolContext, problems: list[Diagnostic]) -> list[str]:
    shown = [problem.as_line() for problem in problems[:MOST_SHOWN]]
    left = len(problems) - len(shown)
    return [*shown, run.say("lints_more", count=left)] if left else shown
