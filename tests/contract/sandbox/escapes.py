"""Escapes from a box: attacks of etude.sandbox.attacks, where the mode promises to withstand them."""

from __future__ import annotations

import pytest
from tests.contract.sandbox.support import Make, in_a_box, in_loop, opened

from etude.sandbox import Sandboxes
from etude.sandbox.attacks import ATTACKS, Outcome, escapes, run_attacks


def withstood(outcomes: list[Outcome]) -> None:
    """Fail with what attacks achieved. Skip the test if the backend promises to withstand none of them."""
    if all(outcome.lacks for outcome in outcomes):
        pytest.skip(f"this backend has no {outcomes[0].lacks[0]}")
    for outcome in outcomes:
        assert not outcome.undecided, outcome
        assert not outcome.breaches, outcome
        assert outcome.tried or outcome.lacks, outcome


async def withstands(sandboxes: Sandboxes, *names: str, races: int = 20) -> None:
    withstood(await run_attacks(sandboxes, [ATTACKS[name] for name in names], races=races))


class EscapeCases:
    @in_loop
    async def test_no_attack_gets_anywhere(self, make: Make) -> None:
        async with opened(make) as (sandboxes, _):
            names = [attack.name for attack in escapes.INSIDE_ATTACKS]
            await withstands(sandboxes, "system-folders", *names)

    @in_a_box()
    async def test_no_way_to_the_hosts_files(self, sandboxes: Sandboxes) -> None:
        await withstands(sandboxes, "host-files")

    @in_a_box()
    async def test_links_swapped_during_a_request_do_not_lead_out(self, sandboxes: Sandboxes) -> None:
        await withstands(sandboxes, "linked-requests")

    @in_a_box()
    async def test_no_process_of_the_host_is_seen(self, sandboxes: Sandboxes) -> None:
        await withstands(sandboxes, "processes-of-the-host")

    @in_a_box()
    async def test_no_signal_reaches_pid_1(self, sandboxes: Sandboxes) -> None:
        await withstands(sandboxes, "signals-to-pid-1")

    @in_a_box()
    async def test_another_users_processes_are_out_of_reach(self, sandboxes: Sandboxes) -> None:
        await withstands(sandboxes, "another-user")

    @in_a_box()
    async def test_set_uid_programs_have_no_effect(self, sandboxes: Sandboxes) -> None:
        await withstands(sandboxes, "set-uid-programs")

    @in_a_box()
    async def test_commands_hold_no_right_over_the_host(self, sandboxes: Sandboxes) -> None:
        await withstands(sandboxes, "rights-over-the-host")

    @in_a_box()
    async def test_services_of_the_host_are_out_of_reach(self, sandboxes: Sandboxes) -> None:
        await withstands(sandboxes, "services-of-the-host")

    @in_a_box()
    async def test_shared_memory_of_the_host_is_out_of_sight(self, sandboxes: Sandboxes) -> None:
        await withstands(sandboxes, "shared-memory-of-the-host")

    @in_a_box()
    async def test_a_box_learns_nothing_of_other_boxes(self, sandboxes: Sandboxes) -> None:
        await withstands(sandboxes, "traces-of-neighbours")

    @pytest.mark.skipif(
        "other-calling-conventions" not in ATTACKS, reason="other calling conventions exist on x86_64 only"
    )
    @in_a_box()
    async def test_other_calling_conventions_are_refused(self, sandboxes: Sandboxes) -> None:
        await withstands(sandboxes, "other-calling-conventions")

    @in_a_box()
    async def test_memory_that_is_shared_or_in_files_is_limited_too(self, sandboxes: Sandboxes) -> None:
        await withstands(sandboxes, "shared-and-file-memory")

    @in_a_box()
    async def test_inodes_run_out_for_the_box_alone(self, sandboxes: Sandboxes) -> None:
        await withstands(sandboxes, "inodes")

    @in_a_box()
    async def test_descriptors_and_terminals_run_out_for_the_command_alone(self, sandboxes: Sandboxes) -> None:
        await withstands(sandboxes, "descriptors")

    @in_a_box()
    async def test_nobody_hides_from_the_end_of_a_command(self, sandboxes: Sandboxes) -> None:
        await withstands(sandboxes, "left-behind")
