"""Starts a runner (runner.py) for one command of a folder box, and reads the command's result. Also holds the command's
streams and the leash, a pipe through which the runner is told to end the command."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import time
from typing import Any

from etude.sandbox.contract import SandboxLost
from etude.sandbox.light_python import light_command
from etude.sandbox.modes.runner import descendants, usage

_LIMITS = {"time", "cpu", "memory", "file"}


class CommandRun:
    def __init__(self, process: asyncio.subprocess.Process, leash: int, answer: int, name: str) -> None:
        self.process, self.name, self.began = process, name, time.monotonic()
        self.cpu_seconds = 0.0
        """CPU time of the command and all that it started. Set once it has ended."""
        self._leash, self._answer = leash, answer

    @classmethod
    async def start(cls, job: dict[str, Any], name: str, *, merged: bool = False) -> CommandRun:
        """Start a runner for `job` (see runner.main). `name` is for error messages. With `merged`, stderr goes into
        stdout."""
        leash_end, leash = os.pipe()
        answer, answer_end = os.pipe()
        try:
            process = await asyncio.create_subprocess_exec(
                *light_command("etude.sandbox.modes.runner", "main", job, leash_end, answer_end),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.STDOUT if merged else asyncio.subprocess.PIPE,
                pass_fds=[leash_end, answer_end],
                start_new_session=True,
                env={},
                cwd="/",
            )
        except BaseException:
            os.close(leash)
            os.close(answer)
            raise
        finally:
            os.close(leash_end)
            os.close(answer_end)
        return cls(process, leash, answer, name)

    def end(self, why: str) -> None:
        """End the process tree. If `why` is a limit, such as "time", it is reported as the one that ended the command,
        unless the command hit another first. Safe to call twice."""
        if self._leash >= 0:
            with contextlib.suppress(BrokenPipeError):
                os.write(self._leash, why.encode())
            os.close(self._leash)
            self._leash = -1

    async def result(self) -> tuple[int, str]:
        """Return exit code and the limit that ended the command, once everything that it started has ended."""
        await self.process.wait()
        self.end("")
        with os.fdopen(self._answer, "rb") as file:
            data = file.read()
        if not data:
            raise SandboxLost(f"the runner of {self.name} was killed from outside")
        answer = json.loads(data)
        self.cpu_seconds = answer["cpu_seconds"]
        return answer["code"], answer["limit"] if answer["limit"] in _LIMITS else ""

    def usage(self) -> tuple[int, int, float]:
        """Return (number of processes, memory bytes, CPU seconds) of the living processes."""
        pids = descendants(self.process.pid)
        return len(pids), *usage(pids)
