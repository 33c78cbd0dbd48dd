"""The tools write, replace, patch, move and delete, for models that can repeat a file's text exactly.

A call first checks that all of its changes can be made; otherwise it changes nothing. A file that somebody else changed
since the agent read it is not overwritten. The tools move and delete check this only with `ToolLimits.strict`.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import PurePosixPath
from typing import Any

from etude.harness.editing.diff import as_text
from etude.harness.editing.patch import ADD, DELETE, UPDATE, BadPatch, apply_patch, parse_patch
from etude.harness.tools.context import Output, ToolContext, ToolProblem
from etude.harness.tools.files import numbered, read_text, split_lines
from etude.harness.workspaces.workspace import clean_path

SHOWN_AROUND = 3
"""Lines before and after a replacement that the output shows."""


async def write(run: ToolContext, arguments: dict[str, Any]) -> Output:
    path = clean_path(arguments["path"], run.workspace.workdir)
    if await exists(run, path):
        await _current(run, path)
    await store(run, path, arguments["text"])
    return Output([run.say("written", path=path, lines=len(split_lines(arguments["text"])))])


async def replace(run: ToolContext, arguments: dict[str, Any]) -> Output:
    path = clean_path(arguments["path"], run.workspace.workdir)
    old, new = arguments["old"], arguments["new"]
    if not old or old == new:
        raise ToolProblem(run.say("nothing_to_replace"))
    text = await _current(run, path)
    found = text.count(old)
    if not found:
        raise ToolProblem(run.say("not_found", path=path))
    if found > 1 and not arguments.get("all", False):
        raise ToolProblem(run.say("ambiguous", path=path, count=found))
    await store(run, path, after := text.replace(old, new))
    if found > 1:
        return Output([run.say("replaced", path=path, count=found)])
    lines, first = split_lines(after), text[: text.index(old)].count("\n") + 1
    begin, end = max(1, first - SHOWN_AROUND), min(len(lines), first + new.count("\n") + SHOWN_AROUND)
    return Output(run.say("edited", lines="\n".join(numbered(lines, begin, end))).split("\n"))


async def patch(run: ToolContext, arguments: dict[str, Any]) -> Output:
    try:
        changes = parse_patch(arguments["patch"])
        files: dict[str, str] = {}
        for change in changes:
            change.path = clean_path(change.path, run.workspace.workdir)
            change.target = clean_path(change.target, run.workspace.workdir) if change.target else ""
            for path in {change.path, change.target} - {""}:
                if await exists(run, path):
                    files[path] = await _current(run, path)
        after = apply_patch(changes, files, exactly=run.limits.strict)
    except BadPatch as error:
        raise ToolProblem(run.say("bad_patch", problem=error)) from None
    run.require_edits(len(after))
    await _require_places(run, after)
    gone = [path for path, text in after.items() if text is None]
    deleted = {path: None for path in gone if path in files}
    await run.agree(deleted | {path: text.encode() for path, text in after.items() if text is not None})
    for path in deleted:
        await run.workspace.delete(path)
        await run.has_edited(path, None)
    for path, text in after.items():
        if text is not None:
            await store(run, path, text)
    kinds = {path: DELETE if path in gone else UPDATE if path in files else ADD for path in after}
    return Output([f"{kind.removeprefix('*** ')}{path}" for path, kind in kinds.items()])


async def move(run: ToolContext, arguments: dict[str, Any]) -> Output:
    source = clean_path(arguments["path"], run.workspace.workdir)
    target = clean_path(arguments["target"], run.workspace.workdir)
    run.require_edits(2)
    if await exists(run, target):
        raise ToolProblem(run.say("exists", path=target))
    data = await _bytes(run, source)
    await run.agree({target: data, source: None})
    await _put(run, target, data)
    await run.workspace.delete(source)
    await run.has_edited(source, None)
    await run.has_edited(target, data)
    return Output([run.say("moved", path=source, target=target)])


async def delete(run: ToolContext, arguments: dict[str, Any]) -> Output:
    path = clean_path(arguments["path"], run.workspace.workdir)
    run.require_edits()
    await _bytes(run, path)
    await run.workspace.delete(path)
    await run.has_edited(path, None)
    return Output([run.say("deleted", path=path)])


async def exists(run: ToolContext, path: str) -> bool:
    """Return whether a file exists. Raises ToolProblem if the path is a folder."""
    try:
        await run.workspace.read(path)
    except FileNotFoundError:
        return False
    except IsADirectoryError:
        raise ToolProblem(run.say("not_a_file", path=path)) from None
    return True


async def store(run: ToolContext, path: str, text: str) -> None:
    run.require_edits()
    data = text.encode()
    await _put(run, path, data)
    await run.has_edited(path, data)


async def _put(run: ToolContext, path: str, data: bytes) -> None:
    try:
        await run.workspace.write(path, data)
    except NotADirectoryError:
        raise ToolProblem(run.say("not_a_folder", path=path)) from None
    except IsADirectoryError:
        raise ToolProblem(run.say("not_a_file", path=path)) from None


async def _require_places(run: ToolContext, after: Mapping[str, str | None]) -> None:
    """Raise ToolProblem if a path to be written is a folder or is below a file."""
    written = {path for path, text in after.items() if text is not None}
    there = {*await run.workspace.files(), *written} - (after.keys() - written)
    for path in written:
        if any(str(folder) in there for folder in PurePosixPath(path).parents):
            raise ToolProblem(run.say("not_a_folder", path=path))
        if any(name.startswith(f"{path}/") for name in there):
            raise ToolProblem(run.say("not_a_file", path=path))


async def _bytes(run: ToolContext, path: str) -> bytes:
    """Return the contents of a file that is about to be deleted or moved. Raises ToolProblem."""
    if not await exists(run, path):
        raise ToolProblem(run.say("no_file", path=path, hint=""))
    data = await run.workspace.read(path)
    if run.limits.strict and as_text(data) is not None:
        run.require_known(path, data)
    return data


async def _current(run: ToolContext, path: str) -> str:
    """Return the text of a file that is to be changed. Raises ToolProblem if that is not allowed."""
    text = await read_text(run, path)
    run.require_known(path, text.encode())
    return text
