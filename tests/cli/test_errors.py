"""Every family of errors has a code and one line; a user's mistake never shows a traceback."""

from __future__ import annotations

import errno
import importlib
import re
from pathlib import Path

import pytest
from tests.cli import here

import etude
from etude.cli.errors import FAMILIES, exit_code, family_code
from etude.cluster import ServiceFailed

PACKAGE = Path(etude.__file__).parent
RECIPE = "recipes/tiny.toml"

CAUGHT_INSIDE = {
    "told to the agent": (
        "BadArguments ToolProblem BadPatch WebError NoShell OutsideWorkspace BadPattern EmbeddingFailed TooManyFiles"
    ),
    "ends a rollout": "ContextFull",
    "ends an answer": "ClientGone",
    "ends a worker of vLLM, whose process is replaced": "UpdateBroken",
    "a verdict": "CasesError DiffError BadReward NotDocumentation ReviewError WorkflowError ArchiveError LogTooLong",
    "an expectation that is not held back": "NotConstant",
    "inside a box": "OwnerGone Refused BrokenFrame StepFailed",
    "inside a box, told as BoxBusy": "Changed",
    "inside a box: an expression without an answer": "TooLong",
    "an attack that a mode cannot try": "NotTried",
    "inside a box: a fork copies instead": "CannotMove",
    "inside a box: the command's exit code and its stderr": "CannotStart",
    "ends one connection of the egress proxy": "BrokenTransfer",
    "answered by the egress proxy": "BadHead Unreachable",
    "dropped by the egress name server": "BadQuery",
    "ends a merge of layers in the background": "Stopped",
    "tried again by the registry's client, then told as ImageError": "_Busy",
    "ends the reading of one pack in a scan": "PackError",
    "a file that a scan lists as unread": "UnpackLimit",
    "reported as ServiceDied": "ConnectionLost",
    "told to the agent, with the linter that printed it": "Unreadable",
    "a pattern that rules no file out": "UnsupportedSyntax",
    "every file is looked at before each search": "CannotWatch",
    "asked again, then told as PolicyError": "StreamBroken _AskAgain",
    "asked again, without what was refused": "_AskOtherwise",
    "reported as RequestRefused, with the client whose hosts are unknown": "_HostsUnknown",
}
"""Names of errors that never reach a user, by what becomes of them."""


def error_classes() -> list[tuple[str, str]]:
    """By a pattern, since parsing every file would cost each worker two seconds."""
    found = []
    for file in PACKAGE.rglob("*.py"):
        module = ".".join(("etude", *file.relative_to(PACKAGE).with_suffix("").parts))
        for name, bases in re.findall(r"^\s*class (\w+)\(([^)]*)\):", file.read_text(encoding="utf-8"), re.MULTILINE):
            if any(base.strip().endswith(("Error", "Exception")) for base in bases.split(",")):
                found.append((module, name))
    return sorted(found)


@pytest.mark.parametrize(("module", "name"), error_classes(), ids=lambda part: part.rpartition(".")[2])
def test_every_error_of_the_house_has_a_code_or_stays_inside(module, name) -> None:
    if name in " ".join(CAUGHT_INSIDE.values()).split():
        return
    kind = getattr(importlib.import_module(module), name)
    assert family_code(kind) in (1, 2), (
        f"{module}.{name} would show a traceback: give its family a code in cli/errors.py"
    )


def test_every_family_exists() -> None:
    for family in FAMILIES:
        module, _, name = family.rpartition(".")
        assert issubclass(getattr(importlib.import_module(module), name), Exception)


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        (
            ServiceFailed("trainer.train raised ValueError: no\nTraceback\n  File"),
            1,
            "trainer.train raised ValueError: no",
        ),
        (OSError(errno.ENOSPC, "full", "/runs/tiny/x"), 2, "the disk is full: cannot write /runs/tiny/x; free some"),
        (ServiceFailed("builtins.OSError: [Errno 28] No space left on device\nTraceback"), 2, "the disk is full; free"),
        (ModuleNotFoundError("No module named 'torch'", name="torch"), 2, "pip install 'etude[train]'"),
        (KeyboardInterrupt(), 130, "goes on"),
    ],
)
def test_an_error_is_one_line_and_a_code(error, code, said, capsys) -> None:
    def command() -> int:
        raise error

    assert exit_code(command, when_interrupted="goes on") == code
    shown = capsys.readouterr().err
    assert shown.startswith("etude: ")
    assert shown.count("\n") == 1
    assert said in shown


def test_a_bug_shows_itself() -> None:
    with pytest.raises(ZeroDivisionError):
        exit_code(lambda: 1 // 0)


def etude_says(*args: str) -> tuple[int, str]:
    """Code and the one line."""
    done = here.etude(*args)
    assert "Traceback" not in done.stderr, done.stderr
    assert done.stderr.count("\n") == 1, done.stderr
    return done.returncode, done.stderr


def test_mistakes_before_anything_runs(tmp_path) -> None:
    said = "etude: cannot read recipe nowhere.toml: No such file or directory\n"
    assert etude_says("run", "nowhere.toml") == (2, said)
    code, line = etude_says("run", RECIPE, "precision.experts=nvfp4", "--runs", str(tmp_path))
    assert code == 2
    assert 'precision.experts = "nvfp4": no implementation multiplies this format' in line
    file = tmp_path / "file"
    file.touch()
    code, line = etude_says("run", RECIPE, "--runs", str(file))
    assert code == 2
    assert f"cannot write the run folder {file}" in line
    assert "--runs" in line


def test_chat_and_report_on_what_is_no_run(tmp_path) -> None:
    assert etude_says("chat", str(tmp_path))[0] == 2
    code, line = etude_says("report", str(tmp_path))
    assert code == 2
    assert "is not a run folder" in line
