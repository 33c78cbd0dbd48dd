"""Every target withstands its seeds, and a short campaign that starts with the same inputs each time.

`make fuzz` runs long ones.
"""

from __future__ import annotations

import pytest
from tests.fuzz.campaign import run_campaign
from tests.fuzz.targets import TARGETS

SECONDS = 0.2
SEED = 2026


@pytest.mark.parametrize("name", TARGETS)
def test_a_target_withstands_a_short_campaign(name: str) -> None:
    progress = run_campaign(TARGETS[name], SECONDS, SEED)
    assert [f"{broken.kind}: {broken.what}: {broken.data[:200]!r}" for broken in progress.breaks] == []
    assert progress.inputs > 0
    assert progress.steps > 0
