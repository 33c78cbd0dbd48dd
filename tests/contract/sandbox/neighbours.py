"""What one box takes of the kernel's tables, its neighbours and the host still have."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.contract.sandbox.escapes import withstands
from tests.contract.sandbox.support import PATIENCE, in_a_box

from etude.sandbox import Box, BoxSpec, Limits, Sandboxes
from etude.sandbox.attacks.attack import program, start
from etude.sandbox.attacks.resources import TABLE_ATTACKS

LARGE = Limits(memory_mb=512, processes=20)


class NeighbourCases:
    @pytest.mark.parametrize("name", [attack.name for attack in TABLE_ATTACKS])
    @in_a_box()
    async def test_a_box_takes_no_kernel_table_from_others(self, sandboxes: Sandboxes, name: str) -> None:
        await withstands(sandboxes, name)

    @in_a_box(LARGE)
    async def test_boxes_can_be_made_while_one_has_all_descriptors_in_flight(
        self, sandboxes: Sandboxes, image: str, box: Box
    ) -> None:
        """Where boxes have the caller's own id, the descriptors that make a new box count too."""
        await start(box, program("tables", "take", "in_flight"), until=b"HELD")
        fresh = [await sandboxes.create(BoxSpec(image, limits=replace(LARGE, processes=n))) for n in (20, 22)]
        for other in (box, *fresh):
            assert (await other.exec("cat", stdin=b"x", timeout=PATIENCE)).stdout == b"x"
