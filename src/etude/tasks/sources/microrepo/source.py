"""The microrepo task source: makes repositories with one injected bug as Harbor task directories.

A task's cell says whether training saw its family and its kind of bug; it depends only on the task's split and index.
Train tasks have seen families and kinds. Dev tasks have seen kinds, and half of them have families that training never
saw. Test tasks come from all four cells in the recipe's shares.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from importlib import resources
from itertools import accumulate
from pathlib import Path

from etude.harness.editing.diff import unified_diff
from etude.recipe.acting import CellsRecipe
from etude.tasks.cases import dump_cases
from etude.tasks.directory import REFERENCE_DIFF, REPOSITORY, WORKDIR
from etude.tasks.sources.microrepo.bugs import SEEN_KINDS, UNSEEN_KINDS
from etude.tasks.sources.microrepo.pools import pool_of
from etude.tasks.sources.microrepo.repository import CHECK, Repository, draw_repository
from etude.tasks.task import Cell, Split, Task, TaskLimits

_DOCKERFILE = f"FROM python:3.11-slim\nWORKDIR {WORKDIR}\nCOPY repo/ {WORKDIR}/\n"
_TEST = '#!/bin/sh\n# Writes /logs/verifier/reward.txt.\nexec python3 "$(dirname "$0")/verify.py"\n'
_SOLVE = f'#!/bin/sh\ncd {WORKDIR} && patch -p1 < "$(dirname "$0")/patch.diff"\n'
_BOX = resources.files("etude.tasks.box")
_GOLDEN = (5**0.5 - 1) / 2


class MicroRepoSource:
    name = "microrepo"
    version = 5

    def __init__(self, test: CellsRecipe | None = None) -> None:
        test = test or CellsRecipe()
        shares = {
            Cell.BOTH_SEEN: test.both_seen,
            Cell.UNSEEN_FAMILY: test.unseen_family,
            Cell.UNSEEN_KIND: test.unseen_kind,
            Cell.BOTH_UNSEEN: test.both_unseen,
        }
        self._shares = {
            Split.TRAIN: {Cell.BOTH_SEEN: 1.0},
            Split.DEV: {Cell.BOTH_SEEN: 0.5, Cell.UNSEEN_FAMILY: 0.5},
            Split.TEST: {cell: share for cell, share in shares.items() if share},
        }
        self._helpers = {f"tests/{name}": (_BOX / name).read_bytes() for name in ("run_cases.py", "verify.py")}

    def make(self, split: Split, index: int, seed: int, directory: Path) -> tuple[Task, Mapping[str, bytes]]:
        # A string seed is hashed by its bytes, the same on every machine.
        rng = random.Random(f"microrepo/{self.version}/{seed}/{split.value}/{index}")
        cell = cell_at(index, self._shares[split])
        pool = pool_of(split, family_seen=cell.family_seen)
        repository = draw_repository(pool, rng, SEEN_KINDS if cell.kind_seen else UNSEEN_KINDS)
        damage = repository.damage
        task = Task(
            id=f"{self.name}-{split.value}-{index:05d}",
            instruction=instruction(repository, rng),
            category="debugging",
            split=split,
            family=damage.function.family.name,
            kind=damage.kind,
            directory=directory,
            limits=TaskLimits(verifier_seconds=10.0),
            provenance={"source": self.name, "version": self.version, "seed": seed, "index": index},
            deterministic=(f"python {CHECK}", f"python3 {CHECK}"),
            cell=cell,
            config={
                "verifier": {"timeout_sec": 10.0},
                "agent": {"timeout_sec": 300.0},
                "environment": {"cpus": 1, "memory_mb": 256, "network_mode": "no-network", "workdir": WORKDIR},
                # The Dockerfile is for other readers of Harbor tasks; here the files alone are enough.
                "metadata": {"etude": {"environment": {"base": "host"}}},
            },
        )
        return task, self._helpers | _files(repository)


def cell_at(index: int, shares: Mapping[Cell, float]) -> Cell:
    """Return the cell (whether training saw the family, and the kind of bug) of the task with this index.

    Each cell owns an interval of [0, 1) as long as its share. Indices become points there, multiples of the golden
    ratio modulo 1, which are spread evenly. So at any number of tasks each cell's count matches its share to within one
    or two.
    """
    point = (index + 0.5) * _GOLDEN % 1.0
    reached = zip(shares, accumulate(shares.values()), strict=True)
    return next((cell for cell, end in reached if point < end), list(shares)[-1])


def instruction(repository: Repository, rng: random.Random) -> str:
    """Return an instruction that names the broken function, its file, both or neither."""
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
        REFERENCE_DIFF: unified_diff(before, fixed).encode(),
        "solution/solve.sh": _SOLVE.encode(),
    }
