"""bash and jobs as the agent uses them: over files that it also edits, and over a self-summary."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from tests.harness.parts import SAMPLE, open_boxes

from etude.harness import (
    BoxWorkspace,
    Budgets,
    OverlayWorkspace,
    ScriptedPolicy,
    Toolbox,
    ToolCall,
    ToolLimits,
    ToolResult,
    Workspace,
    lazy_workspace,
    load_profile,
    run_agent,
)
from etude.sandbox import BoxSpec, Sandboxes
from etude.trace import StopCause

FULL = load_profile("full")


class Bench:
    def __init__(self, workspace: Workspace) -> None:
        self.workspace = workspace
        self.toolbox = Toolbox(FULL.schemas(), workspace, ToolLimits(command_seconds=20.0), FULL)

    async def call(self, name: str, **arguments: object) -> ToolResult:
        call = ToolCall("1", name, arguments, json.dumps(arguments))
        return await self.toolbox.run(call, max_tokens=4_000, count=len)

    async def say(self, name: str, **arguments: object) -> str:
        return (await self.call(name, **arguments)).output


async def lazy(sandboxes: Sandboxes) -> Workspace:
    image = await sandboxes.add_image(dict(SAMPLE))
    return lazy_workspace(image, SAMPLE, lambda: sandboxes.create(BoxSpec(image)))


async def eager(sandboxes: Sandboxes) -> Workspace:
    return BoxWorkspace(await sandboxes.create(BoxSpec(await sandboxes.add_image(dict(SAMPLE)))), SAMPLE)


def in_boxes(images: Path, play: Callable[[Bench], Awaitable[Any]], made: Callable[..., Any] = lazy) -> None:
    async def main() -> None:
        sandboxes = open_boxes(images)
        try:
            bench = Bench(await made(sandboxes))
            await play(bench)
            await bench.workspace.close()
        finally:
            await sandboxes.close()

    asyncio.run(main())


@pytest.mark.parametrize("made", [lazy, eager])
def test_edits_and_commands_see_each_other(images: Path, made: Callable[..., Any]) -> None:
    async def play(bench: Bench) -> None:
        assert await bench.say("bash", command="cd pack && python ../check.py") == "FAIL larger\n(exit code 1)"
        await bench.call("replace", path="calc.py", old="min", new="max")
        assert await bench.say("bash", command="python ../check.py; echo y = 1 >> other.py; rm ../check.py") == "ok"
        assert await bench.say("list") == "calc.py\npack/other.py"
        assert (await bench.say("read", path="pack/other.py")).endswith("\n3 y = 1")
        await bench.call("delete", path="calc.py")
        assert await bench.say("bash", command="ls ..") == "pack"
        await bench.call("write", path="new/one.py", text="x")
        assert await bench.say("bash", command="cat ../new/one.py; pwd") == "x/work/pack"

    in_boxes(images, play, made)


def test_what_an_agent_read_before_a_command_changed_it_is_stale(images: Path) -> None:
    async def play(bench: Bench) -> None:
        await bench.call("read", path="calc.py")
        await bench.call("bash", command="sed -i s/min/max/ calc.py")
        assert "is not what you last read" in await bench.say("replace", path="calc.py", old="max", new="min")

    in_boxes(images, play)


def test_a_command_that_takes_its_time_goes_on_as_a_job(images: Path) -> None:
    async def play(bench: Bench) -> None:
        asking = await bench.call("bash", command="read -p 'sure? ' x; echo $x > answer", seconds=1)
        assert asking.ok
        assert asking.output.startswith("sure? \n(it goes on as job 1:")
        assert bench.toolbox.jobs == [(1, "read -p 'sure? ' x; echo $x > answer")]
        assert await bench.say("job_input", id=1, text="yes") == "(exit code 0, no output)"
        assert await bench.say("read", path="answer") == "1 yes"
        assert "job 2" in await bench.say("bash", command="sleep 60", seconds=1)
        assert "(exit code" in await bench.say("job_input", id=2, text="^C")
        assert bench.toolbox.jobs == []
        assert await bench.say("job", id=7) == "There is no job 7."
        assert "from 0 to 600" in await bench.say("bash", command="true", seconds=601)

    in_boxes(images, play)


def test_a_server_runs_beside_and_is_ended(images: Path) -> None:
    async def play(bench: Bench) -> None:
        serve = "python -m http.server 8123 --bind 127.0.0.1"
        started = await bench.say("bash", command=serve, background=True, seconds=3)
        assert "it goes on as job 1" in started
        fetch = "python -c \"import urllib.request as r; print(r.urlopen('http://127.0.0.1:8123/calc.py').status)\""
        assert await bench.say("bash", command=fetch) == "200"
        assert "GET /calc.py" in await bench.say("job", id=1, seconds=1)
        assert "(exit code" in await bench.say("job_kill", id=1)
        assert (await bench.call("bash", command=fetch)).ok is False

    in_boxes(images, play)


def test_long_output_is_cut_and_kept_where_commands_can_read_it(images: Path) -> None:
    async def play(bench: Bench) -> None:
        said = await bench.say("bash", command="seq 20000")
        assert len(said) <= 4_000
        assert "lines cut]" in said
        assert said.endswith("(all of it is in /tmp/etude-outputs/1.txt, for commands to read)")
        assert await bench.say("bash", command="sed -n 12345p /tmp/etude-outputs/1.txt") == "12345"
        assert await bench.say("list") == "calc.py\ncheck.py\npack/other.py", "nothing of it is in the workspace"

    in_boxes(images, play)


def test_running_jobs_go_over_a_summary(images: Path) -> None:
    async def play(bench: Bench) -> None:
        await bench.call("bash", command="sleep 50", background=True, seconds=0)
        steps = ["> read calc.py", "all is read", "> finish"]
        policy = ScriptedPolicy(steps, FULL)
        opened = FULL.open("make check pass")
        budgets = Budgets(summary_trigger=policy.tokens(opened) + 3)
        outcome = await run_agent(opened, policy, bench.toolbox, budgets, FULL)
        assert (outcome.stop, outcome.usage.summaries) == (StopCause.FINISHED, 1)
        assert "Jobs that run: 1 sleep 50." in outcome.conversation.messages[1].text

    in_boxes(images, play)


def test_without_boxes_there_is_no_terminal() -> None:
    said = asyncio.run(Bench(OverlayWorkspace(SAMPLE)).say("bash", command="ls"))
    assert said == "There is no shell in this workspace."
