"""Real runs that can be killed: start `etude run`, wait for an event, kill -9 one of its processes, check what is left.

Every process of a run inherits a mark in its environment and the run's own temporary folder, so that what a run leaves
behind can be told from everything else on the machine. Processes are killed by pid, never by name.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from etude.journal import Entry, RunPaths, read_journal

RECIPE = Path(__file__).with_name("recipe.toml")
MARK = "ETUDE_SURVIVAL"
PATIENCE = 3600
"""Timeout in seconds of a whole test with its fixtures. It is generous, since a run is killed several times and a busy
machine takes ten times as long. The deadlines here only end what hangs; they are no performance requirements."""
WHOLE_RUN_SECONDS = 900.0
GONE_SECONDS = 30.0
"""Seconds after a kill within which everything of the run must be gone."""


@dataclass
class Run:
    """One run folder, and the `etude run` commands that work on it one after another."""

    root: Path
    overrides: tuple[str, ...] = ()
    recipe: Path = RECIPE
    prefix: tuple[str, ...] = ()
    """Words put before the command, such as unshare with its options."""
    env: dict[str, str] = field(default_factory=dict)
    mark: str = field(default_factory=lambda: secrets.token_hex(8))
    temporary: Path = field(default_factory=lambda: Path(f"/tmp/esv-{secrets.token_hex(4)}"))
    """TMPDIR of the run, made when the command starts. It is short, since paths of sockets have a length limit."""
    process: subprocess.Popen[str] | None = None
    started: float = 0.0
    segments: frozenset[str] = frozenset()
    journal: tuple[dict[str, int], list[Entry]] = field(default_factory=lambda: ({}, []))
    """What `entries` read last: the size of each file, and the entries of them all."""

    @property
    def paths(self) -> RunPaths:
        return RunPaths(self.root)

    def start(self, *more: str) -> Run:
        """Start the command, or start it again."""
        self.segments = frozenset(_segments())
        self.temporary.mkdir(mode=0o700, exist_ok=True)
        self.started = time.time()
        command = [*self.prefix, sys.executable, "-m", "etude.cli.main", "run", str(self.recipe)]
        command += ["--runs", str(self.root.parent), "--name", self.root.name, *self.overrides, *more]
        self.process = subprocess.Popen(
            command,
            env={**os.environ, **self.env, MARK: self.mark, "TMPDIR": str(self.temporary)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        return self

    def finish(self) -> str:
        """Wait for the command to end with exit code 0; return its output."""
        code, printed = self.end()
        assert code == 0, f"exit code {code}:\n{printed}"
        return printed

    def end(self) -> tuple[int, str]:
        assert self.process is not None
        try:
            printed, _ = self.process.communicate(timeout=WHOLE_RUN_SECONDS)
        except subprocess.TimeoutExpired:
            os.killpg(self.process.pid, signal.SIGKILL)
            printed, _ = self.process.communicate()
            late = f"the run did not end within {WHOLE_RUN_SECONDS:.0f} s"
            raise AssertionError(f"{late}:\n{printed}\n{self.story()}") from None
        return self.process.returncode, printed

    def finish_rl(self) -> Run:
        """Wait for the end of RL and then stop the command, as the evaluation after it does not matter here."""
        self.wait(lambda run: any(e.fields["stage"] == "rl" for e in run.entries("stage_finished")))
        assert self.process is not None
        self.process.send_signal(signal.SIGTERM)
        code, printed = self.end()
        assert code in (0, 130), printed
        return self

    def kill_driver(self) -> None:
        assert self.process is not None
        assert self.process.poll() is None, f"it ended too early:\n{self.end()[1]}"
        self.process.kill()
        self.process.communicate()

    def kill(self, service: str) -> int:
        """Send SIGKILL to the service's current process; return its pid."""
        pid = self.pid(service)
        os.kill(pid, signal.SIGKILL)
        return pid

    def pid(self, service: str) -> int:
        started = [e for e in self.entries("service_started") if e.fields["service"] == service]
        assert started, f"{service} was not started:\n{self.story()}"
        return int(str(started[-1].fields["pid"]))

    def entries(self, kind: str | None = None) -> list[Entry]:
        """Journal entries since the last start of the command."""
        sizes = {file.name: file.stat().st_size for file in self.paths.journal.glob("*.jsonl")}
        if sizes != self.journal[0]:  # `wait` asks 50 times a second: to read them each time takes a fifth of a core.
            self.journal = sizes, list(read_journal(self.paths.journal))
        return [e for e in self.journal[1] if e.time >= self.started and kind in (None, e.kind)]

    def events(self) -> list[dict[str, Any]]:
        """Events in rl/events.jsonl, over all starts of the command."""
        file = self.paths.rl / "events.jsonl"
        lines = file.read_text().splitlines(keepends=True) if file.exists() else []
        return [json.loads(line) for line in lines if line.endswith("\n")]

    def count(self, event: str) -> int:
        return sum(e["event"] == event for e in self.events())

    def wait(self, moment: Callable[[Run], bool]) -> None:
        """Wait until `moment` holds, checking every 20 ms."""
        assert self.process is not None
        until = time.monotonic() + WHOLE_RUN_SECONDS
        while True:
            ended = self.process.poll() is not None  # Read before `moment`: an event just before the end counts.
            if moment(self):
                return
            assert not ended, f"it ended before the moment came:\n{self.end()[1]}"
            late = f"the moment did not come within {WHOLE_RUN_SECONDS:.0f} s"
            assert time.monotonic() < until, f"{late}:\n{self.story()}"
            time.sleep(0.02)

    def story(self) -> str:
        """The journal's entries as text, for the message of a failed assertion."""
        told = [e for e in self.entries() if e.kind not in ("metrics", "progress", "wait")]
        return "\n".join(f"{e.time - self.started:7.2f} {e.process} {e.kind} {e.fields}" for e in told)

    def lineage(self, stage: str) -> dict[str, Any]:
        record: dict[str, Any] = json.loads(self.paths.lineage.read_text())["stages"][stage]
        return record

    def consumed(self) -> list[int]:
        """The prompts that the whole run trained on, in order."""
        return [group for step in self.lineage("rl")["result"]["consumed"] for group in step]

    def restarts(self, service: str) -> int:
        return sum(
            e.fields["service"] == service and e.fields["incarnation"] != 1 for e in self.entries("service_started")
        )

    def final_weights(self) -> dict[str, bytes]:
        """RL's final model, and the number and content hash of the last published version."""
        versions = sorted(path for path in self.paths.weights.iterdir() if path.name.startswith("v"))
        manifest = json.loads((versions[-1] / "manifest.json").read_text())
        model = (self.paths.model("rl") / "model.safetensors").read_bytes()
        return {"model": model, "version": f"{versions[-1].name} {manifest['content']}".encode()}

    def left_behind(self) -> list[str]:
        """What of this run is still on the machine after GONE_SECONDS: processes, mounts, shared memory, folders."""
        until = time.monotonic() + GONE_SECONDS
        while (left := self._left()) and time.monotonic() < until:
            time.sleep(0.25)
        return left

    def _left(self) -> list[str]:
        left = [f"process {pid}: {command}" for pid, command in marked_processes(self.mark)]
        left += [*_holders(self.root), *_mounts(self.root), *_mounts(self.temporary)]
        left += [f"folder {path}" for path in self.temporary.iterdir()]
        return left + [f"segment {name}" for name in _orphan_segments(self.segments)]


def marked_processes(mark: str) -> Iterator[tuple[int, str]]:
    """Living processes that inherited the mark."""
    wanted = f"{MARK}={mark}".encode()
    for entry in Path("/proc").iterdir():
        if not entry.name.isdecimal():
            continue
        with suppress(OSError):
            if wanted in (entry / "environ").read_bytes().split(b"\0"):
                yield int(entry.name), (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")


def _holders(folder: Path) -> list[str]:
    """Processes with an open file, working directory or root below the folder. Needed besides the mark, since boxes and
    their zygote have an empty environment."""
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdecimal() or int(entry.name) == os.getpid():
            continue
        with suppress(OSError):
            links = [str(path.readlink()) for path in (*(entry / "fd").iterdir(), entry / "cwd", entry / "root")]
            if any(link.startswith(f"{folder}/") for link in links):
                found.append(f"process {entry.name} {(entry / 'cmdline').read_bytes()!r} holds {folder}")
    return found


def _mounts(folder: Path) -> list[str]:
    """Mounts that contain the folder's path, in every mount namespace that some process lives in."""
    lines = {line for mounts in _proc("mounts") for line in mounts.splitlines() if f"{folder}" in line}
    return [f"mount {line}" for line in sorted(lines)]


def _segments() -> list[str]:
    """Names of shared-memory segments. Folders in /dev/shm are skipped: they belong to other tests; so are those of
    Intel's OpenMP, which the killed processes of vLLM leave in its own tests."""
    with os.scandir("/dev/shm") as entries:
        files = [entry.name for entry in entries if not entry.is_dir(follow_symlinks=False)]
    return [name for name in files if not name.startswith("__KMP_REGISTERED_LIB_")]


def _orphan_segments(before: frozenset[str]) -> list[str]:
    """New segments that no living process has mapped; mapped ones belong to other programs on this machine."""
    fresh = [name for name in _segments() if name not in before]
    return [name for name in fresh if not any(f"/dev/shm/{name}" in maps for maps in _proc("maps"))]


def _proc(file: str) -> Iterator[str]:
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            with suppress(OSError):
                yield (entry / file).read_text(errors="replace")


def prepared(root: Path) -> None:
    """Make a run folder whose stages up to SFT are done."""
    command = [sys.executable, str(Path(__file__).with_name("prepare.py")), str(RECIPE), str(root)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=WHOLE_RUN_SECONDS, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@contextmanager
def rl_run(base: Path, root: Path, *overrides: str, **fields: Any) -> Iterator[Run]:
    """Yield a run, copied from `base`, in which only RL and the evaluation are left to do. Clean up afterwards."""
    shutil.copytree(base, root, symlinks=True)
    with cleared(Run(root, tuple(overrides), **fields)) as run:
        yield run


@contextmanager
def cleared(run: Run) -> Iterator[Run]:
    """Yield the run; afterwards kill what is left of it and remove its temporary folder."""
    try:
        yield run
    finally:
        if run.process is not None and run.process.poll() is None:
            run.process.kill()
            run.process.communicate()
        for pid, _ in list(marked_processes(run.mark)):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        shutil.rmtree(run.temporary, ignore_errors=True)


def assert_each_prompt_once(run: Run, prompts: Sequence[int] | range) -> None:
    """Check by the result and by the event log that each prompt was admitted once and consumed by one step, and that
    each step was trained once."""
    assert Counter(run.consumed()) == Counter(prompts)
    events = run.events()
    assert Counter(e["group"] for e in events if e["event"] == "Admitted") == Counter(prompts)
    assert Counter(g for e in events if e["event"] == "TrainStarted" for g in e["groups"]) == Counter(prompts)
    steps = [e["step"] for e in events if e["event"] == "Trained"]
    assert steps == list(range(len(steps)))
