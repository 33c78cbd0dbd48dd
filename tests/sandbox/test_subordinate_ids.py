"""Run by root, the contract must hold for an ordinary user with subordinate ids too: the suites again, as nobody."""

from __future__ import annotations

import json

import pytest
from tests.contract.sandbox import CORE
from tests.needs import needs
from tests.sandbox.as_nobody import for_root, pytest_as_nobody, run_as_nobody
from tests.sandbox.test_images_ordinary_user import SUITES


@for_root
@needs("newuidmap")
class TestSubordinateIds:
    @pytest.mark.slow
    def test_the_core_of_the_contract_holds(self) -> None:
        pytest_as_nobody("test_contract.py", options=["-k", f"MemoryCells and ({' or '.join(CORE)})"], lend_ids=True)

    @pytest.mark.soak
    @pytest.mark.timeout(900)
    @pytest.mark.parametrize("cells", ["MemoryCells", "FolderCells"])
    def test_the_whole_contract_holds(self, cells: str) -> None:
        pytest_as_nobody("test_contract.py", options=["-k", cells], timeout=800, lend_ids=True)

    @pytest.mark.soak
    @pytest.mark.timeout(600)
    def test_nothing_outlives_its_owner(self) -> None:
        pytest_as_nobody("test_embedded.py", timeout=500, lend_ids=True)

    @pytest.mark.soak
    def test_programs_get_out_by_their_policy(self) -> None:
        pytest_as_nobody("test_egress_boxes.py", lend_ids=True)

    def test_a_short_range_is_used_as_far_as_it_goes(self) -> None:
        pytest_as_nobody("few_ids_cases.py", lend_ids=True, count=5_000)

    def test_without_a_way_to_newuidmap_the_next_mode_is_taken(self) -> None:
        """Set-uid programs have no effect under no_new_privs."""
        script = "from etude.sandbox.doctor import *; print(as_json(doctor()))"
        command = "import os, sys; os.execvp('setpriv', ['setpriv', '--no-new-privs', sys.executable, *sys.argv[1:]])"
        done = run_as_nobody(["-c", command, "-c", script], [], timeout=60, lend_ids=True)
        assert done.returncode == 0, done.stderr
        found = {finding["name"]: finding for finding in json.loads(done.stdout)}
        assert found["mode"]["held_by"] == "user"
        assert "no_new_privs" in found["users"]["knob"]

    @pytest.mark.slow
    def test_the_keeper_of_trees(self) -> None:
        pytest_as_nobody("keeper_cases.py", lend_ids=True)

    @pytest.mark.soak
    def test_a_debian_from_its_packages(self) -> None:
        pytest_as_nobody("test_images_debootstrap.py", lend_ids=True)

    @pytest.mark.soak
    def test_images(self) -> None:
        pytest_as_nobody(*SUITES, options=["-m", "not slow"], lend_ids=True)
