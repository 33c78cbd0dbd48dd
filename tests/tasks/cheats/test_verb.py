"""etude tasks cheat."""

from __future__ import annotations

from pathlib import Path

import pytest

from etude.cli.tasks.cheating import cheat_command
from etude.tasks import TaskError
from etude.tasks.cheats import CHEATS

from .environments import known_breakable
from .playing import written


def test_without_a_task_the_cheats_are_listed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cheat_command([], [], "", tmp_path) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == list(CHEATS)


def test_a_sound_task_lets_none_through(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    written(tmp_path / "tasks", "unittest-spans")
    assert cheat_command([tmp_path / "tasks"], ["git-history", "forges-everything"], "", tmp_path / "boxes") == 0
    assert capsys.readouterr().out == "2 attempts on 1 task, none succeeded\n"


@pytest.mark.slow
def test_who_succeeds_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    known = known_breakable()[0]
    known.micro.write(tmp_path / "tasks")
    assert cheat_command([tmp_path / "tasks"], [known.cheat], "", tmp_path / "boxes") == 1
    out = capsys.readouterr().out
    assert out.startswith(f"pass  {known.micro.name}: {known.cheat}: ")
    assert out.endswith("1 attempt on 1 task, 1 succeeded\n")


def test_an_unknown_cheat_is_a_mistake(tmp_path: Path) -> None:
    written(tmp_path / "tasks", "unittest-spans")
    with pytest.raises(TaskError, match="git-histroy"):
        cheat_command([tmp_path / "tasks"], ["git-histroy"], "", tmp_path / "boxes")
