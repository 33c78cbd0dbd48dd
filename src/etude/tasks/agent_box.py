"""An agent's box: what the run gives every box, and what the task asks for."""

from __future__ import annotations

from dataclasses import replace

from etude.sandbox.contract import Limits
from etude.tasks.harbor import parse_harbor
from etude.tasks.task import Task
from etude.tasks.verifiers.harbor.box_setup import variables


def agent_box(task: Task, usual: Limits) -> tuple[Limits, tuple[tuple[str, str], ...]]:
    """Return the box's limits and environment variables. A task can raise the run's `usual` limits, but not lower them.
    Raises TaskError for a variable that has no value."""
    path = task.directory / "task.toml"
    declared = parse_harbor(task.config, path).environment
    limits = replace(
        usual,
        memory_mb=max(usual.memory_mb, declared.memory_mb or 0),
        disk_mb=max(usual.disk_mb, declared.storage_mb or 0),
    )
    return limits, tuple(variables(path, declared.env).items())
