"""What the survival tests share. ETUDE_SURVIVAL_KEEP names a folder in which it stays for the next time, for whoever
works on these tests; empty it when a stage before RL has changed."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from tests.survival.runner import Run, prepared, rl_run


@pytest.fixture(scope="session")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    kept = os.environ.get("ETUDE_SURVIVAL_KEEP")
    return Path(kept) if kept else tmp_path_factory.mktemp("shared")


@pytest.fixture(scope="session")
def base(shared: Path) -> Path:
    """A run folder before RL, made once and copied by each test."""
    root = shared / "base"
    return root if root.exists() else prepared(root)


@pytest.fixture(scope="session")
def undisturbed(base: Path, shared: Path) -> dict[str, bytes]:
    """The final weights of a lockstep run that nothing happened to."""
    root = shared / "undisturbed"
    if root.exists():
        return Run(root).final_weights()
    with rl_run(base, root, "rl.mode=sync") as run:
        return run.start().finish_rl().final_weights()
