"""Task sources: whatever makes tasks, registered by name; one folder per source."""

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
