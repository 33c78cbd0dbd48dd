"""A small repository with a bug, its fix and the fix's tests, each a commit; and rows of every variant about it."""

from __future__ import annotations

import json
import os
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

WRONG = '''"""Sums of money, in cents."""


def parse(text):
    euros, _, cents = text.partition(".")
    return int(euros) * 100 + int(cents or 0)


def show(cents):
    return f"{cents // 100}.{cents % 100:02d}"
'''
RIGHT = WRONG.replace("int(cents or 0)", 'int((cents + "00")[:2])')
BROKEN = WRONG.replace("* 100", "* 10")
OLD_TESTS = """import unittest

from ledger import money


class ShowTest(unittest.TestCase):
    def test_show(self):
        self.assertEqual(money.show(1205), "12.05")
"""
UNITTEST = (
    OLD_TESTS
    + """

class ParseTest(unittest.TestCase):
    def test_parse_tenths(self):
        self.assertEqual(money.parse("3.5"), 350)

    def test_parse_whole(self):
        self.assertEqual(money.parse("3"), 300)
"""
)
PYTEST = """import pytest

from ledger import money

NAMES = ["a", "with blank", "with b"]


@pytest.mark.parametrize("text, cents", [("3.5", 350), ("12.5 ", 1250), ("0.4 ", 40)], ids=NAMES)
def test_parse(text, cents):
    assert money.parse(text.strip()) == cents


def test_parse_whole():
    assert money.parse("3") == 300


@pytest.mark.skip(reason="later")
def test_parse_nothing():
    assert money.parse("") == 0


@pytest.mark.xfail(reason="not yet")
def test_parse_negative():
    assert money.parse("-1.50") == -150
"""


@dataclass(frozen=True)
class Repository:
    folder: Path
    base: str
    patch: str
    test_patch: str

    def files(self) -> dict[str, str]:
        names = self.git("ls-tree", "-r", "--name-only", self.base).split()
        return {name: self.git("show", f"{self.base}:{name}") for name in names}

    def git(self, *words: str) -> str:
        return git(self.folder, *words)


def git(folder: Path, *words: str) -> str:
    who = {f"GIT_{role}_{what}": "a@b.example" for role in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}
    fixed = {"GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_NOSYSTEM": "1", "GIT_AUTHOR_DATE": "2024-01-01T00:00:00Z"}
    done = subprocess.run(
        ["git", "-C", str(folder), *words], capture_output=True, text=True, env=os.environ | who | fixed, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def commit(folder: Path, files: dict[str, str | None], message: str) -> str:
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text) if text is not None else path.unlink()
    git(folder, "add", "-A")
    git(folder, "commit", "-q", "-m", message)
    return git(folder, "rev-parse", "HEAD").strip()


def make_repository(folder: Path, tests: str = PYTEST) -> Repository:
    folder.mkdir(parents=True)
    git(folder, "init", "-q", "-b", "main")
    start = {"ledger/__init__.py": "", "ledger/money.py": WRONG, "tests/__init__.py": "", "README.md": "Ledger\n"}
    base = commit(folder, {**start, "tests/test_money.py": OLD_TESTS}, "start")
    fix = commit(folder, {"ledger/money.py": RIGHT}, "cents have two places")
    new = "tests/test_money.py" if tests is UNITTEST else "tests/test_parse.py"
    last = commit(folder, {new: tests}, "tests of it")
    return Repository(folder, base, git(folder, "diff", base, fix), git(folder, "diff", fix, last))


PYTEST_IDS = {
    # The blank cut the second id off, as a reader of logs does; it stands for two cases.
    "FAIL_TO_PASS": ["tests/test_parse.py::test_parse[a]", "tests/test_parse.py::test_parse[with"],
    "PASS_TO_PASS": [
        "tests/test_parse.py::test_parse_whole",
        "tests/test_parse.py::test_parse_nothing",
        "tests/test_parse.py::test_parse_negative",
        "tests/test_money.py::ShowTest::test_show",
        "[100%]",
    ],
}
UNITTEST_IDS = {
    "FAIL_TO_PASS": ["test_parse_tenths (tests.test_money.ParseTest)"],
    "PASS_TO_PASS": [
        "test_parse_whole (tests.test_money.ParseTest.test_parse_whole)",
        "tests.test_money.ShowTest.test_show",
    ],
}


def classic(repository: Repository, identity: str = "acme__ledger-7", **more: Any) -> dict[str, Any]:
    """As the data sets have them: the lists are texts."""
    row = {
        "repo": "acme/ledger",
        "instance_id": identity,
        "base_commit": repository.base,
        "patch": repository.patch,
        "test_patch": repository.test_patch,
        "problem_statement": "parse('3.5') gives 305, expected 350",
        "hints_text": "use the first two digits",
        "created_at": "2024-01-01T00:00:00Z",
        "version": "1.0",
        "environment_setup_commit": repository.base,
        **{name: json.dumps(ids) for name, ids in PYTEST_IDS.items()},
    }
    return {**row, **more}


def rebench(repository: Repository, **more: Any) -> dict[str, Any]:
    install = {
        "test_cmd": "pytest -rA",
        "log_parser": "parse_log_pytest",
        "python": "3.9",
        "packages": "requirements.txt",
    }
    return classic(
        repository,
        install_config=install,
        requirements="attrs==23.1.0\n",
        docker_image="registry.example/rebench/sweb.eval.x86_64.acme_1776_ledger-7",
        **PYTEST_IDS,
        **more,
    )


def rebench_v2(repository: Repository, **more: Any) -> dict[str, Any]:
    install = {"test_cmd": ["pytest -rA"], "log_parser": "parse_log_pytest", "docker_specs": {"python": "3.11"}}
    more = {
        "language": "python",
        "interface": "parse(text) -> int",
        "image_name": "registry.example/v2/ledger:7",
        **more,
    }
    return classic(repository, install_config=install, **PYTEST_IDS, **more)


def pro(repository: Repository, **more: Any) -> dict[str, Any]:
    row = classic(
        repository,
        "instance_acme__ledger-" + "ab" * 20,
        requirements="- `parse` reads tenths",
        interface="No new interfaces are introduced",
        repo_language="python",
        before_repo_set_cmd=f"git reset --hard {repository.base}\ngit clean -fd",
        selected_test_files_to_run="['tests/test_parse.py']",
        dockerhub_tag="acme.ledger-7",
    )
    for name in PYTEST_IDS:
        row[name.lower()] = repr(PYTEST_IDS[name])  # As Python shows a list.
        del row[name]
    return {**row, **more}


def smith(repository: Repository, bug: str) -> dict[str, Any]:
    """The patch makes the bug, on the sound code."""
    return {
        "instance_id": "acme__ledger.1234567.func_pm_op__ab12",
        "repo": f"swesmith/acme__ledger.{repository.base[:8]}",
        "patch": bug,
        "image_name": "registry.example/smith.x86_64.acme_1776_ledger",
        "problem_statement": "parse('12.05') gives 125",
        "FAIL_TO_PASS": ["tests/test_money.py::ShowTest::test_parse"],
        "PASS_TO_PASS": ["tests/test_money.py::ShowTest::test_show"],
        "created_at": "2024-01-01",
    }


def make_smith_repository(folder: Path) -> tuple[Repository, str]:
    """Sound code with tests, and the patch that makes the bug."""
    folder.mkdir(parents=True)
    git(folder, "init", "-q", "-b", "main")
    tests = OLD_TESTS + "\n    def test_parse(self):\n        self.assertEqual(money.parse('12.05'), 1205)\n"
    start = {"ledger/__init__.py": "", "ledger/money.py": WRONG, "tests/__init__.py": "", "tests/test_money.py": tests}
    base = commit(folder, dict(start), "start")
    broken = commit(folder, {"ledger/money.py": BROKEN}, "a bug")
    git(folder, "reset", "-q", "--hard", base)
    return Repository(folder, base, "", ""), git(folder, "diff", base, broken)


def write_rows(path: Path, *rows: dict[str, Any]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def write_task_repository(folder: Path, row: dict[str, Any], dockerfile: str = "FROM base.example/python\n") -> Path:
    """As version 5 keeps an instance: a folder with a file for each long column."""
    task = folder / "tasks" / row["instance_id"]
    (task / "test_assets" / "tests").mkdir(parents=True)
    (folder / "sweb.yaml").write_text("datasets:\n- acme/bench\nsplits:\n- test\n")
    lines = {key: row[key] for key in ("instance_id", "repo", "base_commit", "version")}
    lines |= {"split": "test", "image": "registry.example/swebench/x:latest", "eval_type": "pass_and_fail"}
    lines |= {"log_parser": "parse_log_pytest"}
    (task / "task.yaml").write_text("".join(f"{key}: {value}\n" for key, value in lines.items()))
    (task / "tests.json").write_text(json.dumps(PYTEST_IDS))
    (task / "problem_statement.md").write_text(row["problem_statement"])
    (task / "hints.md").write_text(row["hints_text"])
    (task / "gold.patch").write_text(row["patch"])
    (task / "test.patch").write_text(row["test_patch"])
    (task / "eval.sh").write_text("#!/bin/bash\n: '>>>>> Start Test Output'\npytest\n: '>>>>> End Test Output'\n")
    (task / "Dockerfile").write_text(dockerfile)
    (task / "test_assets" / "tests" / "expected.bin").write_bytes(b"\x00\x01")
    return folder
