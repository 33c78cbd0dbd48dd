"""Checks a task's directory without running anything. Reports mistakes, and notes on what may surprise users."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from etude.tasks.directory import REFERENCE_DIFF, list_files, read_task
from etude.tasks.environment.source import source_of
from etude.tasks.harbor import Harbor, harbor_mistakes, parse_harbor, parts_of, unknown_keys
from etude.tasks.task import Split, Task, TaskError
from etude.tasks.verifiers import open_verifier

_FOLDERS = ("environment", "tests", "solution", "steps")


@dataclass(slots=True)
class Checked:
    directory: Path
    task: Task | None = None
    """None if a mistake in the directory kept the task from being read."""
    mistakes: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    """Remarks on what is valid but may surprise a user of the task."""


def check_task(directory: Path) -> Checked:
    """Check one task directory: its TOML, its links, its environment and its verifier."""
    checked = Checked(directory)
    path = directory / "task.toml"
    try:
        config: dict[str, Any] = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        checked.mistakes.append(f"{path}: expected a TOML document: {error}")
        return checked
    checked.mistakes += [f"{path}: {mistake}" for mistake in harbor_mistakes(config)]
    checked.mistakes += _bad_links(directory)
    if checked.mistakes:
        return checked
    try:
        checked.task = task = read_task(directory, set(Split))
    except TaskError as error:
        checked.mistakes.append(str(error))
        return checked
    for look in (source_of, open_verifier):
        try:
            look(task)
        except TaskError as error:
            checked.mistakes.append(str(error))
    checked.notes += _notes(task, parse_harbor(config, path))
    return checked


def _bad_links(directory: Path) -> Iterator[str]:
    for name in _FOLDERS:
        if (directory / name).is_dir():
            try:
                list_files(directory, name)
            except TaskError as error:
                yield str(error)


def _notes(task: Task, harbor: Harbor) -> Iterator[str]:
    scripts = [part.folder(task.directory) / "solution/solve.sh" for part in parts_of(harbor)]
    if not (task.directory / REFERENCE_DIFF).is_file() and not all(script.is_file() for script in scripts):
        yield "no reference solution: it cannot be gated"
    for key in unknown_keys(harbor):
        yield f"{key} is not a key of Harbor's: it is kept, but has no effect here"
    phases = {"environment": harbor.environment, "agent": harbor.agent, "verifier": harbor.verifier}
    wanting = [name for name, phase in phases.items() if phase.network_mode in ("public", "allowlist")]
    if wanting:
        yield f"{', '.join(wanting)}: asks for the network, but neither the agent nor the tests have any"
    if harbor.environment.skills_dir:
        yield "environment.skills_dir is kept, but not used"
    for part in parts_of(harbor):
        if part.verifier.separate and not (part.artifacts or part.verifier.collect):
            yield "a separate verifier needs artifacts: without any, its tests see nothing that the agent did"
        if part.name and (part.folder(task.directory) / "workdir").is_dir():
            yield f"steps/{part.name}/workdir: these files are given only to the reference solution, not to the agent"
