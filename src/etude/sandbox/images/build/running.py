"""Runs the command of a RUN in a box, with live output, and reports the reason if it fails."""

from __future__ import annotations

import re
from collections import deque

from etude.sandbox.contract import Box, BuildFailed, ExecResult, Limits
from etude.sandbox.images.build.instructions import Run
from etude.sandbox.images.build.settings import StageState
from etude.sandbox.images.oci import Say

_KEPT_LINES = 20
_ALMOST_FULL = 0.97 * (1 << 20)
"""A box's disk counts as full if it uses more than this many bytes per MB of its limit: 97 % of a MiB. A command that
fails in a box with a full disk is reported as failed for that reason."""


def command_of(state: StageState, run: Run) -> tuple[list[str], bytes]:
    if not run.heredocs or not run.command.shell:
        return list(state.command_line(run.command)), b""
    (text,) = run.command.words
    if not re.fullmatch(r"\d*<<-?\S+", text):
        bodies = (f"\n{heredoc.content}{heredoc.name}" for heredoc in run.heredocs)
        return [*state.config.shell, text + "".join(bodies)], b""
    script = run.heredocs[0].text
    if not script.startswith("#!"):
        return [*state.config.shell, script], b""
    interpreter = script.partition("\n")[0][2:].split(maxsplit=1)
    return [*interpreter, "/dev/stdin"], script.encode("utf-8", "surrogateescape")


class LiveOutput:
    """Passes complete lines of output on to a listener as they arrive, and keeps the last ones for an error message."""

    def __init__(self, say: Say) -> None:
        self._say, self._partial, self.last = say, {1: b"", 2: b""}, deque[str](maxlen=_KEPT_LINES)

    def __call__(self, stream: int, data: bytes) -> None:
        *lines, self._partial[stream] = (self._partial[stream] + data).split(b"\n")
        for line in lines:
            self._report(line)

    def close(self) -> None:
        for line in self._partial.values():
            if line:
                self._report(line)

    def _report(self, line: bytes) -> None:
        # A progress bar overwrites its line. Show only its last state.
        text = line.decode(errors="replace").rstrip("\r").rpartition("\r")[2]
        self.last.append(text)
        self._say(f"    {text}")


async def run_in(
    box: Box, command: list[str], stdin: bytes, env: dict[str, str], limits: Limits, seconds: float, say: Say
) -> None:
    """Run a command in the box. If it fails, raise BuildFailed with the reason and the last lines of output. Whether
    the disk was full is measured, not taken from the output, since a command can print anything."""
    output = LiveOutput(say)
    result = await box.exec(command, timeout=seconds, env=env, stdin=stdin, on_output=output)
    output.close()
    if result.code == 0 and not result.limit:
        return
    tail = "".join(f"\n    {line}" for line in output.last)
    if (await box.stats()).disk_bytes > limits.disk_mb * _ALMOST_FULL:
        raise BuildFailed(f"more than the {limits.disk_mb} MB that a step may add{tail}", "disk")
    raise BuildFailed(f"{_reason(result, limits, seconds)}{tail}", result.limit)


def _reason(result: ExecResult, limits: Limits, seconds: float) -> str:
    reasons = {
        "time": f"was not done in {seconds / 60:g} minutes",
        "cpu": f"took more than {limits.cpu_seconds} s of processor time",
        "memory": f"needed more than {limits.memory_mb} MB of memory",
        "file": f"wrote a file of more than {limits.file_mb} MB",
    }
    if result.limit:
        return reasons.get(result.limit, f"was ended by the limit {result.limit}")
    hint = {126: " (not executable)", 127: " (no such program in the image)"}.get(result.code, "")
    return f"exit code {result.code}{hint}"
