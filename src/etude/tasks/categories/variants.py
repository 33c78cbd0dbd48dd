"""Runs a package's tests on altered variants of it to find which tests each alteration makes fail. So every planted
defect is known to break a test."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import resources

RUNNER = (resources.files("etude.tasks.box") / "run_variants.py").read_text(encoding="utf-8")
_CPU_SECONDS = 0.5
_PATIENCE = 600.0
"""Timeout in seconds for all variants together. It is a safety net, because each variant has its own limit on CPU time.
"""


@dataclass(frozen=True, slots=True)
class Outcome:
    tests: tuple[str, ...]
    failed: tuple[str, ...]

    @property
    def passed(self) -> tuple[str, ...]:
        return tuple(test for test in self.tests if test not in self.failed)


def job_of(files: Mapping[str, bytes], variants: Sequence[Mapping[str, bytes]], *, tests: str = "tests") -> bytes:
    """Return the input of the program run_variants.py, which it reads from standard input. Each variant maps paths to
    contents that replace those in `files`."""
    job = {
        "files": {path: data.decode() for path, data in files.items()},
        "variants": [{path: data.decode() for path, data in variant.items()} for variant in variants],
        "tests": tests,
        "seconds": _CPU_SECONDS,
    }
    return json.dumps(job).encode()


def outcomes_of(said: bytes) -> list[Outcome | None]:
    """Parse the output of run_variants.py into one outcome per variant. The outcome is None if the variant's suite
    could not be loaded or did not finish."""
    return [Outcome(*map(tuple, row)) if row else None for row in json.loads(said)]


def try_variants(files: Mapping[str, bytes], variants: Sequence[Mapping[str, bytes]]) -> list[Outcome | None]:
    """Run the tests on each variant."""
    return outcomes_of(run_variants(job_of(files, variants), _PATIENCE))


def run_variants(job: bytes, seconds: float) -> bytes:
    """Run the program of box/run_variants.py unprotected on this machine, so only for Étude's own packages."""
    command = [sys.executable, "-I", "-S", "-B", "-c", RUNNER]
    return subprocess.run(command, input=job, stdout=subprocess.PIPE, check=True, timeout=seconds).stdout
