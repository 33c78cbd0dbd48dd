"""The tools bash, job, job_input and job_kill: commands in a persistent shell, and background jobs.

A command that does not end in time continues as a job. Output that is too long for the model is also stored in a file.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from etude.harness.tools.context import Output, ToolContext, ToolProblem
from etude.harness.workspaces.terminal import TerminalOutput, Terminals

MOST_SECONDS = 600
JOB_LOOK_SECONDS = 1.0
"""Seconds to wait for output after a job was started or got input."""
KEPT_CHARACTERS = 16_000
OUTPUTS = "/tmp/etude-outputs"
"""Folder, outside the workspace, in which long outputs are stored."""


async def bash(run: ToolContext, arguments: dict[str, Any]) -> Output:
    command = arguments["command"].replace("\0", "")
    background = arguments.get("background", False)
    seconds = _seconds(run, arguments, JOB_LOOK_SECONDS if background else run.limits.command_seconds)

    async def use(terminals: Terminals) -> TerminalOutput:
        if background:
            return await terminals.start(command, seconds=seconds)
        return await terminals.run(command, seconds=seconds)

    return await _told(run, use)


async def job(run: ToolContext, arguments: dict[str, Any]) -> Output:
    seconds = _seconds(run, arguments, 0.0)
    return await _told(run, lambda terminals: terminals.poll(arguments["id"], seconds=seconds))


async def job_input(run: ToolContext, arguments: dict[str, Any]) -> Output:
    text = arguments["text"]
    data = b"\x03" if text == "^C" else b"\x04" if text == "^D" else f"{text}\n".encode()

    async def use(terminals: Terminals) -> TerminalOutput:
        if not await terminals.write(arguments["id"], data):
            raise ToolProblem(run.say("job_deaf", id=arguments["id"]))
        return await terminals.poll(arguments["id"], seconds=JOB_LOOK_SECONDS)

    return await _told(run, use)


async def job_kill(run: ToolContext, arguments: dict[str, Any]) -> Output:
    return await _told(run, lambda terminals: terminals.end(arguments["id"]))


def _seconds(run: ToolContext, arguments: dict[str, Any], usual: float) -> float:
    """Return how many seconds the call may wait. Raises ToolProblem if the argument `seconds` is out of range."""
    wanted = arguments.get("seconds", usual)
    if not 0 <= wanted <= MOST_SECONDS:
        raise ToolProblem(run.say("bad_seconds", most=MOST_SECONDS))
    return float(wanted)


async def _told(run: ToolContext, use: Callable[[Terminals], Awaitable[TerminalOutput]]) -> Output:
    kept = ""

    async def listen(terminals: Terminals) -> TerminalOutput:
        nonlocal kept
        output = await use(terminals)
        run.jobs = [(number, command) for number, command, code in terminals.jobs() if code is None]
        if len(output.text) > KEPT_CHARACTERS:
            kept = await terminals.keep(OUTPUTS, output.text)
        return output

    try:
        output = await run.workspace.in_terminal(listen)
    except KeyError as error:
        raise ToolProblem(run.say("no_job", id=error.args[0])) from None
    lines = output.text.split("\n") if output.text else []
    if output.skipped:
        lines.insert(0, run.say("skipped", bytes=output.skipped))
    if kept:
        lines.append(run.say("kept", path=kept))
    if output.code is None:
        lines.append(run.say("goes_on", id=output.job))
    elif output.code:
        lines.append(run.say("exit", code=output.code))
    return Output(lines or [run.say("done")], keep_end=True, ok=not output.code, seconds=output.seconds)
