"""The tools list, read and edit. This file also defines what a line is and how an edit is applied.

Lines end at \\n only. An edit names each line that it replaces by its number. The old line's indentation is kept unless
the new text is itself indented, so that a model need not count spaces. An edit may include lines that stay the same, so
a model that cannot tell which line is wrong can rewrite a whole function.
"""

from __future__ import annotations

import difflib
from pathlib import PurePosixPath
from typing import Any

from etude.harness.editing.diff import as_text
from etude.harness.tools.context import Output, ToolContext, ToolProblem
from etude.harness.workspaces.workspace import clean_path
from etude.text.calls import numbered_lines

MANY_FILES = 5_000
"""In workspaces with more files than this, only files of the same name are suggested for a wrong path."""


async def list_files(run: ToolContext, arguments: dict[str, Any]) -> Output:
    files = await run.workspace.files()
    folder = clean_path(arguments.get("folder", "."), run.workspace.workdir)
    if folder != ".":
        files = [path for path in files if path.startswith(f"{folder}/")]
        if not files:
            raise ToolProblem(run.say("no_file", path=folder, hint=""))
    return Output(files or [run.say("empty")])


async def read(run: ToolContext, arguments: dict[str, Any]) -> Output:
    path = clean_path(arguments["path"], run.workspace.workdir)
    text = await read_text(run, path)
    reread = run.has_read(path, text.encode())
    lines = split_lines(text)
    first = arguments.get("first", 1)
    last = arguments.get("last", len(lines))
    if not lines:
        return Output([run.say("empty")], reread=reread)
    beyond = run.limits.strict and last > len(lines)
    if first < 1 or first > len(lines) or last < first or beyond:
        raise ToolProblem(run.say("bad_range", path=path, first=first, last=last, lines=len(lines)))
    return Output(numbered(lines, first, min(last, len(lines))), reread=reread)


async def edit(run: ToolContext, arguments: dict[str, Any]) -> Output:
    run.require_edits()
    path = clean_path(arguments["path"], run.workspace.workdir)
    text = await read_text(run, path)
    run.require_known(path, text.encode())
    lines = split_lines(text)
    wanted = parse_line_edits(arguments["lines"])
    for number in wanted:
        if not 1 <= number <= len(lines):
            raise ToolProblem(run.say("no_line", path=path, line=number, lines=len(lines)))
    changed: list[str] = []
    shown: list[str] = []
    for number, line in enumerate(lines, 1):
        new = replacement(line, wanted[number]) if number in wanted else [line]
        changed += new
        if number in wanted:
            shown += numbered(changed, len(changed) - len(new) + 1, len(changed))
    data = ("\n".join(changed) + ("\n" if text.endswith("\n") else "")).encode()
    await run.workspace.write(path, data)
    await run.has_edited(path, data)
    return Output(run.say("edited", lines="\n".join(shown)).split("\n"))


def parse_line_edits(text: str) -> dict[int, str]:
    """Parse the argument `lines` into a map from line number to new text. Texts of the same number become several
    lines."""
    wanted: dict[int, str] = {}
    for number, new in numbered_lines(text):
        wanted[number] = f"{wanted[number]}\n{new}" if number in wanted else new
    return wanted


def replacement(old: str, text: str) -> list[str]:
    """Return the lines of `text`, which replace the line `old`. They get the indentation of `old`, unless `text` is
    itself indented. If `old` ends with a carriage return, so do they."""
    new = text.removesuffix("\n").split("\n")
    indentation = old[: len(old) - len(old.lstrip(" \t"))]
    if not new[0].startswith((" ", "\t")):
        new = [indentation + line if line.strip() else line for line in new]
    if old.endswith("\r"):
        new = [line if line.endswith("\r") else f"{line}\r" for line in new]
    return new


def split_lines(text: str) -> list[str]:
    return text.removesuffix("\n").split("\n") if text else []


def numbered(lines: list[str], first: int, last: int) -> list[str]:
    return [f"{number} {lines[number - 1]}" for number in range(first, last + 1)]


def _close_to(path: str, files: list[str]) -> list[str]:
    if len(files) > MANY_FILES:
        name = PurePosixPath(path).name
        files = [each for each in files if each == name or each.endswith(f"/{name}")][:MANY_FILES]
    return difflib.get_close_matches(path, files, n=3, cutoff=0.6)


async def read_text(run: ToolContext, path: str) -> str:
    """Return the text of a file. Raises ToolProblem if it does not exist or is not text."""
    try:
        data = await run.workspace.read(path)
    except FileNotFoundError:
        close = _close_to(path, await run.workspace.files())
        hint = f" Did you mean {', '.join(close)}?" if close else ""
        raise ToolProblem(run.say("no_file", path=path, hint=hint)) from None
    except IsADirectoryError:
        raise ToolProblem(run.say("not_a_file", path=path)) from None
    text = as_text(data)
    if text is None:
        raise ToolProblem(run.say("not_text", path=path))
    return text
