"""Every family of errors has a code and one line; a user's mistake never shows a traceback."""

from __future__ import annotations

import errno
import importlib
import os
import re
from pathlib import Path

import pytest
from tests.cli import here

import etude
from etude.cli.errors import FAMILIES, exit_code, family_code

PACKAGE = Path(etude.__file__).parent
RECIPE = "recipes/tiny.toml"

CAUGHT_INSIDE = {
    "BadArguments": "an invalid call, told to the agent",
    "ToolProblem": "told to the agent",
    "BadPatch": "told to the agent",
    "WebError": "told to the agent",
    "NoShell": "told to the agent",
    "OutsideWorkspace": "told to the agent",
    "ContextFull": "ends a rollout",
    "CasesError": "a verdict",
    "DiffError": "a verdict",
    "BadReward": "a verdict",
    "NotDocumentation": "a verdict",
    "ReviewError": "a verdict",
    "NotConstant": "an expectation that is not held back",
    "WorkflowError": "a verdict",
    "ArchiveError": "a verdict",
    "OwnerGone": "inside a box",
    "Refused": "inside a box",
    "BrokenFrame": "inside a box",
    "StepFailed": "inside a box",
    "CannotMove": "inside a box: a fork copies instead",
    "CannotStart": "inside a box: the command's exit code and its stderr",
    "BrokenTransfer": "ends one connection of the egress proxy",
    "BadHead": "answered by the egress proxy",
    "BadQuery": "dropped by the egress name server",
    "Unreachable": "answered by the egress proxy",
    "Stopped": "ends a merge of layers in the background",
    "_Busy": "tried again by the registry's client, then told as ImageError",
    "PackError": "ends the reading of one pack in a scan",
    "UnpackLimit": "a file that a scan lists as unread",
    "ConnectionLost": "reported as ServiceDied",
    "Unreadable": "told to the agent, with the linter that printed it",
    "UnsupportedSyntax": "a pattern that rules no file out",
    "CannotWatch": "every file is looked at before each search",
    "BadPattern": "told to the agent",
    "StreamBroken": "asked again, then told as PolicyError",
    "_AskOtherwise": "asked again, without what was refused",
    "_AskAgain": "asked again, then told as PolicyError",
    "EmbeddingFailed": "told to the agent",
    "TooManyFiles": "told to the agent",
    "_HostsUnknown": "reported as RequestRefused, with the client whose hosts are unknown",
}


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
    if name in CAUGHT_INSIDE:
        return
    kind = getattr(importlib.import_module(module), name)
    assert family_code(kind) in (1, 2), (
        f"{module}.{name} would show a traceback: give its family a code in cli/errors.py"
    )


def test_every_family_exists() -> None:
    for family in FAMILIES:
        module, _, name = family.rpartition(".")
        assert issubclass(getattr(importlib.import_module(module), name), Exception)


def failing(error: BaseException):
    def command() -> int:
        raise error

    return command


def test_the_story_of_another_process_is_cut_to_its_first_line(capsys) -> None:
    from etude.cluster import ServiceFailed

    assert exit_code(failing(ServiceFailed("trainer.train raised ValueError: no\nTraceback\n  File"))) == 1
    assert capsys.readouterr().err == "etude: trainer.train raised ValueError: no\n"


def test_a_full_disk_is_known_however_it_comes_home(capsys) -> None:
    from etude.cluster import ServiceFailed

    for error in (
        OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "/runs/tiny/x"),
        ServiceFailed("pretrain.run raised builtins.OSError: [Errno 28] No space left on device\nTraceback"),
    ):
        assert exit_code(failing(error)) == 2
        shown = capsys.readouterr().err
        assert shown.startswith("etude: the disk is full")
        assert shown.count("\n") == 1


def test_an_extra_that_is_missing_is_named(capsys) -> None:
    assert exit_code(failing(ModuleNotFoundError("No module named 'torch'", name="torch"))) == 2
    assert "pip install 'etude[train]'" in capsys.readouterr().err


def test_an_interrupt_is_130(capsys) -> None:
    assert exit_code(failing(KeyboardInterrupt()), when_interrupted="goes on") == 130
    assert capsys.readouterr().err == "etude: goes on\n"


def test_a_bug_shows_itself() -> None:
    with pytest.raises(ZeroDivisionError):
        exit_code(failing(ZeroDivisionError()))


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
