"""The grep tool over a folder on disk: plain ripgrep's answer for the files as the agent sees them."""

from __future__ import annotations

import asyncio
import os
import subprocess
import tempfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.contract.sandbox.support import in_loop
from tests.harness.parts import SAMPLE
from tests.harness.search.trees import FILES, NAMES, PATTERNS, RIPGREP, RULE_FILES, TEXTS, write

from etude.harness import (
    OverlayWorkspace,
    Permissions,
    Rule,
    Toolbox,
    ToolCall,
    ToolLimits,
    folder_workspace,
    load_profile,
)
from etude.harness.search import Pattern
from etude.harness.workspaces.folder_files import FolderFiles
from etude.harness.workspaces.folder_grep import FolderSearch
from etude.harness.workspaces.user_folder import FolderWorkspace
from etude.harness.workspaces.workspace import WORKDIR
from etude.sandbox.contract import ExecResult, RequestRefused

FULL = load_profile("full")


class Commands:
    """A runner whose next command does as it is told."""

    def __init__(self) -> None:
        self.does: dict[str, bytes | None] = {}

    async def run(
        self, files: Mapping[str, bytes], command: str, *, timeout: float
    ) -> tuple[ExecResult, Mapping[str, bytes]]:
        after = {**files, **self.does}
        return ExecResult(0, b"", b"", 0.0), {path: data for path, data in after.items() if data is not None}

    async def close(self) -> None:
        return


class Folder:
    """A folder of files, and a view of it that an agent works in, or the folder itself."""

    def __init__(self, root: Path, *, commands: bool = False, here: bool = False) -> None:
        self.root = root
        self.commands = Commands()
        files = FolderFiles(root)
        if commands:
            files.keep_all()
        self.search = FolderSearch(
            root, RIPGREP, moved=dict if here else files.moved, cache=root.parent / "cache", least_files=0
        )
        self.search._opened().build()
        self.view: OverlayWorkspace
        if here:
            self.view = FolderWorkspace(root, Permissions(allow=[Rule("write")]))
            self.view.searcher = self.search
        else:
            self.view = OverlayWorkspace(files, self.commands, searcher=self.search)  # type: ignore[arg-type]
        self.toolbox = Toolbox(FULL.schemas(), self.view, ToolLimits(), FULL)

    async def say(self, **arguments: Any) -> list[str]:
        return list((await self.toolbox.carry_out(ToolCall("1", "grep", arguments, ""))).lines)

    async def do(self, what: str, path: str, data: bytes) -> None:
        """What cannot be done is left."""
        place = self.root / path
        try:
            match what:
                case "write":
                    await self.view.write(path, data)
                case "delete":
                    await self.view.delete(path)
                case "read":
                    await self.view.read(path)
                case "command":
                    self.commands.does = {path: data}
                    await self.view.exec("", timeout=1)
                case "remove":
                    self.commands.does = {path: None}
                    await self.view.exec("", timeout=1)
                case "user writes":
                    write(self.root, {path: data})
                case "user deletes":
                    place.unlink()
        except (OSError, RequestRefused):
            return

    async def laid_out(self, root: Path) -> None:
        """All that the agent sees, as files."""
        for path in await self.view.files():
            try:
                write(root, {path: await self.view.read(path)})
            except FileNotFoundError:
                continue


def ripgrep_alone(root: Path, pattern: Pattern, glob: str, path: str, everything: bool) -> list[str] | None:
    """Its lines as the tool says them; None where it cannot read the pattern."""
    command = [RIPGREP.program, "--no-config", "--line-number", "--no-heading", "--null", "--with-filename"]
    command += ["--color=never", "--sort=path", *["--fixed-strings"] * pattern.fixed, *["--word-regexp"] * pattern.word]
    command += [*["--ignore-case"] * pattern.ignore_case, *[f"--glob={glob}"] * bool(glob)]
    command += ["--no-ignore", "--hidden", "--glob=!.git"] if everything else []
    command += [f"--regexp={pattern.text}", "--", f"./{path}".removesuffix("/.")]
    done = subprocess.run(command, cwd=root, capture_output=True, check=False)
    if done.returncode == 2:
        return None
    said = []
    for line in done.stdout.split(b"\n"):
        name, zero, rest = line.partition(b"\0")
        if zero:
            number, _, text = rest.partition(b":")
            said.append((name.removeprefix(b"./"), int(number), text.decode("utf-8", "replace")))
    return [f"{os.fsdecode(name)}:{number} {text}" for name, number, text in sorted(said, key=lambda each: each[:2])]


CHANGES = st.tuples(
    st.sampled_from(["write", "write", "delete", "read", "user writes", "user deletes"]), st.sampled_from(NAMES), TEXTS
)
COMMANDS = st.tuples(
    st.sampled_from(["write", "delete", "command", "command", "remove", "user writes", "user deletes"]),
    st.sampled_from(NAMES),
    TEXTS,
)
ASKED = st.tuples(
    PATTERNS.filter(lambda pattern: bool(pattern.text)),
    st.sampled_from(["", "", "*.c", "!a.c", "sub/**"]),
    st.sampled_from([".", ".", "sub", "a.c"]),
    st.booleans(),
)


async def equals_ripgrep(root: Path, changes: Any, asked: Any, *, commands: bool = False, here: bool = False) -> None:
    folder = Folder(root, commands=commands, here=here)
    try:
        for change in changes:
            await folder.do(*change)
        said = []
        for pattern, glob, path, everything in asked:
            text = pattern.text if pattern.fixed else f"/{pattern.text}/"
            flags = {"ignore_case": pattern.ignore_case, "word": pattern.word, "everything": everything}
            said.append(await folder.say(pattern=text, glob=glob, path=path, **flags))
        with tempfile.TemporaryDirectory() as place:
            if (root / ".git").exists():
                (Path(place) / ".git").mkdir()
            await folder.laid_out(Path(place))
            for one, (pattern, glob, path, everything) in zip(said, asked, strict=True):
                there = path == "." or (Path(place) / path).exists()
                # A path that is not there is told, or, before it is looked for, a pattern that cannot be read.
                alone = ripgrep_alone(Path(place), pattern, glob, path if there else ".", everything)
                nowhere = [f"There is no file {path!r}."]
                if alone is None:
                    assert one[0].startswith("The pattern is not a regular expression") or (
                        not there and one == nowhere
                    )
                elif not there:
                    assert one in (["No line matches."], nowhere)
                elif alone:
                    assert one == alone
                else:
                    assert one in (["No line matches."], nowhere)
    finally:
        await folder.search.close()


def test_a_bad_pattern_is_told_though_the_file_is_gone(tmp_path: Path) -> None:
    write(tmp_path / "root", {"a.c": b"x\n"})

    async def run() -> str:
        folder = Folder(tmp_path / "root")
        try:
            await folder.do("user deletes", "a.c", b"")
            return (await folder.say(pattern="/(/", path="a.c"))[0]
        finally:
            await folder.search.close()

    assert asyncio.run(run()).startswith("The pattern is not a regular expression")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("changes", "view"), [(CHANGES, {}), (COMMANDS, {"commands": True}), (CHANGES, {"here": True})]
)
@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.data(), FILES, RULE_FILES, st.lists(ASKED, min_size=1, max_size=3), st.booleans())
def test_what_the_agent_sees_is_searched_as_ripgrep_would(changes, view, data, files, rules, asked, repository):
    with tempfile.TemporaryDirectory() as place:
        root = Path(place) / "tree"
        root.mkdir()
        if repository:
            (root / ".git").mkdir()
        write(root, {**files, **rules})
        asyncio.run(equals_ripgrep(root, data.draw(st.lists(changes, max_size=6)), asked, **view))


def test_edits_commands_and_the_users_changes_are_seen(tmp_path):
    root = tmp_path / "tree"
    write(root, {"a.c": b"probe one\n", "b.c": b"probe two\n", "sub/d.c": b"nothing\n", ".ignore": b"*.h\n"})
    write(root, {"c.h": b"probe three\n", ".hidden": b"probe four\n"})
    changes = [
        ("read", "b.c", b""),
        ("user writes", "b.c", b"changed after it was read: no longer seen\n"),
        ("user writes", "sub/d.c", b"not read before: probe five\n"),
        ("user writes", "c.c", b"probe: came later, and is not seen\n"),
        ("write", "a.c", b"x\nprobe six\n"),
        ("write", "sub/new.c", b"probe seven\n"),
        ("write", "c.h", b"probe eight\n"),
    ]
    asked = [
        (Pattern("probe", fixed=True), "", path, everything) for path in (".", "sub") for everything in (False, True)
    ]

    asyncio.run(equals_ripgrep(root, changes, asked))
    command = [("command", "sub/new.c", b"probe\n"), ("remove", "a.c", b""), ("command", ".github/x", b"probe\n")]
    asyncio.run(equals_ripgrep(root, command, asked, commands=True))
    asyncio.run(equals_ripgrep(root, changes, asked, here=True))


@in_loop
async def test_in_the_folder_itself_files_that_it_does_not_show_are_not_found_either(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    root = tmp_path / "tree"
    write(root, {"a.py": b"probe\n", "large.py": b"probe\n" + b"x" * 1_000_000})
    (root / os.fsdecode(b"b\xff.py")).write_text("probe\n")
    (root / "link.py").symlink_to("a.py")
    view = FolderWorkspace(root, Permissions())
    toolbox = Toolbox(FULL.schemas(), view, ToolLimits(), FULL)
    said = await toolbox.carry_out(ToolCall("1", "grep", {"pattern": "probe"}, ""))
    assert list(said.lines) == ["a.py:1 probe"]
    assert isinstance(view.searcher, FolderSearch)
    assert view.searcher._grep is not None
    await view.close()
    assert view.searcher._grep is None


ARGUMENTS: list[dict[str, Any]] = [
    {"pattern": "larger"},
    {"pattern": r"/^def \w+\(/"},
    {"pattern": "min(a"},
    {"pattern": "LARGER", "ignore_case": True},
    {"pattern": "large", "word": True},
    {"pattern": "larger", "word": True, "most": 2},
    {"pattern": "/[nv]a..e/", "path": "pack"},
    {"pattern": "/[nv]a..e/", "path": "/work/pack/other.py"},
    {"pattern": "a", "glob": "c*.{py,c}"},
    {"pattern": "a", "glob": "!check.py"},
    {"pattern": "a", "glob": "pack/**"},
    {"pattern": "a", "path": "nowhere"},
    {"pattern": "min", "context": 1},
    {"pattern": "/^def|ok/", "context": 1},
    {"pattern": "two\nlines"},
    {"pattern": "a", "everything": True},
    {"pattern": ""},
]


@pytest.mark.parametrize("arguments", ARGUMENTS, ids=str)
@in_loop
async def test_in_memory_and_on_disk_the_tool_says_the_same(tmp_path, monkeypatch, arguments):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    write(tmp_path / "tree", SAMPLE)
    call = ToolCall("1", "grep", arguments, "")
    said = []
    folder = tmp_path / "tree"
    for view in (OverlayWorkspace(SAMPLE), folder_workspace(folder), FolderWorkspace(folder, Permissions())):
        path = call.arguments.get("path", ".").replace(WORKDIR, view.workdir)
        asked = replace(call, arguments={**call.arguments, "path": path})
        said.append(await Toolbox(FULL.schemas(), view, ToolLimits(), FULL).carry_out(asked))
        await view.close()
    assert said[0] == said[1] == said[2]


@in_loop
async def test_context_is_told_as_ripgrep_does(tmp_path):
    write(tmp_path / "tree", {"a.txt": b"1\nx\n3\n4\n5\nx\nx\n8\n9"})
    folder = Folder(tmp_path / "tree")
    assert await folder.say(pattern="x", context=1) == (
        ["a.txt-1 1", "a.txt:2 x", "a.txt-3 3", "--", "a.txt-5 5", "a.txt:6 x", "a.txt:7 x", "a.txt-8 8"]
    )
    assert await folder.say(pattern="x", most=2) == ["a.txt:2 x", "a.txt:6 x", FULL.say("cut_text")]
    assert (await folder.say(pattern="/(/"))[0].startswith("The pattern is not a regular expression")
    await folder.search.close()


def test_without_ripgrep_the_files_are_searched_in_memory(tmp_path, monkeypatch):
    monkeypatch.setattr("etude.harness.search.ripgrep._installed", lambda: None)
    write(tmp_path, SAMPLE)
    view = folder_workspace(tmp_path)
    assert view.searcher is None
    said = asyncio.run(
        Toolbox(FULL.schemas(), view, ToolLimits(), FULL).carry_out(ToolCall("1", "grep", ARGUMENTS[0], ""))
    )
    assert said.lines[0] == "calc.py:1 # the larger of two"
