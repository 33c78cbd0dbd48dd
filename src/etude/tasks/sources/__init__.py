"""Task sources: generators of tasks, registered by name. Each has its own folder."""

from etude.tasks.sources.registry import (
    TaskSource,
    UnknownSource,
    generate_tasks,
    make_tasks,
    open_source,
    register_source,
    source_names,
)

__all__ = [
    "TaskSource",
    "UnknownSource",
    "generate_tasks",
    "make_tasks",
    "open_source",
    "register_source",
    "source_names",
]
