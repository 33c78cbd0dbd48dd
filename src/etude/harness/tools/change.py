"""write, replace, patch, move, delete: edits by exact text, for models that can repeat a file's text exactly.

Nothing is changed unless everything that was asked for fits, and no file is changed that somebody else changed since
the agent read it.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import PurePosixPath
from typing import Any

from etude.harness.diff import as_text
from etude.harness.patch import ADD, DELETE, UPDATE, BadPatch, apply_patch, parse_patch
from etude.harness.toolbox import Output, Toolbox, ToolProblem
from etude.harness.tools.files import numbered, read_text, split_lines
from etude.harness.tools.known import require_known
from etude.harness.workspace import clean_path

SHOWN_AROUND = 3
"""Number of lines shown before and after a replacement."""


async def write(toolbox: Toolbox, arguments: dict[str, Any]) -> Output:
    path = clean_path(arguments["path"], toolbox.workspace.workdir)
    if await exists(toolbox, path):
        await _current(toolbox, path)
    await store(toolbox, path, arguments["text"])
    return Output([toolbox.say("written", path=path, lines=len(split_lines(arguments["text"])))])


async def replace(toolbox: Toolbox, arguments: dict[str, Any]) -> Output:
    path = clean_path(arguments["path"], toolbox.workspace.workdir)
    old, new = arguments["old"], arguments["new"]
    if not old or old == new:
        raise ToolProblem(toolbox.say("nothing_to_replace"))
    text = await _current(toolbox, path)
    found = text.count(old)
    if not found:
        raise ToolProblem(toolbox.say("not_found", path=path))
    if found > 1 and not arguments.get("all", False):
        raise ToolProblem(toolbox.say("ambiguous", path=path, count=found))
    await store(toolbox, path, after := text.replace(old, new))
    if found > 1:
        return Output([toolbox.say("replaced", path=path, count=found)])
    lines, first = split_lines(after), text[: text.index(old)].count("\n") + 1
    begin, end = max(1, first - SHOWN_AROUND), min(len(lines), first + new.count("\n") + SHOWN_AROUND)
    return Output(toolbox.say("edited", lines="\n".join(numbered(lines, begin, end))).split("\n"))


async def patch(toolbox: Toolbox, arguments: dict[str, Any]) -> Output:
    try:
        changes = parse_patch(arguments["patch"])
        files: dict[str, str] = {}
        for change in changes:
            change.path = clean_path(change.path, toolbox.workspace.workdir)
            change.target = clean_path(change.target, toolbox.workspace.workdir) if change.target else ""
            for path in {change.path, change.target} - {""}:
                if await exists(toolbox, path):
                    files[path] = await _current(toolbox, path)
        after = apply_patch(changes, files, exactly=toolbox.limits.strict)
    except BadPatch as error:
        raise ToolProblem(toolbox.say("bad_patch", problem=error)) from None
    toolbox.require_edits(len(after))
    await _require_places(toolbox, after)
    gone = [path for path, text in after.items() if text is None]
    deleted = {path: None for path in gone if path in files}
    await toolbox.agree(deleted | {path: text.encode() for path, text in after.items() if text is not None})
    for path in deleted:
        await toolbox.workspace.delete(path)
        await toolbox.has_edited(path, None)
    for path, text in after.items():
        if text is not None:
            await store(toolbox, path, text)
    kinds = {path: DELETE if path in gone else UPDATE if path in files else ADD for path in after}
    return Output([f"{kind.removeprefix('*** ')}{path}" for path, kind in kinds.items()])


async def move(toolbox: Toolbox, arguments: dict[str, Any]) -> Output:
    source = clean_path(arguments["path"], toolbox.workspace.workdir)
    target = clean_path(arguments["target"], toolbox.workspace.workdir)
    toolbox.require_edits(2)
    if await exists(toolbox, target):
        raise ToolProblem(toolbox.say("exists", path=target))
    data = await _bytes(toolbox, source)
    await toolbox.agree({target: data, source: None})
    await _put(toolbox, target, data)
    await toolbox.workspace.delete(source)
    await toolbox.has_edited(source, None)
    await toolbox.has_edited(target, data)
    return Output([toolbox.say("moved", path=source, target=target)])


async def delete(toolbox: Toolbox, arguments: dict[str, Any]) -> Output:
    path = clean_path(arguments["path"], toolbox.workspace.workdir)
    toolbox.require_edits()
    await _bytes(toolbox, path)
    await toolbox.workspace.delete(path)
    await toolbox.has_edited(path, None)
    return Output([toolbox.say("deleted", path=path)])


async def exists(toolbox: Toolbox, path: str) -> bool:
    try:
        await toolbox.workspace.read(path)
    except FileNotFoundError:
        return False
    except IsADirectoryError:
        raise ToolProblem(toolbox.say("not_a_file", path=path)) from None
    return True


async def store(toolbox: Toolbox, path: str, text: str) -> None:
    toolbox.require_edits()
    data = text.encode()
    await _put(toolbox, path, data)
    await toolbox.has_edited(path, data)


async def _put(toolbox: Toolbox, path: str, data: bytes) -> None:
    try:
        await toolbox.workspace.write(path, data)
    except NotADirectoryError:
        raise ToolProblem(toolbox.say("not_a_folder", path=path)) from None
    except IsADirectoryError:
        raise ToolProblem(toolbox.say("not_a_file", path=path)) from None


async def _require_places(toolbox: Toolbox, after: Mapping[str, str | None]) -> None:
    """Check, before the first file is written, that none lands where a folder is, nor below a file."""
    written = {path for path, text in after.items() if text is not None}
    there = {*await toolbox.workspace.files(), *written} - (after.keys() - written)
    for path in written:
        if any(str(folder) in there for folder in PurePosixPath(path).parents):
            raise ToolProblem(toolbox.say("not_a_folder", path=path))
        if any(name.startswith(f"{path}/") for name in there):
            raise ToolProblem(toolbox.say("not_a_file", path=path))


async def _bytes(toolbox: Toolbox, path: str) -> bytes:
    """Contents of a file that is about to be deleted or moved."""
    if not await exists(toolbox, path):
        raise ToolProblem(toolbox.say("no_file", path=path, hint=""))
    data = await toolbox.workspace.read(path)
    if toolbox.limits.strict and as_text(data) is not None:
        require_known(toolbox, path, data)
    return data


async def _current(toolbox: Toolbox, path: str) -> str:
    """The file's text, if it is still what the agent saw."""
    text = await read_text(toolbox, path)
    require_known(toolbox, path, text.encode())
    return text
