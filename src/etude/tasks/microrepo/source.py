"""The microrepo task source: repositories with one injected bug as Harbor task directories."""

from __future__ import annotations

import random
from collections.abc import Collection, Mapping
from importlib import resources
from pathlib import Path

from etude.harness.diff import unified_diff
from etude.tasks.cases import dump_cases
from etude.tasks.directory import REPOSITORY, WORKDIR
from etude.tasks.microrepo.bugs import KINDS
from etude.tasks.microrepo.families import families_of
from etude.tasks.microrepo.repository import CHECK, Repository, draw_repository
from etude.tasks.task import Split, Task, TaskLimits

_DOCKERFILE = f"FROM python:3.11-slim\nWORKDIR {WORKDIR}\nCOPY repo/ {WORKDIR}/\n"
_TEST = '#!/bin/sh\n# Writes /logs/verifier/reward.txt.\nexec python3 "$(dirname "$0")/verify.py"\n'
_SOLVE = f'#!/bin/sh\ncd {WORKDIR} && patch -p1 < "$(dirname "$0")/patch.diff"\n'
_BOX = resources.files("etude.tasks.box")


class MicroRepoSource:
    name = "microrepo"
    version = 1

    def __init__(self, kinds: Collection[str] = KINDS) -> None:
        self.kinds = tuple(kind for kind in KINDS if kind in kinds)
        self._helpers = {f"tests/{name}": (_BOX / name).read_bytes() for name in ("run_cases.py", "verify.py")}

    def make(self, split: Split, index: int, seed: int, directory: Path) -> tuple[Task, Mapping[str, bytes]]:
        # A text seeds by a hash of its bytes, the same on every machine.
        rng = random.Random(f"microrepo/{self.version}/{seed}/{split.value}/{index}")
        repository = draw_repository(families_of(split), rng, self.kinds)
        damage = repository.damage
        task = Task(
            id=f"{self.name}-{split.value}-{index:05d}",
            instruction=instruction(repository, rng),
            category="debugging",
            split=damage.function.family.split,
            family=damage.function.family.name,
            kind=damage.kind,
            directory=directory,
            limits=TaskLimits(verifier_seconds=10.0),
            provenance={"source": self.name, "version": self.version, "seed": seed, "index": index},
            deterministic=(f"python {CHECK}", f"python3 {CHECK}"),
            config={
                "verifier": {"timeout_sec": 10.0},
                "agent": {"timeout_sec": 300.0},
                "environment": {"cpus": 1, "memory_mb": 256, "network_mode": "no-network", "workdir": WORKDIR},
                # The Dockerfile is for other readers of Harbor tasks: here the files alone are enough.
                "metadata": {"etude": {"environment": {"base": "host"}}},
            },
        )
        return task, self._helpers | _files(repository)


def instruction(repository: Repository, rng: random.Random) -> str:
    """One short line; how much it gives away varies."""
    damage = repository.damage
    style = rng.random()
    if style < 0.4:
        return f"fix {damage.function.name} in {damage.file}"
    if style < 0.6:
        return f"fix {damage.file}"
    return f"fix {damage.function.name}" if style < 0.8 else f"{CHECK} fails, fix it"


def _files(repository: Repository) -> dict[str, bytes]:
    before = {path: text.encode() for path, text in repository.files().items()}
    fixed = before | {module.file: module.text.encode() for module in repository.modules}
    return {
        **{f"{REPOSITORY}/{path}": data for path, data in before.items()},
        "environment/Dockerfile": _DOCKERFILE.encode(),
        "tests/test.sh": _TEST.encode(),
        "tests/cases.json": dump_cases(repository.hidden),
        "solution/patch.diff": unified_diff(before, fixed).encode(),
        "solution/solve.sh": _SOLVE.encode(),
    }
