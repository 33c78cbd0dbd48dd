"""Writes reference solutions of build tasks: a shell script, a Makefile, or a Python program that either of them
starts. Also writes Python programs that check the package and run its tests, for the solutions of workflow and
Dockerfile tasks."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Rule:
    asked: str
    """Condition under which the build must fail, as the task's instruction words it."""
    check: str
    """Python expression that is true if `text`, the source of a module, breaks the rule."""
    broken: str
    """Source of an example module that breaks the rule."""


@dataclass(frozen=True, slots=True)
class Manifest:
    asked: str
    line: str
    """Python expression that makes the manifest's line for a file from its `path` and its contents `data`."""
    of: Callable[[str, bytes], str]


_LISTED = "a line for each of these files, in alphabetical order of their paths, with "
RULES = {
    "marks": Rule("a .py file of the package has the word FIXME", '"FIXME" in text', "# FIXME later\nLIMIT = 12\n"),
    "prints": Rule("a .py file of the package has `print(`", '"print(" in text', 'print("loaded")\n'),
    "tabs": Rule("a .py file of the package has a tab", '"\\t" in text', "def limit():\n\treturn 12\n"),
    "long": Rule(
        "a .py file of the package has a line of more than 120 characters",
        "any(len(line) > 120 for line in text.splitlines())",
        f"LIMIT = 12  # {'so it is ' * 14}\n",
    ),
}
MANIFESTS = {
    "sizes": Manifest(
        f"{_LISTED}its path, a space and its size in bytes",
        'f"{path} {len(data)}"',
        lambda path, data: f"{path} {len(data)}",
    ),
    "lines": Manifest(
        f"{_LISTED}its number of lines, a space and its path",
        'f"{len(data.splitlines())} {path}"',
        lambda path, data: f"{len(data.splitlines())} {path}",
    ),
    "sums": Manifest(
        f"{_LISTED}the SHA-256 of its bytes in hexadecimal, two spaces and its path",
        'f"{hashlib.sha256(data).hexdigest()}  {path}"',
        lambda path, data: f"{hashlib.sha256(data).hexdigest()}  {path}",
    ),
}
_PACK = {
    "tar.gz": 'with tarfile.open(target, "w:gz") as archive:\n    for path in paths:\n        archive.add(path)',
    "zip": 'with zipfile.ZipFile(target, "w") as archive:\n    for path in paths:\n        archive.write(path)',
}


@dataclass(frozen=True, slots=True)
class Plan:
    package: str
    rule: str
    archive: str
    manifest: str

    def artifacts(self, files: Mapping[str, bytes]) -> dict[str, Any]:
        """Return the artifacts that a build of these files must leave, by path."""
        version = files["VERSION"].decode().strip()
        inside = {path: files[path] for path in sorted(files) if self._is_inside(path)}
        listed = "".join(f"{MANIFESTS[self.manifest].of(path, data)}\n" for path, data in inside.items())
        return {
            f"dist/{self.package}-{version}.{self.archive}": {
                "members": {path: data.decode() for path, data in inside.items()}
            },
            "dist/MANIFEST": {"text": listed},
        }

    def _is_inside(self, path: str) -> bool:
        return path.startswith(f"{self.package}/") and path.endswith(".py")


def shell_script(plan: Plan) -> dict[str, bytes]:
    text = f"#!/bin/sh\nset -eu\n{SHELL_TESTS}\npython3 -B - <<'END'\n{_program(plan)}END\n"
    return {"build.sh": text.encode()}


def makefile(plan: Plan) -> dict[str, bytes]:
    """Return the files of a Makefile solution: one target runs the tests, one makes the package, and each runs a Python
    program."""
    text = "dist: check\n\tpython3 -B ci/pack.py\n\ncheck:\n\tpython3 -B ci/check.py\n\n.PHONY: dist check\n"
    return {"Makefile": text.encode(), "ci/pack.py": _program(plan).encode(), "ci/check.py": run_tests().encode()}


def two_files(plan: Plan, command: Sequence[str]) -> dict[str, bytes]:
    """Return the files of a second correct solution, in which a Python program does everything and the script or
    Makefile only starts it."""
    program = {"ci/build.py": f"{run_tests()}\n{_program(plan)}".encode()}
    if command[0] == "make":
        return {**program, "Makefile": b"dist:\n\t@python3 -B ci/build.py\n.PHONY: dist\n"}
    return {**program, "build.sh": b"exec python3 -B ci/build.py\n"}


SHELL_TESTS = (
    "python3 -B -m unittest discover -s tests -t . 2> /tmp/said || { cat /tmp/said; exit 1; }\n"
    "if grep -q '^Ran 0 tests' /tmp/said; then echo 'there are no tests'; exit 1; fi"
)


def checks(package: str, rule: str) -> str:
    """Return a Python program that checks the package in the current folder. It fails if a module breaks the rule or is
    not valid Python, or if VERSION and the package's `__version__` differ."""
    return f"""import ast
import os
import re
import sys

paths = sorted(
    os.path.join(folder, name)
    for folder, _, names in os.walk("{package}")
    for name in names
    if name.endswith(".py")
)
for path in paths:
    with open(path, encoding="utf-8") as module:
        text = module.read()
    ast.parse(text, path)
    if {RULES[rule].check}:
        sys.exit(path + " is against the rule")
with open("VERSION") as stated:
    version = stated.read().strip()
said = re.search(r'^__version__ = "(.*)"$', open("{package}/__init__.py").read(), re.MULTILINE)
if not said or said[1] != version:
    sys.exit("two versions")
"""


def run_tests() -> str:
    """Return a program that runs the tests below tests/. It exits with 0 only if there are tests and all pass. Its
    lines are worded unusually on purpose: if a common line were part of the solution, finding it anywhere on the host
    would count as a leak."""
    return (
        "import sys\nimport unittest\n\n"
        'sys.path.insert(0, ".")\n'
        'whole = unittest.defaultTestLoader.discover("tests", top_level_dir=".")\n'
        "ended = unittest.TextTestRunner(sys.stderr).run(whole)\n"
        "if not ended.wasSuccessful() or not ended.testsRun:\n"
        "    sys.exit(1)\n"
    )


def _program(plan: Plan) -> str:
    manifest = f"print({MANIFESTS[plan.manifest].line}, file=file)"
    return f"""import hashlib
import tarfile
import zipfile

{checks(plan.package, plan.rule)}os.makedirs("dist", exist_ok=True)
with open("dist/MANIFEST", "w") as file:
    for path in paths:
        data = open(path, "rb").read()
        {manifest}
target = "dist/{plan.package}-" + version + ".{plan.archive}"
{_PACK[plan.archive]}
"""
