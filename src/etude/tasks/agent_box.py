"""Combines the run's settings for all boxes with what one task asks for."""

from __future__ import annotations

from dataclasses import replace

from etude.sandbox.contract import Limits
from etude.tasks.harbor import parse_harbor
from etude.tasks.task import Task
from etude.tasks.verifiers.harbor.box_setup import variables


def agent_box(task: Task, usual: Limits) -> tuple[Limits, tuple[tuple[str, str], ...]]:
    """Return the limits and environment variables of an agent's box. A task can raise the memory and disk limits of
    `usual`, the run's own. Raises TaskError for a variable that has no value."""
    path = task.directory / "task.toml"
    declared = parse_harbor(task.config, path).environment
    limits = replace(
        usual,
        memory_mb=max(usual.memory_mb, declared.memory_mb or 0),
        disk_mb=max(usual.disk_mb, declared.storage_mb or 0),
    )
    return limits, tuple(variables(path, declared.env).items())
