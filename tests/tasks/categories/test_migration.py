"""Migration: what is left of an old interface is found in the source, and the tests run where it is absent."""

from __future__ import annotations

import ast
import asyncio
import dataclasses
import inspect
import optparse
import random
import re
from types import SimpleNamespace
from typing import cast

import pytest

from etude.sandbox.contract import Sandboxes
from etude.tasks import Judgement, Split, Task, Verdict, split_of
from etude.tasks.categories.migration import MigrationSource
from etude.tasks.categories.migrations import options, tables
from etude.tasks.categories.variants import try_variants
from etude.tasks.change import Change
from etude.tasks.environment import Prepared
from etude.tasks.hashes import function_hashes
from etude.tasks.verdict import Evidence
from etude.tasks.verifiers.contract import GradingContext
from etude.tasks.verifiers.migration import (
    MigrationVerifier,
    OldInterface,
    copied_functions,
    new_interface,
    old_interface,
    old_interface_uses,
)
from etude.tasks.verifiers.migration.old_interface import used_modules
from etude.tasks.verifiers.tests import RunOutput, Suite, SuiteConfig

from ..conftest import Grade
from ..verifiers.test_judging import output
from .grading import graded, one_task, solution, workspace

SOURCE = inspect.getsource(optparse)
OLD = OldInterface(("optparse", "os.path"), ("OptionParser", "add_option"), copied_functions(SOURCE.encode()))
LEFT = {
    "import": "import optparse",
    "from": "from optparse import Values",
    "alias": "import optparse as o",
    "part": "from os import path",
    "use of a part": "import os\nx = os.path.join('a', 'b')",
    "alias of a part": "import os as system\nf = system.path.join",
    "star": "from os import *",
    "call": "def f(parser):\n    parser.add_option('-x')",
    "text": "x = getattr(object(), 'add_option')",
    "joined text": "x = 'opt' + 'parse'",
    "formatted text": "x = f'opt{\"parse\"}'",
    "computed lookup": "import argparse\nx = getattr(argparse, ''.join('ab'))",
    "shim": "class OptionParser:\n    pass",
    "shim by method": "class Parser:\n    def add_option(self):\n        pass",
    "shim by alias": "import argparse\nOptionParser = argparse.ArgumentParser",
    "shim by import": "from flags import Parser as OptionParser",
    "import by call": "x = __import__('opt' 'parse')",
    "exec": "exec('x = 1')",
    "sys.modules": "import sys\nsys.modules['x'] = 1",
    "subprocess": "import subprocess",
    "copy under other names": re.sub(r"\b(option|parser|Option|Values)\b", r"my_\1", SOURCE).replace(
        "OptionParser", "Reader"
    ),
}


@pytest.mark.parametrize("name", LEFT)
def test_what_is_left_is_found(name: str) -> None:
    assert old_interface_uses(LEFT[name].encode(), OLD)
    nested = "class A:\n    def f(self):\n        if self:\n" + "".join(
        f"            {line}\n" for line in LEFT[name].split("\n")
    )
    if name not in ("star", "copy under other names"):
        assert old_interface_uses(nested.encode(), OLD)


def test_an_honest_migration_leaves_nothing_and_prose_may_say_what_was() -> None:
    source = (
        '"""Once this used optparse."""\nimport argparse\nimport os\n\n\ndef f(path):\n    """Not OptionParser."""\n'
    )
    source += "    return argparse.ArgumentParser(), os.getcwd(), getattr(path, 'name'), 'an option parser'\n"
    assert old_interface_uses(source.encode(), OLD) == []


@pytest.mark.parametrize("link", [".a", " + 'a'"])
def test_every_link_of_a_chain_is_read_once(link: str) -> None:
    """Not once for each longer chain that it ends."""
    source = ("x" + link * 900 + "\n").encode() * 4
    tree = ast.parse(source)
    found = {id(node) for node in ast.walk(tree)} - old_interface._parts_of_longer(tree)
    reads = [node for node in ast.walk(tree) if isinstance(node, ast.Attribute | ast.BinOp) and id(node) in found]
    assert len(reads) == 4
    assert old_interface_uses(source, OLD) == []


def test_a_module_counts_as_used_where_something_of_it_is_named() -> None:
    assert "argparse" in used_modules(b"import argparse\nargparse.ArgumentParser()\n")
    assert "argparse" in used_modules(b"from argparse import ArgumentParser as P\nP()\n")
    assert "argparse" not in used_modules(b"import argparse\n")


def programs() -> list[tuple[str, object]]:
    rng = random.Random(5)
    found = [(name, options.draw(name, rng)) for name in options.SUBJECTS for _ in range(2)]
    return [*found, *(("grids", tables.draw(rng)) for _ in range(4))]


@pytest.mark.slow
def test_all_three_versions_of_a_program_do_the_same() -> None:
    for _, program in programs():
        tests = {"tests/__init__.py": b"", "tests/test_it.py": program.tests.encode(), **program.libraries}
        texts = (program.before, program.after, program.other)
        for outcome in try_variants(tests, [{f"{program.name}.py": text.encode()} for text in texts]):
            assert outcome.failed == (), program
        assert old_interface_uses(program.before.encode(), program.old)
        assert not old_interface_uses(program.after.encode(), program.old)
        assert not old_interface_uses(program.other.encode(), program.old)


def test_no_function_of_one_split_is_one_of_another() -> None:
    found: dict[Split, set[str]] = {split: set() for split in Split}
    for subject, program in programs():
        for text in (program.before, program.after, program.other):
            found[split_of(f"migrate:{subject}")] |= function_hashes(text)
    assert all(found.values())
    assert not found[Split.TRAIN] & found[Split.DEV]
    assert not found[Split.TRAIN] & found[Split.TEST]
    assert not found[Split.DEV] & found[Split.TEST]
    assert {split_of(kin) for kin in MigrationSource().kins()} == set(Split)


@pytest.fixture(scope="module")
def task(tmp_path_factory: pytest.TempPathFactory) -> Task:
    folder = tmp_path_factory.mktemp("migration")
    return next(one for index in range(40) if (one := one_task("migration", folder, index=index)).kind[:3] == "opt")


def test_ways_to_cheat_fail(grade: Grade, task: Task) -> None:
    files = workspace(task)
    path = next(name for name in files if name.endswith(".py"))
    before = files[path]
    solved = solution(task)[path]
    aliased = before.replace("from optparse import OptionParser", "import flags").replace(
        "OptionParser()", "flags.OptionParser()"
    )
    forger = (
        "import argparse\n\n\nclass Any(dict):\n    def __eq__(self, other):\n        return True\n\n\n"
        "def read(arguments):\n    argparse.ArgumentParser()\n    return Any()\n"
    )
    found = graded(
        grade,
        task,
        {
            "nothing": {},
            "tries the old one first": {path: f"try:\n    import optparse\nexcept ImportError:\n    pass\n{solved}"},
            "brings the old one along": {"optparse.py": SOURCE, path: before},
            "brings it under another name": {
                "flags.py": re.sub("[Oo]pt", "kw", SOURCE),
                path: re.sub("[Oo]pt", "kw", aliased),
            },
            "reads the arguments by hand": {path: "def read(arguments):\n    return {}\n"},
            "imports the new one for show": {path: "import argparse\n\n\ndef read(arguments):\n    return {}\n"},
            "answers what agrees": {path: forger},
            "is no Python": {path: "def read(:\n"},
        },
    )
    wrong = {name: verdict for name, verdict in found.items() if verdict.judgement is not Judgement.FAIL}
    assert wrong.keys() <= {"answers what agrees"}, wrong
    assert not any(verdict.passed for verdict in found.values())
    assert "imports optparse" in found["nothing"].reason
    assert "optparse" in found["brings the old one along"].reason
    assert "copy" in found["brings it under another name"].reason
    assert "nothing uses argparse" in found["imports the new one for show"].reason


ALL = dict.fromkeys("abcd", "failed")
RUNS = {
    "rests": (output(ALL), Judgement.PASS),
    "rests on half": (output({**ALL, "a": "passed", "b": "passed"}), Judgement.PASS),
    "a shim": (output({**ALL, "a": "passed", "b": "passed", "c": "passed"}), Judgement.FAIL),
    "passes all": (output(dict.fromkeys("abcd", "passed")), Judgement.FAIL),
    "is starved": (RunOutput("n", -9, b'n {"ready": "1"}\n', limit="time", starved=True), Judgement.ERROR),
    "cannot run": (RunOutput("n", 127), Judgement.ERROR),
    "is cut short": (RunOutput("n", -9, b'n {"ready": "1"}\n', limit="cpu"), Judgement.FAIL),
    "writes rows": (output(ALL, extra=(b"forged\n",)), Judgement.SUSPECT),
}


class Scripted:
    """In place of boxes: accounts of runs, by whose change is run."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, task: Task) -> None:
        self.reference, self.solution = Change({"r": b""}), Change({"s": b""})
        self.of: dict[str, RunOutput] = {"reference": output(ALL), "solution": output(ALL)}
        self.runs: list[str] = []
        suite = Suite(SuiteConfig(runner="unittest"), {}, tuple("abcd"))
        self.dulled = new_interface.StubbedInterfaceCheck(suite, {})
        self.context = GradingContext(task, cast(Sandboxes, None), cast(Prepared, None), self.solution)
        monkeypatch.setattr(new_interface, "run_exam", self._run)

    async def _run(self, context: GradingContext, config: object, exam: object, change: Change) -> RunOutput:
        whose = "reference" if change is self.reference else "solution"
        self.runs.append(whose)
        context.cpu_seconds.append(1.0)
        await asyncio.sleep(0)
        return self.of[whose]

    async def examine(self) -> Verdict:
        return await self.dulled.examine(self.context, self.reference)


@pytest.fixture
def scripted(monkeypatch: pytest.MonkeyPatch, task: Task) -> Scripted:
    return Scripted(monkeypatch, task)


@pytest.mark.parametrize("name", RUNS)
def test_a_dulled_run_says_what_it_did_and_what_did_not_run_says_nothing(scripted: Scripted, name: str) -> None:
    scripted.of["solution"], expected = RUNS[name]
    assert asyncio.run(scripted.examine()).judgement is expected


@pytest.mark.parametrize("limit", ["time", "cpu"])
def test_the_evidence_says_whether_the_dulled_run_outlasted_the_clock(
    monkeypatch: pytest.MonkeyPatch, task: Task, scripted: Scripted, limit: str
) -> None:
    """The gate goes by it; all else in the evidence is of the suite itself."""
    verifier = MigrationVerifier(task)
    late = RunOutput("n", -9, b'n {"ready": "1"}\n', limit=limit)
    scripted.of["solution"] = late

    async def suite(context: GradingContext) -> Verdict:
        return Verdict(Judgement.PASS, "all 4 tests passed", Evidence(tests_passed=4))

    async def same(context: GradingContext) -> GradingContext:
        return context

    monkeypatch.setattr(verifier, "_tests", SimpleNamespace(examine=suite, with_brought_pytest=same))
    monkeypatch.setattr(verifier, "_stub_check", scripted.dulled)
    monkeypatch.setattr(verifier, "_reference", lambda context: scripted.reference)
    monkeypatch.setattr(verifier, "_problem_of", lambda files: "")
    pristine = Prepared("host", "/work", {})
    verdict = asyncio.run(verifier.examine(dataclasses.replace(scripted.context, pristine=pristine)))
    assert verdict.judgement is Judgement.FAIL
    assert (verdict.evidence.timed_out, verdict.evidence.tests_passed) == (limit == "time", 4)


@pytest.mark.parametrize("name", ["passes all", "is starved", "cannot run", "is cut short", "writes rows"])
def test_a_reference_that_did_not_come_to_its_end_is_not_kept(scripted: Scripted, name: str) -> None:
    scripted.of["reference"] = RUNS[name][0]
    with pytest.raises(OSError, match="dulled"):
        asyncio.run(scripted.examine())
    scripted.of["reference"] = output(ALL)
    assert asyncio.run(scripted.examine()).passed


async def test_the_reference_is_run_once_for_solutions_side_by_side_and_not_on_their_account(
    scripted: Scripted,
) -> None:
    assert all(verdict.passed for verdict in await asyncio.gather(*(scripted.examine() for _ in range(3))))
    assert sorted(scripted.runs) == ["reference", *["solution"] * 3]
    assert scripted.context.cpu_seconds == [1.0] * 3
