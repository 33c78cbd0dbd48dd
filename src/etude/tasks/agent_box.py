"""What a task asks for its agent's box (environment variables, memory and disk), added to what a run gives
every box."""

from __future__ import annotations

from dataclasses import replace

from etude.sandbox.contract import Limits
from etude.tasks.harbor import parse_harbor
from etude.tasks.task import Task
from etude.tasks.verifiers.harbor.places import variables


def agent_box(task: Task, usual: Limits) -> tuple[Limits, tuple[tuple[str, str], ...]]:
    """The limits, never below the run's usual ones, and the environment variables of the agent's box. Raises TaskError
    for a variable that has no value."""
    path = task.directory / "task.toml"
    said = parse_harbor(task.config, path).environment
    limits = replace(
        usual,
        memory_mb=max(usual.memory_mb, said.memory_mb or 0),
        disk_mb=max(usual.disk_mb, said.storage_mb or 0),
    )
    return limits, tuple(variables(path, said.env).items())
