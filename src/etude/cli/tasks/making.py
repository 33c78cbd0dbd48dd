"""etude tasks make: generates tasks from a source; the same arguments make the same tasks."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path

from etude.cli.wording import count
from etude.journal import ProgressLine
from etude.tasks import Split, make_tasks, open_source


def make_command(source: str, dest: Path, counts: Mapping[Split, int], seed: int) -> int:
    opened = open_source(source)
    with ProgressLine("make", sum(counts.values()), unit="tasks") as line:
        tasks = [
            task
            for split, number in counts.items()
            for task in make_tasks(opened, split, number, seed, dest, lambda _: line.update(line.done + 1))
        ]
    print("\n".join(str(task.directory) for task in tasks))
    print(count(len(tasks), "task"), file=sys.stderr)
    return 0
