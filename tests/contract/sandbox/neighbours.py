"""What one box takes of the kernel's tables, its neighbours and the host still have.

The kernel counts many things for each user of the host or for all together. Each case lets one box take all that it can
get, and then asks another box and a process of the host for a little.
"""

from __future__ import annotations

import asyncio
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from tests.contract.sandbox.support import PATIENCE, in_a_box, output_until

from etude.sandbox import Box, BoxSpec, Feature, Limits, Sandboxes

PROGRAM = Path(__file__).with_name("kernel_tables.py").read_text()
WITH_OWN_IDS = ("pipes", "descriptors_in_flight")
"""Tables that the kernel has for each user id, and for which it has no smaller limit."""
TABLES = (
    *("watchers", "queues", "timers", "terminals", "segments", "asynchronous_requests", "compiled_filters"),
    *WITH_OWN_IDS,
)
LARGE = Limits(memory_mb=512, processes=20)
PROCESSES = 8


class NeighbourCases:
    tables: tuple[str, ...] = TABLES
    """Those of which a box cannot take its neighbours' part. Fewer where a mode promises less."""

    @pytest.mark.parametrize("table", TABLES)
    @in_a_box()
    async def test_a_box_takes_no_kernel_table_from_others(self, sandboxes: Sandboxes, image: str, table: str) -> None:
        if table not in self.tables or (table in WITH_OWN_IDS and Feature.OWN_IDS not in sandboxes.features):
            pytest.skip(f"boxes of this backend share the kernel's {table}")
        greedy, neighbour = [await sandboxes.create(BoxSpec(image, limits=LARGE)) for _ in range(2)]
        taker = await greedy.start(["python", "-c", PROGRAM, "take", table, str(PROCESSES)], timeout=PATIENCE)
        said = await output_until(taker, b"\n")
        assert said.startswith(b"took"), said
        assert table != "compiled_filters" or said == b"took 0 EPERM\n", said
        ask = [PROGRAM, "need", table]
        left = await neighbour.exec(["python", "-c", *ask], timeout=PATIENCE)
        assert left.stdout == b"left\n", (said, left)
        on_host = await asyncio.create_subprocess_exec(sys.executable, "-c", *ask, stdout=asyncio.subprocess.PIPE)
        heard, _ = await on_host.communicate()
        assert heard == b"left\n", (said, heard)
        fresh = await sandboxes.create(BoxSpec(image, limits=replace(LARGE, processes=21)))
        assert (await fresh.exec("true", timeout=PATIENCE)).code == 0, "new boxes can be made"

    @in_a_box(LARGE)
    async def test_boxes_can_be_made_while_one_has_all_descriptors_in_flight(
        self, sandboxes: Sandboxes, image: str, box: Box
    ) -> None:
        """Where boxes have the caller's own id, the descriptors that make a new box count too."""
        table = "descriptors_in_flight"
        taker = await box.start(["python", "-c", PROGRAM, "take", table, str(PROCESSES)], timeout=PATIENCE)
        await output_until(taker, b"\n")
        fresh = [await sandboxes.create(BoxSpec(image, limits=replace(LARGE, processes=n))) for n in (20, 22)]
        for other in (box, *fresh):
            assert (await other.exec("cat", stdin=b"x", timeout=PATIENCE)).stdout == b"x"
