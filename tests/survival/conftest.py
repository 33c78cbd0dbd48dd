"""What the survival tests share, among all workers of a session: each thing is made once, and the others wait for it.
ETUDE_SURVIVAL_KEEP names a folder in which it stays for the next time, for whoever works on these tests; empty it when
a stage before RL has changed."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.survival.runner import Run, prepared, rl_run


@pytest.fixture(scope="session")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    own = tmp_path_factory.getbasetemp()
    of_all = own.parent if "PYTEST_XDIST_WORKER" in os.environ else own
    folder = Path(os.environ.get("ETUDE_SURVIVAL_KEEP") or of_all / "survival")
    folder.mkdir(exist_ok=True)
    return folder


@pytest.fixture(scope="session")
def base(shared: Path) -> Path:
    """A run folder before RL, copied by each test."""
    return made_once(shared / "base", prepared)


@pytest.fixture(scope="session")
def undisturbed(base: Path, shared: Path) -> dict[str, bytes]:
    """The final weights of a lockstep run that nothing happened to."""

    def finished(root: Path) -> None:
        with rl_run(base, root, "rl.mode=sync") as run:
            run.start().finish_rl()

    return Run(made_once(shared / "undisturbed", finished)).final_weights()


def made_once(folder: Path, make: Callable[[Path], object]) -> Path:
    """It has its name when it is whole: what somebody failed to make, the next one makes anew."""
    with folder.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.exists():
            begun = folder.with_name(f"{folder.name}-{os.getpid()}")
            make(begun)
            begun.rename(folder)
    return folder
