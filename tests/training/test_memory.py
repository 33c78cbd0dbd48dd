"""What is free, and what is said when memory runs out, by processes that really have too little."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from etude.training import OutOfMemory, free_memory, told_when_short
from etude.training.memory import Change, advice, is_shortage

FORKING = """
import json, mmap, os, resource, sys
import numpy, torch
from etude.training import OutOfMemory, free_memory, told_when_short
from etude.training.memory import return_freed

for room, program in json.loads(sys.argv[1]):
    sys.stdout.flush()
    if os.fork() == 0:
        space = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize() + room
        resource.setrlimit(resource.RLIMIT_AS, (space, space))
        exec(program)
        sys.exit()
    _, status = os.wait()
    assert status == 0, program
"""
"""Runs each of the programs in a process that may take no more than `room` bytes besides what it has. They are forked
from one that has imported everything, since to import torch takes longer than all of them."""
ALLOCATIONS = ("torch.ones(2**28)", "numpy.ones(2**28)", "bytearray(2**30)", "mmap.mmap(-1, 2**30)")
SHORT = """
try:
    with told_when_short("stage sft", "cpu", lambda: "it takes about 9 GB; set sft.microbatch_tokens=4096"):
        {}
except OutOfMemory as error:
    print(error)
"""
FREED = """
def resident():
    return int(open('/proc/self/statm').read().split()[1]) * resource.getpagesize()
return_freed()
before = resident()
for _ in range(3):
    held = [torch.ones(2**18) for _ in range(100)]
    del held[::2]
print(resident() - before)
"""
FREE = "print(free_memory())"
ROOMS = {**dict.fromkeys(ALLOCATIONS, 2**28), FREE: 3 * 2**28, FREED: 2**30}


@pytest.fixture(scope="module")
def printed() -> dict[str, str]:
    """The line that each program of ROOMS prints."""
    programs = [(room, SHORT.format(work) if work in ALLOCATIONS else work) for work, room in ROOMS.items()]
    command = [sys.executable, "-c", FORKING, json.dumps(programs)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return dict(zip(ROOMS, done.stdout.splitlines(), strict=True))


@pytest.mark.parametrize("work", ALLOCATIONS)
def test_every_allocator_is_understood(work: str, printed: dict[str, str]) -> None:
    line = printed[work]
    assert line.startswith("stage sft ran out of memory on cpu")
    assert line.endswith("set sft.microbatch_tokens=4096; then run the same command again to go on")
    assert "asked for" not in line or any(f"asked for {size} GB more" in line for size in ("1.1", "2.1"))


def test_another_error_stays_what_it_is() -> None:
    with pytest.raises(RuntimeError, match="must match"), told_when_short("a step", "cpu", lambda: "never asked"):
        torch.ones(2) + torch.ones(3)
    with pytest.raises(FileNotFoundError), told_when_short("a step", "cpu", lambda: "never asked"):
        Path("/nowhere").read_bytes()
    assert is_shortage(torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB"))


def test_a_gpu_says_how_much_it_was_asked_for() -> None:
    told = told_when_short("a step", "cuda", lambda: "lower it")
    with pytest.raises(OutOfMemory, match=r"on cuda, asked for 2.1 GB more: lower it"), told:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has")


def test_free_memory_respects_the_limit_of_the_address_space(printed: dict[str, str]) -> None:
    left = int(printed[FREE])
    assert 2**28 < left <= 3 * 2**28
    assert free_memory() > left


def test_freed_tensors_leave_no_holes_in_the_heap(printed: dict[str, str]) -> None:
    assert 50 * 2**20 <= int(printed[FREED]) < 60 * 2**20


def test_the_first_change_that_suffices_is_advised() -> None:
    changes = [Change("a=1", 9_000_000_000), Change("a=2", 5_000_000_000), Change("a=3", 2_000_000_000)]
    assert advice(changes, 6e9) == "set a=2, which takes about 5.0 GB"
    assert advice(changes, 1e9).startswith("even with a=3 it takes about 2.0 GB: take a smaller model")
    assert advice([], 1e9) == "take a smaller model, or a larger machine"
