"""Starts, watches and ends the process in vLLM's interpreter, and calls it.

The process finds this project and the plugin in a folder of links on its PYTHONPATH, so nothing of ours is installed
there, and one interpreter serves every checkout.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import weakref
from collections import deque
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

import etude
from etude.cluster.direct_calls import CallerConnection, ConnectionLost
from etude.engine.protocol import EngineError, EngineOutOfMemory
from etude.engine.vllm.known import DISTRIBUTIONS, TESTED, refusal
from etude.engine.vllm.settings import Settings, environment
from etude.engine.wire import pack, unpack

log = logging.getLogger(__name__)
TOLD_LINES = 20
"""Number of the last lines of vLLM's output that an error repeats."""
_VERSION = f"""
from importlib.metadata import PackageNotFoundError, version
for name in {DISTRIBUTIONS!r}:
    try:
        print(version(name))
        break
    except PackageNotFoundError:
        pass
"""
_SHORT_OF_MEMORY = ("MemoryError", "out of memory", "DefaultCPUAllocator: can't allocate")


class ChildDied(EngineError):
    """vLLM's process is gone. A new one has to be started."""


def usual_interpreter() -> Path:
    """Return the interpreter that `make vllm` sets up."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return cache / "etude" / f"vllm-{TESTED[0]}" / "bin" / "python"


def checked_interpreter(named: str = "", *, any_version: bool = False) -> Path:
    """Return vLLM's interpreter: the one named, or that of `make vllm`. Raises EngineError if it cannot be used."""
    interpreter = Path(named).expanduser() if named else usual_interpreter()
    said = f"engine.vllm.python = {named!r}" if named else f"engine.vllm.python is not set, and {interpreter}"
    if not interpreter.exists():
        raise EngineError(f"{said} does not exist; run `make vllm`, or name the interpreter of a vLLM that is there")
    try:
        found = subprocess.run(
            [interpreter, "-c", _VERSION], capture_output=True, text=True, timeout=60, check=True, env={}
        ).stdout.strip()
    except (OSError, subprocess.SubprocessError) as error:
        raise EngineError(f"{said} does not run: {error}") from error
    if not found:
        raise EngineError(f"{said} has no vLLM; run `make vllm`")
    if reason := refusal(found, any_version=any_version):
        raise EngineError(f"{said}: {reason}")
    return interpreter


class Child:
    """One process of vLLM's interpreter, and those that it starts: all are one process group."""

    def __init__(
        self, interpreter: Path, settings: Settings, version: int, cache_at_swap: str, threads: int, seconds: float
    ) -> None:
        """Start it, and return once it answers calls; this takes a minute or more. Raises EngineError if it ends before
        that, or is not ready after so many seconds."""
        self.folder = Path(tempfile.mkdtemp(prefix="etude-vllm-"))
        self._last: deque[str] = deque(maxlen=TOLD_LINES)
        self._connection: CallerConnection | None = None
        self._socket = str(self.folder / "calls")
        _bridge(self.folder)
        given = asdict(settings) | {"version": version, "cache_at_swap": cache_at_swap, "socket": self._socket}
        (self.folder / "settings.json").write_text(json.dumps(given))
        self._process = subprocess.Popen(
            [interpreter, "-m", "etude.engine.vllm.inside", str(self.folder / "settings.json")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
            env=_environment(self.folder, interpreter, settings, threads),
        )
        self._end = weakref.finalize(self, _end, self._process, self.folder)
        self._reader = threading.Thread(target=_repeat, args=(self._process, self._last), daemon=True)
        self._reader.start()
        try:
            self._wait_until_ready(seconds)
        except BaseException:
            self._end()
            raise

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    def end(self) -> None:
        """Kill it and every process that it started."""
        self._end()

    async def call(self, method: str, *arguments: Any) -> Any:
        """Call a method of `inside.host.Host`. Raises what it raised, or ChildDied or EngineOutOfMemory if it died."""
        try:
            connection = await self._connected()
            answer = unpack(await connection.ask(pack([method, list(arguments)])))
        except ConnectionLost as error:
            raise await asyncio.to_thread(self._death) from error
        if isinstance(answer, EngineError):
            raise answer
        return answer

    def tell(self, method: str, *arguments: Any) -> None:
        """Call a method without waiting for its answer, where a call was made before."""
        if self._connection is not None and not self._connection.lost:
            self._connection.tell(pack([method, list(arguments)]))

    async def _connected(self) -> CallerConnection:
        # A connection belongs to an event loop. Those who test engines have one per test.
        here = asyncio.get_running_loop()
        if self._connection is None or self._connection.loop is not here:
            opened = await CallerConnection.open(self._socket)
            if self._connection is None or self._connection.loop is not here:
                self._connection = opened
        return self._connection

    def _wait_until_ready(self, seconds: float) -> None:
        began, phase = time.monotonic(), "starting"
        assert self._process.stdout is not None
        timer = threading.Timer(seconds, self._process.kill)
        timer.start()
        try:
            for line in self._process.stdout:
                log.info("vLLM: %s, after %.0f s", phase := line.strip(), time.monotonic() - began)
                if phase == "ready":
                    return
        finally:
            timer.cancel()
        late = time.monotonic() - began >= seconds
        raise EngineError(f"vLLM was not ready within {seconds:g} s, still {phase}") if late else self._death(phase)

    def _death(self, phase: str = "") -> EngineError:
        """Wait for the end of the process, and return the error that says why."""
        _kill(self._process)
        self._reader.join(5)
        lines, code = list(self._last), self._process.returncode
        where = f"vLLM's process ended{f' while {phase}' if phase else ''}, with code {code}"
        text = f"{where}; its last lines: " + ("\n".join(lines) or "none")
        short = any(sign in line for line in lines for sign in _SHORT_OF_MEMORY)
        return EngineOutOfMemory(text) if short else ChildDied(text)


def _bridge(folder: Path) -> None:
    """Make what goes first on vLLM's PYTHONPATH: this package, and the declaration of its plugin."""
    (folder / "etude").symlink_to(Path(etude.__file__).parent)
    declared = folder / "etude_vllm-0.dist-info"
    declared.mkdir()
    (declared / "METADATA").write_text("Metadata-Version: 2.1\nName: etude-vllm\nVersion: 0\n")
    (declared / "entry_points.txt").write_text(
        "[vllm.general_plugins]\netude = etude.engine.vllm.inside.plugin:register\n"
    )


def _environment(folder: Path, interpreter: Path, settings: Settings, threads: int) -> dict[str, str]:
    ours = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "VIRTUAL_ENV"))}
    return ours | {"PYTHONPATH": str(folder)} | environment(settings, interpreter, threads)


def _repeat(process: subprocess.Popen[str], last: deque[str]) -> None:
    """Repeat what vLLM prints on our stderr, which is the service's log, and keep the last lines."""
    assert process.stderr is not None
    for line in process.stderr:
        last.append(line.rstrip())
        sys.stderr.write(line)


def _kill(process: subprocess.Popen[str]) -> None:
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _end(process: subprocess.Popen[str], folder: Path) -> None:
    _kill(process)
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            pipe.close()
    shutil.rmtree(folder, ignore_errors=True)
