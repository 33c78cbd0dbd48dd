"""The user's own folder as a workspace: every change and command after a yes, and nothing else touched."""

from __future__ import annotations

import asyncio
import errno
import functools
import json
import os
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest
from tests.contract.sandbox.support import in_loop
from tests.harness.parts import Bench

from etude.harness import Answer, ApplyConflict, Permissions, RequestedAction, Rule, ToolCall, ToolResult
from etude.harness.workspaces.user_folder import FolderWorkspace
from etude.harness.workspaces.workspace import AGENT_ENV
from etude.sandbox.cpu_share import Share, ShareMeter

CALC = "def larger(a, b):\n    return min(a, b)\n"


class Asked:
    """Answers from a list; a yes when it is over."""

    def __init__(self) -> None:
        self.answers: list[Answer] = []
        self.wishes: list[RequestedAction] = []
        self.meanwhile: Callable[[], Any] = lambda: None

    async def __call__(self, wish: RequestedAction) -> Answer:
        self.wishes.append(wish)
        self.meanwhile()
        return self.answers.pop(0) if self.answers else Answer(True)


def in_folder(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Runs a test in a loop, in which the workspace of its `bench` is closed as well."""

    @functools.wraps(test)
    @in_loop
    async def run(*, bench: Bench, **fixtures: Any) -> None:
        try:
            await test(bench=bench, **fixtures)
        finally:
            await bench.workspace.close()

    return run


@pytest.fixture
def asked() -> Asked:
    return Asked()


@pytest.fixture
def bench(folder: Path, asked: Asked) -> Bench:
    return Bench(FolderWorkspace(folder, Permissions(asked)), room=4_000, command_seconds=20.0)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    place = tmp_path / "mine"
    (place / ".git").mkdir(parents=True)
    (place / "calc.py").write_text(CALC)
    (place / "link").symlink_to("/etc")
    return place


@in_folder
async def test_a_change_is_shown_then_made(folder: Path, asked: Asked, bench: Bench) -> None:
    asked.answers = [Answer(False, reason="not yet")]
    workspace = bench.workspace
    edit = {"path": "calc.py", "old": "min", "new": "max"}
    said = await bench.call("replace", **edit)
    assert said == ToolResult("The workspace refused: the user said no to changing calc.py: not yet", False)
    assert (folder / "calc.py").read_text() == CALC
    assert (await bench.call("replace", **edit)).ok
    assert "max" in (folder / "calc.py").read_text()
    assert "-    return min(a, b)\n+    return max(a, b)\n" in asked.wishes[-1].shown
    assert list(workspace.changed()) == ["calc.py"]
    await workspace.put_back({"calc.py": workspace.start["calc.py"]})
    assert (folder / "calc.py").read_text() == CALC


@in_folder
async def test_while_the_user_thinks_no_command_runs(
    folder: Path, asked: Asked, bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    happened: list[str] = []

    class Clock(ShareMeter):
        def __init__(self) -> None:
            happened.append("clock")

        def share(self, cpu_seconds: float) -> Share:
            return Share(seconds=2.0)

    monkeypatch.setattr("etude.harness.workspaces.terminal.ShareMeter", Clock)
    asked.meanwhile = lambda: happened.append("question")
    for number in range(2):
        arguments: dict[str, object] = {"command": f"echo {number}"}
        output = await bench.toolbox.carry_out(ToolCall("1", "bash", arguments, json.dumps(arguments)))
        assert (output.lines, output.seconds) == ([str(number)], 2.0)
    opened = ["clock"]
    assert happened == ["question", *opened, "clock", "question", "clock"]


@in_folder
async def test_a_patch_is_one_question_and_all_or_nothing(folder: Path, asked: Asked, bench: Bench) -> None:
    asked.answers = [Answer(False)]
    patch = "*** Begin Patch\n*** Update File: calc.py\n-    return min(a, b)\n+    return max(a, b)\n"
    patch += "*** Add File: new.py\n+x = 1\n*** End Patch"
    assert not (await bench.call("patch", patch=patch)).ok
    assert ((folder / "calc.py").read_text(), (folder / "new.py").exists()) == (CALC, False)
    assert (await bench.call("patch", patch=patch)).ok
    assert ((folder / "new.py").read_text(), len(asked.wishes)) == ("x = 1\n", 2)
    assert "+x = 1" in asked.wishes[1].shown
    assert (await bench.call("move", path="new.py", target="pack/new.py")).ok
    assert (await bench.call("delete", path="pack/new.py")).ok
    assert len(asked.wishes) == 4
    assert not (folder / "pack/new.py").exists()


@in_folder
async def test_what_the_user_writes_meanwhile_is_not_written_over(folder: Path, asked: Asked, bench: Bench) -> None:
    asked.meanwhile = lambda: (folder / "calc.py").write_text("mine\n")
    said = await bench.say("replace", path="calc.py", old="min", new="max")
    assert "was changed by somebody else just now" in said
    assert (folder / "calc.py").read_text() == "mine\n"
    assert "1 mine" in await bench.say("read", path="calc.py")


@in_folder
async def test_what_the_user_changes_is_never_counted_as_the_agents_nor_taken_back(folder: Path, bench: Bench) -> None:
    workspace = bench.workspace
    assert (await bench.call("replace", path="calc.py", old="min", new="max")).ok
    (folder / "notes.txt").write_text("mine\n")
    await bench.say("bash", command="echo y > made.txt")
    assert sorted(workspace.changed()) == ["calc.py", "made.txt"]
    (folder / "calc.py").write_text("mine too\n")
    with pytest.raises(ApplyConflict):
        await workspace.put_back({"calc.py": CALC.encode()})
    assert (folder / "calc.py").read_text() == "mine too\n"


@in_folder
async def test_a_folder_that_cannot_be_written_is_said(
    folder: Path, bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    workspace = bench.workspace
    monkeypatch.setattr("etude.harness.workspaces.user_folder.write_changes", full)
    said = await bench.call("replace", path="calc.py", old="min", new="max")
    assert not said.ok
    assert "calc.py cannot be written: No space left on device" in said.output
    assert workspace.changed() == {}


@pytest.mark.parametrize("path", [".git/hooks/pre-commit", "link/passwd", "link", "../out", "/etc/passwd"])
@in_folder
async def test_some_places_are_never_written(folder: Path, asked: Asked, bench: Bench, path: str) -> None:
    assert not (await bench.call("write", path=path, text="x")).ok
    assert asked.wishes == []
    assert (folder / "link").is_symlink()


@in_folder
async def test_commands_run_in_the_folder_after_a_yes_or_as_the_user_made_them(
    folder: Path, asked: Asked, bench: Bench
) -> None:
    asked.answers = [Answer(True), Answer(True, instead="echo other"), Answer(False)]
    assert str(folder) in await bench.say("bash", command="pwd; echo y > made.txt; cd /; tty | grep -o pts")
    assert "y" in await bench.say("read", path="made.txt")
    assert await bench.say("bash", command="rm -rf /") == "(the user changed the command to: echo other)\nother"
    assert "said no to the command 'exit 3'" in await bench.say("bash", command="exit 3")
    assert await bench.say("bash", command="pwd") == "/"
    assert [wish.what for wish in asked.wishes][1:] == ["rm -rf /", "exit 3", "pwd"]
    long = await bench.say("bash", command="seq 1 9000")
    kept = long.rpartition("all of it is in ")[2].partition(",")[0]
    assert Path(kept).read_text().count("\n") == 8999
    assert not kept.startswith("/tmp/etude-outputs")


@in_folder
async def test_what_is_typed_into_a_command_is_asked_too(folder: Path, asked: Asked, bench: Bench) -> None:
    asked.answers = [Answer(True), Answer(False)]
    assert "job 1" in await bench.say("bash", command="read x; echo got $x", background=True, seconds=0)
    assert "said no to the input 'secret'" in await bench.say("job_input", id=1, text="secret")
    assert "got this" in await bench.say("job_input", id=1, text="this")
    assert asked.wishes[1].shown == "typed into: read x; echo got $x"


@in_folder
async def test_an_interrupted_command_is_ended_and_the_next_one_has_a_shell(folder: Path, bench: Bench) -> None:
    running = asyncio.create_task(bench.call("bash", command="sleep 1000 & echo $! $$ > pids; sleep 1000"))
    deadline = time.monotonic() + 60
    while not (folder / "pids").exists() or not (folder / "pids").read_text().strip():
        assert time.monotonic() < deadline
        await asyncio.sleep(0.01)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    for pid in map(int, (folder / "pids").read_text().split()):
        while Path(f"/proc/{pid}/fd/0").exists():
            assert time.monotonic() < deadline
            await asyncio.sleep(0.01)
    assert await bench.say("bash", command="echo here") == "here"


def test_a_command_on_the_host_is_told_no_keys(tmp_path, monkeypatch):
    home = {"PATH": os.environ["PATH"], "HOME": "/home/me", "USER": "me", "TERM": "xterm", "VIRTUAL_ENV": "/venv"}
    keys = {
        "OPENAI_API_KEY": "secret",
        "AWS_SECRET_ACCESS_KEY": "secret",
        "SSH_AUTH_SOCK": "secret",
        "PGPASSWORD": "secret",
    }
    for name in list(os.environ):
        monkeypatch.delenv(name)
    for name, value in {**home, **keys, "LC_TIME": "C", "LC_ALL": "de_DE.UTF-8"}.items():
        monkeypatch.setenv(name, value)

    async def play() -> str:
        workspace = FolderWorkspace(tmp_path, Permissions(allow=[Rule("execute")]))
        result = await workspace.exec("env", timeout=10)
        await workspace.close()
        return result.stdout.decode()

    told = dict(line.split("=", 1) for line in asyncio.run(play()).splitlines())
    assert "secret" not in told.values()
    # The shell itself adds these three.
    assert told.keys() - {"PWD", "SHLVL", "_", "OLDPWD"} == {*home, "LC_TIME", *AGENT_ENV}
    assert home.items() <= told.items()
    assert told["LC_ALL"] == "C.UTF-8"
