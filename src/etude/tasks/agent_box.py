"""What a task asks for its agent's box: variables, memory and disk, on top of what a run gives to every box."""

from __future__ import annotations

from dataclasses import replace

from etude.sandbox.contract import Limits
from etude.tasks.formats.harbor import parse_harbor
from etude.tasks.task import Task
from etude.tasks.verifiers.harbor.places import variables


def agent_box(task: Task, usual: Limits) -> tuple[Limits, tuple[tuple[str, str], ...]]:
    """Limits, never below the usual ones, and variables; TaskError for a variable that nobody gave."""
    path = task.directory / "task.toml"
    said = parse_harbor(task.config, path).environment
    limits = replace(
        usual,
        memory_mb=max(usual.memory_mb, said.memory_mb or 0),
        disk_mb=max(usual.disk_mb, said.storage_mb or 0),
    )
    return limits, tuple(variables(path, said.env).items())
