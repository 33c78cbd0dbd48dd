"""Static checks: what is sound is silent, and every mistake is told."""

from __future__ import annotations

from pathlib import Path

import pytest

from etude.tasks.check import check_task

from .formats.harbor_tasks import VERSIONS, greeting, two_steps


@pytest.mark.parametrize("version", VERSIONS)
def test_foreign_tasks_are_sound(tmp_path: Path, version: str) -> None:
    checked = check_task(greeting(tmp_path, VERSIONS[version]).directory)
    assert (checked.mistakes, checked.notes) == ([], [])
    assert checked.task is not None


def test_mistakes_of_every_kind_are_told_together(tmp_path: Path) -> None:
    task = greeting(tmp_path, VERSIONS["1.0"] + "gpus = 1\n")
    (tmp_path / "environment/docker-compose.yaml").touch()
    mistakes = check_task(task.directory).mistakes
    assert len(mistakes) == 2
    assert "docker-compose.yaml: environments of several containers are not run" in mistakes[0]
    assert "environment.gpus: expected none" in mistakes[1]


@pytest.mark.parametrize("text", ["[", "\udcff", ""])
def test_what_is_no_document_is_one_mistake(tmp_path: Path, text: str) -> None:
    if text:
        (tmp_path / "task.toml").write_text(text, errors="surrogateescape")
    checked = check_task(tmp_path)
    assert checked.task is None
    assert len(checked.mistakes) == 1
    assert "task.toml: expected a TOML document" in checked.mistakes[0]


def test_what_a_reader_should_know_is_noted(tmp_path: Path) -> None:
    two_steps(tmp_path)
    (tmp_path / "steps/extend/workdir").mkdir()
    (tmp_path / "steps/extend/solution/solve.sh").unlink()
    (tmp_path / "task.toml").write_text((tmp_path / "task.toml").read_text() + 'network_mode = "public"\n')
    notes = check_task(tmp_path).notes
    assert notes[0] == "no reference solution: it cannot be gated"
    assert any("steps/extend/workdir" in note for note in notes)


def test_a_separate_verifier_that_gets_nothing_is_noted(tmp_path: Path) -> None:
    separate = '[verifier]\nenvironment_mode = "separate"\n'
    (note,) = check_task(greeting(tmp_path / "none", separate).directory).notes
    assert "its tests see nothing that the agent did" in note
    assert check_task(greeting(tmp_path / "some", 'artifacts = ["a.txt"]\n' + separate).directory).notes == []
