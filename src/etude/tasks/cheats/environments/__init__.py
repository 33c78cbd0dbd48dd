"""Environments that cheats are tried in: small ones of each kind, and two real packages.

Each is a task directory with a reference and a second honest solution.
"""

from __future__ import annotations

from pathlib import Path

from etude.tasks.cheats.environments.breakable import Known, known_breakable, shown_by_the_base
from etude.tasks.cheats.environments.builds import image_environment, script_environment, workflow_environment
from etude.tasks.cheats.environments.kinds import migration_environment, mutation_environment, review_environment
from etude.tasks.cheats.environments.micro import OTHER, Micro
from etude.tasks.cheats.environments.nodes import node_environments
from etude.tasks.cheats.environments.others import cases_environment, history_environment
from etude.tasks.cheats.environments.pytests import pytest_environments
from etude.tasks.cheats.environments.registry import real_environments
from etude.tasks.cheats.environments.tables import table_environments
from etude.tasks.cheats.environments.unittests import unittest_environments
from etude.tasks.task import Task


def micro_environments() -> list[Micro]:
    builds = [script_environment(), workflow_environment(), image_environment()]
    kinds = [review_environment(), migration_environment(), mutation_environment()]
    others = [cases_environment(), *builds, *kinds, history_environment()]
    tested = [*pytest_environments(), *unittest_environments(), *table_environments(), *node_environments()]
    return [*tested, *others]


def write_environments(folder: Path, cache: Path) -> list[Task]:
    """Write all of them as task directories. `cache` is a folder for pip's downloads."""
    return [micro.write(folder) for micro in micro_environments()] + real_environments(folder, cache)


__all__ = [
    "OTHER",
    "Known",
    "Micro",
    "known_breakable",
    "micro_environments",
    "real_environments",
    "shown_by_the_base",
    "write_environments",
]
