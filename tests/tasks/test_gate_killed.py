"""kill -9 and Ctrl-C while a gate runs: the same command resumes, and no process of its boxes stays behind."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from etude.tasks import Task
from etude.tasks.gate import read_evidence

KILLED = """
import asyncio, signal, sys
from pathlib import Path
from etude.recipe.acting import SandboxRecipe
from etude.sandbox import open_sandboxes
from etude.tasks import Split, gate_tasks, list_tasks

async def main(folder):
    sandboxes = open_sandboxes(SandboxRecipe(), folder / "boxes")
    try:
        tasks = list_tasks(folder / "tasks", Split.TRAIN)
        progress = lambda done, total: (print(done, flush=True), sys.stdin.readline())  # Goes on when told to.
        await gate_tasks(tasks, sandboxes, folder / "gate.jsonl", concurrency=2, progress=progress)
    finally:
        await sandboxes.close()

signal.signal(signal.SIGINT, signal.default_int_handler)  # A shell's background ignores it.
asyncio.run(main(Path(sys.argv[1])))
"""


@pytest.mark.slow
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT])
def test_a_gate_that_is_killed_goes_on_and_leaves_no_process(
    train_tasks: list[Task], tmp_path: Path, how: signal.Signals
) -> None:
    for task in train_tasks[:12]:
        shutil.copytree(task.directory, tmp_path / "tasks/train" / task.directory.name)
    command = [sys.executable, "-c", KILLED, str(tmp_path)]
    pipe, nothing = subprocess.PIPE, subprocess.DEVNULL
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=nothing, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        while int(process.stdout.readline()) < 4:
            print(file=process.stdin, flush=True)
        children = psutil.Process(process.pid).children(recursive=True)
        process.send_signal(how)
        process.communicate(timeout=120)
    before = read_evidence(tmp_path / "gate.jsonl")
    assert 4 <= len(before) < 12
    assert children, "the zygote of the boxes, for one"
    deadline = time.monotonic() + 120
    while running := [child for child in children if is_alive(child)]:
        assert time.monotonic() < deadline, running
        time.sleep(0.05)
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=True, timeout=240)
    assert done.stdout.split()[-1] == "12"
    after = read_evidence(tmp_path / "gate.jsonl")
    assert after[: len(before)] == before
    assert len({result.task for result in after}) == len(after) == 12
    assert all(result.survived for result in after)


def is_alive(process: psutil.Process) -> bool:
    """Whether it still runs, under its own pid; nobody may be there to reap it."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
