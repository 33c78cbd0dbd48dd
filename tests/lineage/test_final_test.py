"""Which evaluations the final test is made of."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from etude.lineage import reinforce
from etude.recipe import Recipe
from etude.tasks import Split


class Engine:
    async def run_watched(self, work: Any, *, ask: str = "") -> Any:
        return await work


@pytest.mark.parametrize("one_edit", [0, 2])
def test_with_one_edit_each_model_is_tested_twice(one_edit: int, monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[tuple[str, int | None]] = []
    shown: list[dict[str, int]] = []

    async def nothing(*args: Any, **named: Any) -> None: ...

    async def engine(*args: Any, version: int) -> Engine:
        assert version == 0
        return Engine()

    async def evaluated(
        context: Any, worker: Any, recipe: Any, split: Split, name: str, progress: Any, max_edits: int | None
    ) -> str:
        assert split is Split.TEST
        done.append((name, max_edits))
        assert recipe.samples == (one_edit if max_edits else 5)
        total = 3 * (recipe.samples + 1)
        progress(total, total)
        return name

    monkeypatch.setattr(reinforce, "require_held_out", lambda context: None)
    monkeypatch.setattr(reinforce, "start_engine", engine)
    monkeypatch.setattr(reinforce, "start_worker", nothing)
    monkeypatch.setattr(reinforce, "dismiss", nothing)
    monkeypatch.setattr(reinforce, "_evaluate", evaluated)
    context: Any = SimpleNamespace(
        recipe=Recipe.model_validate({"name": "r", "evaluation": {"samples": 5, "one_edit": one_edit}}),
        paths=SimpleNamespace(model=lambda stage: stage),
        screen=SimpleNamespace(update=lambda stage, values: shown.append(values)),
    )
    results = asyncio.run(reinforce.evaluate_test(context))
    capped = [("test-sft-one-edit", 1), ("test-rl-one-edit", 1)] if one_edit else []
    assert sorted(done, key=str) == sorted([("test-sft", None), ("test-rl", None), *capped], key=str)
    assert {f"test-{name}": name for name in results} == {result: result[5:] for result in results.values()}
    expected = [18, 27, 45, 54] if one_edit else [18, 36]
    assert [values["step"] for values in shown] == expected
    assert {values["total"] for values in shown} == {expected[-1]}
