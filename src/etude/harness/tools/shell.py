"""The tool shell: runs one command in the workspace's folder and returns its output and exit code.

The output contains no times, so that equal runs give equal text. A command that reaches its time limit counts as
failed, and the output says so. If the host gave the command no CPU time, that is an infrastructure failure, which ends
the run.
"""

from __future__ import annotations

from typing import Any

from etude.harness.tools.context import Output, ToolContext
from etude.sandbox.contract import HostOverloaded


async def shell(run: ToolContext, arguments: dict[str, Any]) -> Output:
    command = arguments["command"].replace("\0", "")
    seconds = run.limits.command_seconds
    result = await run.workspace.exec(command, timeout=seconds)
    if result.starved:
        raise HostOverloaded(f"a command reached its limit of {seconds:g} s on a host that gave it no CPU time")
    text = "".join(_printable(stream) for stream in (result.stdout, result.stderr)).rstrip("\n")
    lines = text.split("\n") if text else []
    limit = "time" if result.timed_out else result.limit
    if limit:
        lines.append(run.say("limit", kind=limit))
    elif result.code:
        lines.append(run.say("exit", code=result.code))
    ok = result.code == 0 and not limit
    counted = 0.0 if result.share.short else result.seconds
    return Output(lines or [run.say("done")], keep_end=True, ok=ok, seconds=counted)


def _printable(stream: bytes) -> str:
    text = stream.decode("utf-8", "replace").replace("\r\n", "\n")
    # Of a line that a progress bar rewrites, only the last state is kept.
    text = "\n".join(line.rpartition("\r")[2] for line in text.split("\n"))
    return text if not text or text.endswith("\n") else f"{text}\n"
