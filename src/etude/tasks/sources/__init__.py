"""Task sources: generators of tasks, registered by name. The sources of the categories are in `tasks/categories`."""

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
