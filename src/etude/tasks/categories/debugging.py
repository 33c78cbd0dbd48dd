"""Debugging tasks: a package with one bug. The hidden test suite passes again once the bug is fixed."""

from __future__ import annotations

import random
from collections.abc import Sequence
from functools import cache

from etude.tasks.categories.alterations import altered
from etude.tasks.categories.base import CategorySource, Draft
from etude.tasks.categories.packages import NODE, PYTHON, Damage, Package, kins, package_of, written_otherwise
from etude.tasks.categories.packages.harder_tests import Hidden, harder_tests
from etude.tasks.verifiers.tests import suite_files


class DebuggingSource(CategorySource):
    name = "debugging"
    version = 3
    category = "debugging"

    def kins(self) -> Sequence[str]:
        return kins(*PYTHON, *NODE)

    def draft(self, kin: str, rng: random.Random) -> Draft:
        package = package_of(kin)
        damage, hidden = _draw(kin, rng)
        rest = [test for test in package.ids if test not in damage.tests]
        return Draft(
            instruction=instruction(package, rng.choice(damage.tests), rng),
            kind=damage.alteration.kind,
            verifier={"type": "tests", "runner": package.runner, "seconds": 10.0, "memory_mb": 512},
            before=altered(package.files, [damage.alteration]),
            solved=package.files,
            other=written_otherwise(package, rng),
            hidden=suite_files(hidden.tests, [*damage.tests, *hidden.ids], rest),
            image="node:20" if package.runner == "node" else "python:3.11",
        )


def _draw(kin: str, rng: random.Random) -> tuple[Damage, Hidden]:
    """Return a random bug whose fix cannot be feigned by guessing answers, with the tests for it."""
    package = package_of(kin)
    for place in rng.sample(range(len(package.damages)), len(package.damages)):
        if (hidden := _hidden(kin, place)) is not None:
            return package.damages[place], hidden
    raise AssertionError(f"no bug of {kin} has answers that are hard to guess")


@cache
def _hidden(kin: str, place: int) -> Hidden | None:
    package = package_of(kin)
    damage = package.damages[place]
    if package.runner == "node":
        return Hidden(package.tests)
    return harder_tests(package, damage.tests, altered(package.files, [damage.alteration]), f"{kin}/{place}")


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
