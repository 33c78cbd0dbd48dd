"""Packages of several modules with their hidden suites, from which debugging, feature, review and build tasks are made.

Each package is one text file, in which a line `=== path` begins a file of the package. Tests are below tests/ or test/.
A Node package lists its possible bugs and harmless edits in `damages.toml`; those of a Python package are found by
altering it and running its tests. All tasks made from one package are in the same split.
"""

from __future__ import annotations

import random
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any, Literal

from etude.tasks.categories.alterations import Alteration, altered, apart, damages, harmless
from etude.tasks.categories.variants import try_variants
from etude.tasks.verifiers.language import module_name
from etude.tasks.verifiers.tests.chances import is_default
from etude.tasks.verifiers.tests.pool import test_functions

PYTHON = ("auction", "ferry", "grades", "household", "pantry", "parcels", "parking", "rota", "trams", "weather")
NODE = ("meter", "tolls")
_OTHERWISE = 6
"""Maximum number of harmless edits by which a task's second correct solution differs from its first."""
_KIN = "package:"
_PART = re.compile(r"^=== (.+)\n", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Damage:
    """A possible bug of a package: the edit that makes it (`alteration`), and the ids of the tests that then fail."""

    alteration: Alteration
    tests: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Package:
    name: str
    runner: Literal["unittest", "node"]
    files: Mapping[str, bytes]
    """Files of the package that the agent sees, by path."""
    tests: Mapping[str, bytes]
    ids: tuple[str, ...]
    """Ids of all tests, as the test runner reports them."""
    telling: frozenset[str]
    """Ids of the tests with exactly one expected value, which can be withheld from the box at grading, and is neither a
    usual default nor a part of the input. Empty for a Node package.
    """
    damages: tuple[Damage, ...]
    harmless: tuple[Alteration, ...]
    """Edits of the package that make no test fail."""

    @property
    def modules(self) -> list[str]:
        return [path for path in self.files if path.endswith(".py") and not path.endswith("__init__.py")]


def kins(*names: str) -> list[str]:
    return [f"{_KIN}{name}" for name in names]


def package_of(kin: str) -> Package:
    return read_package(kin.removeprefix(_KIN))


@cache
def read_package(name: str) -> Package:
    text = (resources.files(__package__) / f"{name}.txt").read_text(encoding="utf-8")
    _, *parts = _PART.split(text)
    found = {path: body.encode() for path, body in zip(parts[::2], parts[1::2], strict=True)}
    tests = {path: data for path, data in found.items() if path.startswith(("tests/", "test/"))}
    files = {path: data for path, data in found.items() if path not in tests and path != "damages.toml"}
    if name in NODE:
        return _of_node(name, files, tests, tomllib.loads(found["damages.toml"].decode()))
    return _of_python(name, files, tests)


def written_otherwise(package: Package, rng: random.Random) -> dict[str, bytes]:
    """Return the package's files with random harmless edits, as another author might have written them. Return an empty
    mapping if the package has no known harmless edits."""
    chosen = apart(rng.sample(package.harmless, len(package.harmless)))[:_OTHERWISE]
    return altered(package.files, chosen) if chosen else {}


def _of_python(name: str, files: Mapping[str, bytes], tests: Mapping[str, bytes]) -> Package:
    modules = [path for path in files if path.endswith(".py")]
    bad = [one for path in modules for one in damages(path, files[path])]
    good = [one for path in modules for one in harmless(path, files[path])]
    variants = [{one.path: altered(files, [one])[one.path]} for one in (*bad, *good)]
    whole, *tried = try_variants({**files, **tests}, [{}, *variants])
    if whole is None or whole.failed:
        raise AssertionError(f"the suite of {name} does not pass: {whole}")
    telling = frozenset(one for path, data in tests.items() for one in _telling(path, data))
    proven = tuple(
        Damage(one, outcome.failed)
        for one, outcome in zip(bad, tried[: len(bad)], strict=True)
        if outcome is not None and telling.intersection(outcome.failed)
    )
    same = tuple(
        one for one, outcome in zip(good, tried[len(bad) :], strict=True) if outcome is not None and not outcome.failed
    )
    return Package(name, "unittest", files, tests, whole.tests, telling, proven, same)


def _telling(path: str, suite: bytes) -> list[str]:
    return [
        ".".join((module_name(path), *function.path))
        for function in test_functions(path, suite)
        for site in function.sites
        if len(function.sites) == 1 and site.statement
        if not is_default(site.value) and repr(site.value) not in site.given
    ]


def _of_node(
    name: str, files: Mapping[str, bytes], tests: Mapping[str, bytes], listed: Mapping[str, list[dict[str, Any]]]
) -> Package:
    (test_path, suite), *_ = tests.items()
    titles = re.findall(r'^test\("(.+)",', suite.decode(), re.MULTILINE)
    proven = [
        Damage(_listed(row, files), tuple(f"{test_path} > {title}" for title in row["tests"]))
        for row in listed["damage"]
    ]
    same = tuple(_listed(row, files) for row in listed["harmless"])
    ids = tuple(f"{test_path} > {title}" for title in titles)
    return Package(name, "node", files, tests, ids, frozenset(), tuple(proven), same)


def _listed(row: Mapping[str, Any], files: Mapping[str, bytes]) -> Alteration:
    """Return the edit that one entry (`row`) of `damages.toml` describes. It replaces the first occurrence of the
    entry's text `before` by its text `after`."""
    path, before = row["file"], row["before"].encode()
    start = files[path].index(before)
    line = files[path][:start].count(b"\n") + 1
    return Alteration(path, start, start + len(before), row["after"], row["kind"], line, line)
