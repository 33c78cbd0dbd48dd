"""lints: the problems that the repository's linters report, new ones first. A linter that gave no answer is named."""

from __future__ import annotations

from typing import Any

from etude.harness.lints.diagnostic import Diagnostic
from etude.harness.toolbox import Output, Toolbox, ToolProblem
from etude.harness.workspace import clean_path

MOST_SHOWN = 100
"""Most new and most older problems to show. What then exceeds the turn's bound on output is cut as well."""


async def lints(toolbox: Toolbox, arguments: dict[str, Any]) -> Output:
    path = clean_path(arguments.get("path", "."), toolbox.workspace.workdir)
    files = await toolbox.workspace.files()
    if path != "." and path not in files and not any(name.startswith(f"{path}/") for name in files):
        raise ToolProblem(toolbox.say("no_file", path=path, hint=""))
    report = await toolbox.lints.look(toolbox.workspace, path)
    if not report.answered and not report.remarks:
        names = ", ".join(linter.name for linter in toolbox.lints.linters)
        return Output([toolbox.say("no_linter", path=path, linters=names)])
    lines: list[str] = []
    if report.fresh:
        lines += [toolbox.say("lints_new", count=len(report.fresh)), *_shown(toolbox, report.fresh)]
    elif report.answered:
        lines.append(toolbox.say("lints_none", linters=", ".join(report.answered)))
    if report.elsewhere:
        lines.append(toolbox.say("lints_elsewhere", count=report.elsewhere, path=path))
    if report.old:
        count = len({problem.path for problem in report.old})
        lines.append(toolbox.say("lints_old", count=len(report.old), files=count))
        if arguments.get("older", False):
            lines += _shown(toolbox, report.old)
    return Output([*report.remarks, *lines], ok=bool(report.answered))


def _shown(toolbox: Toolbox, problems: list[Diagnostic]) -> list[str]:
    shown = [problem.told() for problem in problems[:MOST_SHOWN]]
    left = len(problems) - len(shown)
    return [*shown, toolbox.say("lints_more", count=left)] if left else shown
