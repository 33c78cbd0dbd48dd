"""Cgroups of version 2 for real, and the core of the contract, on a second and older kernel (uml.py)."""

from __future__ import annotations

import pytest
from tests.contract.sandbox import CORE
from tests.sandbox.uml import (
    BELOW_THE_USERS_SYSTEMD,
    SYSTEMD_SCOPE,
    needs_uml,
    pytest_as_nobody_in_uml,
    pytest_in_uml,
    run_in_uml,
)

from etude.sandbox.embedded.knobs import Facts, for_cgroups

pytestmark = [needs_uml, pytest.mark.slow, pytest.mark.timeout(900)]
CASES = ["cgroup_v2_cases.py", "test_cgroups.py"]
HERE = f"FolderCells and ({' or '.join(CORE)}) and not full_disk"
"""Filling a disk takes more CPU time on a slow kernel than that case gives."""
KNOB = for_cgroups(Facts(systemd=False, user="nobody")).partition(" (")[0]
BY_HAND = KNOB.replace("sudo sh -c", "eval").replace("$$", "0")
"""What root types where there is no systemd; `0` is the shell that reads it."""


def test_it_is_another_kernel_and_writes_nothing_here() -> None:
    ended = run_in_uml("uname -r; touch ~/written || touch $PWD/written; exit 7", timeout=60)
    assert ended.code == 7, ended
    assert ended.said.split()[0].startswith("6.1."), ended
    assert ended.said.count("Read-only file system") == 2, ended


@pytest.mark.soak
def test_limits_hold_for_root() -> None:
    said = pytest_in_uml(CASES)
    assert "skipped" not in said, said


def test_limits_hold_for_an_ordinary_user_of_a_delegated_cgroup() -> None:
    """What only root has (more users than one, ids of others) aside."""
    wanted = "not all_users and not ordinary_user"
    said = pytest_as_nobody_in_uml(CASES, before=SYSTEMD_SCOPE, options=["-k", wanted])
    assert "skipped" not in said, said


@pytest.mark.parametrize("before", [BY_HAND, BELOW_THE_USERS_SYSTEMD], ids=["by hand", "below the user's systemd"])
def test_every_way_of_handing_on_is_found(before: str) -> None:
    pytest_as_nobody_in_uml(CASES[:1], before=before, options=["-k", "one_hierarchy or counts"])


@pytest.mark.soak
def test_the_core_of_the_contract_holds_for_root() -> None:
    pytest_in_uml(["test_contract.py"], options=["-k", HERE])


def test_the_core_of_the_contract_holds_for_an_ordinary_user() -> None:
    """But the kernel's tables: what an ordinary user's boxes take of them, test_ordinary_user.py sees on the host."""
    wanted = f"{HERE} and not kernel_table"
    pytest_as_nobody_in_uml(["test_contract.py"], before=SYSTEMD_SCOPE, options=["-k", wanted])
