"""Run by root, the contract must hold for an ordinary user too: the suite again, as nobody, in a process of its own."""

from __future__ import annotations

import pytest
from tests.contract.sandbox import CORE
from tests.sandbox.as_nobody import for_root, pytest_as_nobody


@for_root
class TestOrdinaryUser:
    def test_the_core_of_the_contract_holds(self) -> None:
        pytest_as_nobody("test_contract.py", options=["-k", f"MemoryCells and ({' or '.join(CORE)})"])

    @pytest.mark.soak
    @pytest.mark.timeout(900)
    @pytest.mark.parametrize("cells", ["MemoryCells", "FolderCells"])
    def test_the_whole_contract_holds(self, cells: str) -> None:
        pytest_as_nobody("test_contract.py", options=["-k", cells], timeout=800)

    @pytest.mark.slow
    def test_who_lives_is_taken_along_when_a_box_is_forked(self) -> None:
        pytest_as_nobody("test_moving.py")

    @pytest.mark.slow
    def test_programs_get_out_by_their_policy(self) -> None:
        pytest_as_nobody("test_egress_boxes.py", "test_egress_ipv6.py", "test_egress_proxied.py")
