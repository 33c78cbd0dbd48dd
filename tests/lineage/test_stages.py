"""A supervised stage as the line runs it: in a service, with deadlines."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from tests.lineage.contexts import open_context

from etude.lineage.stages import stages_of
from etude.recipe import Recipe

RECIPE = Recipe.model_validate(
    {
        "name": "r",
        "compute": {"dtype": "float32", "threads": 1},
        "cluster": {"backend": "inline", "call_seconds": 0.1, "restarts": 0},
    }
)


class SlowStage:
    """In place of the real service: each item of its progress takes longer than a short call may."""

    def __init__(self, stage: str, run_folder: str, recipe: dict[str, Any]) -> None:
        self.steps = 0

    async def run(self) -> AsyncIterator[dict[str, Any]]:
        await asyncio.sleep(0.2)
        self.steps = 1
        yield {"step": 1, "total": 1}

    def result(self) -> dict[str, Any]:
        return {"steps": self.steps}


def test_training_may_be_silent_for_longer_than_a_short_call(monkeypatch: pytest.MonkeyPatch, tmp_path) -> None:
    monkeypatch.setattr("etude.pretrain.service.StageService", SlowStage)
    context = open_context(tmp_path / "run", RECIPE)
    pretrain = next(stage for stage in stages_of(RECIPE) if stage.name == "pretrain")

    async def live() -> dict[str, Any]:
        try:
            return await pretrain.run(context)
        finally:
            await context.close()

    assert asyncio.run(live()) == {"steps": 1}
