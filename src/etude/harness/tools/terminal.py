"""bash, job, job_input, job_kill: commands in a persistent shell, and background jobs.

A command that is not done in time has not failed: it continues as a job. Output that is too long to read is also kept
in a file.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from etude.harness.terminal import Heard, Terminals
from etude.harness.toolbox import Output, Toolbox, ToolProblem

MOST_SECONDS = 600
JOB_LOOK_SECONDS = 1.0
KEPT_CHARACTERS = 16_000
"""Output longer than this is also kept whole in a file."""
OUTPUTS = "/tmp/etude-outputs"


async def bash(toolbox: Toolbox, arguments: dict[str, Any]) -> Output:
    command = arguments["command"].replace("\0", "")
    background = arguments.get("background", False)
    seconds = _seconds(toolbox, arguments, JOB_LOOK_SECONDS if background else toolbox.limits.command_seconds)

    async def use(terminals: Terminals) -> Heard:
        if background:
            return await terminals.start(command, seconds=seconds)
        return await terminals.run(command, seconds=seconds)

    return await _told(toolbox, use)


async def job(toolbox: Toolbox, arguments: dict[str, Any]) -> Output:
    seconds = _seconds(toolbox, arguments, 0.0)
    return await _told(toolbox, lambda terminals: terminals.look(arguments["id"], seconds=seconds))


async def job_input(toolbox: Toolbox, arguments: dict[str, Any]) -> Output:
    text = arguments["text"]
    data = b"\x03" if text == "^C" else b"\x04" if text == "^D" else f"{text}\n".encode()

    async def use(terminals: Terminals) -> Heard:
        if not await terminals.write(arguments["id"], data):
            raise ToolProblem(toolbox.say("job_deaf", id=arguments["id"]))
        return await terminals.look(arguments["id"], seconds=JOB_LOOK_SECONDS)

    return await _told(toolbox, use)


async def job_kill(toolbox: Toolbox, arguments: dict[str, Any]) -> Output:
    return await _told(toolbox, lambda terminals: terminals.end(arguments["id"]))


def _seconds(toolbox: Toolbox, arguments: dict[str, Any], usual: float) -> float:
    wanted = arguments.get("seconds", usual)
    if not 0 <= wanted <= MOST_SECONDS:
        raise ToolProblem(toolbox.say("bad_seconds", most=MOST_SECONDS))
    return float(wanted)


async def _told(toolbox: Toolbox, use: Callable[[Terminals], Awaitable[Heard]]) -> Output:
    kept = ""

    async def listen(terminals: Terminals) -> Heard:
        nonlocal kept
        heard = await use(terminals)
        toolbox.jobs = [(number, command) for number, command, code in terminals.jobs() if code is None]
        if len(heard.text) > KEPT_CHARACTERS:
            kept = await terminals.keep(OUTPUTS, heard.text)
        return heard

    try:
        heard = await toolbox.workspace.in_terminal(listen)
    except KeyError as error:
        raise ToolProblem(toolbox.say("no_job", id=error.args[0])) from None
    lines = heard.text.split("\n") if heard.text else []
    if heard.skipped:
        lines.insert(0, toolbox.say("skipped", bytes=heard.skipped))
    if kept:
        lines.append(toolbox.say("kept", path=kept))
    if heard.code is None:
        lines.append(toolbox.say("goes_on", id=heard.job))
    elif heard.code:
        lines.append(toolbox.say("exit", code=heard.code))
    return Output(lines or [toolbox.say("done")], keep_end=True, ok=not heard.code, seconds=heard.seconds)
