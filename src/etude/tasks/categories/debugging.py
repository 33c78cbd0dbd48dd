"""Debugging tasks: a package with one bug. The hidden test suite passes again once the bug is fixed."""

from __future__ import annotations

import random
from collections.abc import Sequence

from etude.tasks.categories.alterations import altered
from etude.tasks.categories.base import CategorySource, Draft
from etude.tasks.categories.packages import NODE, PYTHON, Package, kins, package_of, written_otherwise
from etude.tasks.verifiers.tests import suite_files


class DebuggingSource(CategorySource):
    name = "debugging"
    category = "debugging"

    def kins(self) -> Sequence[str]:
        return kins(*PYTHON, *NODE)

    def draft(self, kin: str, rng: random.Random) -> Draft:
        package = package_of(kin)
        damage = rng.choice(package.damages)
        rest = [test for test in package.ids if test not in damage.tests]
        return Draft(
            instruction=instruction(package, rng.choice(damage.tests), rng),
            kind=damage.alteration.kind,
            verifier={"type": "tests", "runner": package.runner, "seconds": 10.0, "memory_mb": 512},
            before=altered(package.files, [damage.alteration]),
            solved=package.files,
            other=written_otherwise(package, rng),
            hidden=suite_files(package.tests, damage.tests, rest),
            image="node:20" if package.runner == "node" else "python:3.11",
        )


def instruction(package: Package, test: str, rng: random.Random) -> str:
    """Return an instruction that asks for a fix and describes the bug by the name of a failing test."""
    subject = test.rpartition(" > ")[2] if package.runner == "node" else test.rpartition(".test_")[2].replace("_", " ")
    return rng.choice(
        (
            f"{package.name} answers wrongly: {subject}. Find out why and mend it.",
            f"There is a bug in {package.name}: {subject} does not come out as documented.",
            f"Fix {package.name}: {subject}",
        )
    )
