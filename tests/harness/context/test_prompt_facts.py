"""What an agent is told of where it works: the same from equal workspaces, and nothing that a profile does not name."""

from __future__ import annotations

import asyncio
import os
import subprocess
from pathlib import Path

import pytest
from tests.contract.sandbox.support import in_loop
from tests.harness.parts import SAMPLE

from etude.harness import (
    ChatSession,
    FolderWorkspace,
    OverlayWorkspace,
    Permissions,
    Rule,
    SchemaError,
    ScriptedPolicy,
    load_profile,
)
from etude.harness.context.git_facts import git_status, recent_files
from etude.harness.context.profile import parse_profile
from etude.harness.context.prompt_facts import Surroundings, collect_facts, find_rules
from etude.recipe.acting import HarnessRecipe, SandboxRecipe

FULL = HarnessRecipe(profile="full")

RULES = {
    "AGENTS.md": b"Use tabs.\n",
    "CLAUDE.md": b"Use tabs.\n",
    "pack/AGENTS.md": b"Use spaces here.\n",
    "pack/deep/er/CLAUDE.md": b"\n",
    ".cursor/rules/style.mdc": b"No prints.\n",
    "docs/AGENTS.md.txt": b"not rules",
}


def words(text: str) -> int:
    return len(text.split())


def rules_of(files: dict[str, bytes]) -> list[tuple[str, str]]:
    return list(asyncio.run(find_rules(OverlayWorkspace({**SAMPLE, **files}), words)))


def test_rules_are_found_outermost_first_and_said_once_per_folder() -> None:
    assert rules_of(RULES) == [
        ("AGENTS.md", "Use tabs."),
        (".cursor/rules/style.mdc", "No prints."),
        ("pack/AGENTS.md", "Use spaces here."),
    ]


def test_rules_that_are_no_text_or_too_long() -> None:
    found = rules_of({"AGENTS.md": b"\0\1", "a/AGENTS.md": b"word word word\n" * 5_000})
    assert [path for path, _ in found] == ["a/AGENTS.md"]
    assert words(found[0][1]) <= 4_000
    assert "lines cut" in found[0][1]


def test_where_commands_run_they_tell_of_system_and_repository(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("x = 1\n")

    async def look(commands: bool) -> Surroundings:
        workspace = FolderWorkspace(tmp_path, Permissions(allow=[Rule("execute")]))
        try:
            return await collect_facts(workspace, words, limits="256 MB", recent=["a.py"], commands=commands)
        finally:
            await workspace.close()

    told = asyncio.run(look(commands=True))
    assert told.system.startswith("Linux ")
    assert (told.limits, told.recent, told.status) == ("256 MB", ("a.py",), ())
    assert asyncio.run(look(commands=False)) == Surroundings(limits="256 MB", recent=("a.py",))


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """Two commits, and one change since; a monitor of the file system that must not be run."""
    folder = tmp_path / "repository"
    (folder / "pack").mkdir(parents=True)
    git(folder, "init", "--quiet", "--initial-branch=main")
    for number, paths in enumerate((["old.py", "gone.py"], ["pack/é 1.py"])):
        for path in paths:
            (folder / path).write_text("x = 1\n")
        git(folder, "add", ".")
        git(folder, "commit", "--quiet", f"--message={number}")
    (folder / "gone.py").unlink()
    (folder / "old.py").write_text("x = 2\n")
    git(folder, "config", "core.fsmonitor", f"touch {tmp_path}/monitored")
    return folder


def git(folder: Path, *words: str) -> None:
    person = ["-c", "user.name=n", "-c", "user.email=e"]
    subprocess.run(["git", *person, *words], cwd=folder, check=True, timeout=60)


def test_git_is_asked_about_the_users_folder(repository: Path) -> None:
    assert asyncio.run(git_status(repository)) == ["## main", " D gone.py", " M old.py"]
    assert asyncio.run(recent_files(repository)) == ["pack/é 1.py", "old.py"]
    assert asyncio.run(git_status(repository / "pack")) == ["## main"]
    assert asyncio.run(recent_files(repository / "pack")) == ["é 1.py"]
    assert not (repository.parent / "monitored").exists()
    assert not (repository / ".git" / "index.lock").exists()


def test_where_there_is_no_repository_or_no_git_nothing_is_known(
    tmp_path: Path, repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path))
    (tmp_path / "none").mkdir()
    assert asyncio.run(git_status(tmp_path / "none")) == []
    assert asyncio.run(recent_files(tmp_path / "none")) == []
    monkeypatch.setenv("PATH", str(tmp_path / "none"))
    assert asyncio.run(git_status(repository)) == []


@in_loop
async def test_a_git_that_hangs_ends_with_who_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pid = tmp_path / "pid"
    (tmp_path / "git").write_text(f"#!/bin/sh\necho $$ >{pid}.new; mv {pid}.new {pid}\nexec sleep 600\n")
    (tmp_path / "git").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    asking = asyncio.create_task(git_status(tmp_path))
    while not pid.exists():  # noqa: ASYNC110 - another process makes it
        await asyncio.sleep(0.01)
    asking.cancel()
    await asyncio.gather(asking, return_exceptions=True)
    assert asking.cancelled()
    with pytest.raises(ProcessLookupError):
        os.kill(int(pid.read_text()), 0)


@pytest.mark.parametrize("here", [False, True])
def test_a_session_tells_the_repositorys_state_and_recent_files(repository: Path, here: bool) -> None:
    async def told() -> str:
        policy = ScriptedPolicy(["done"], load_profile("full"))
        permissions = Permissions() if here else None
        async with ChatSession(repository, policy, FULL, SandboxRecipe(), permissions=permissions) as session:
            await session.run("look")
            assert session.conversation is not None
            return session.conversation.messages[0].text

    system = asyncio.run(told())
    assert "git status when you began:\n## main\n D gone.py\n M old.py\n" in system
    assert "Files the user has at hand:\npack/é 1.py\nold.py" in system
    assert ("System: Linux" in system) is here, "a view without a shell runs nothing"


def test_the_full_profile_tells_what_there_is_and_the_compact_one_nothing() -> None:
    told = Surroundings("Linux x86_64 sh", "", ("## main", " M a.py"), ("a.py",), (("AGENTS.md", "Use {tabs}."),))
    system = load_profile("full").open("fix it", surroundings=told).messages[0].text
    assert system.startswith(load_profile("full").system_text())
    for text in ("System: Linux x86_64 sh", "## main\n M a.py", "at hand:\na.py", "AGENTS.md", "Use {tabs}."):
        assert text in system
    assert "Limits" not in system
    assert load_profile("compact").open("fix it", surroundings=told) == load_profile("compact").open("fix it")


def test_a_summary_keeps_what_was_told() -> None:
    full = load_profile("full")
    old = full.open("fix it", surroundings=Surroundings(system="Linux"))
    new = full.resume(old, summary="half done", edited=[], turns_left=3)
    assert new.messages[0] == old.messages[0]


def test_a_profile_with_an_unknown_fact_is_refused() -> None:
    file = Path(__file__).parents[3] / "src" / "etude" / "harness" / "profiles" / "full.toml"
    with pytest.raises(SchemaError, match="weather"):
        parse_profile(file.read_text().replace("[facts]", "[facts]\nweather = 'rain'"), "full.toml")
