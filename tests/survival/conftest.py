"""Fixtures of the survival tests: prepared runs that all pytest workers of a session share. Each is made once, while
the other workers wait for it.

To keep the prepared runs between sessions, set ETUDE_SURVIVAL_KEEP to a folder. Empty it when a stage before RL has
changed."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from tests.shared import made_once, shared_folder
from tests.survival.runner import Run, prepared, rl_run


@pytest.fixture(scope="session")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = Path(os.environ.get("ETUDE_SURVIVAL_KEEP") or shared_folder(tmp_path_factory) / "survival")
    folder.mkdir(exist_ok=True)
    return folder


@pytest.fixture(scope="session")
def base(shared: Path) -> Path:
    """A run folder whose stages up to SFT are done; each test works on a copy."""
    return made_once(shared / "base", prepared)


@pytest.fixture(scope="session")
def undisturbed(base: Path, shared: Path) -> dict[str, bytes]:
    """The final weights of a lockstep run in which nothing was killed."""

    def finished(root: Path) -> None:
        with rl_run(base, root, "rl.mode=sync") as run:
            run.start().finish_rl()

    return Run(made_once(shared / "undisturbed", finished)).final_weights()
