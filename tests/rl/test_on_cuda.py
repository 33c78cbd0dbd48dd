"""The trainer on a GPU computes what it computes on a CPU: steps with replay, KL penalty, MTP heads and the probe."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tests.rl.make import make_groups, open_trainer, tiny_recipe

from etude.weights import WeightStore

RECIPE = tiny_recipe(reward={"kl": 0.1}, minibatches=2, probe_every=1)
ONLY_THERE = {"train_seconds", "delta_share", "share_changed"}


def test_steps_are_those_of_a_cpu(tmp_path, with_cuda: Any) -> None:
    here = open_trainer(tmp_path / "here", RECIPE)
    batches, expected = [], []
    for step in range(2):
        batches.append(make_groups(RECIPE, here.model, step))
        expected.append(here.train(step, batches[step]))
    with with_cuda():
        there = open_trainer(tmp_path / "there", RECIPE, device="cuda")
        for step in range(2):
            found = there.train(step, batches[step])
            assert found.keys() == expected[step].keys()
            for name in found.keys() - ONLY_THERE:
                assert found[name] == pytest.approx(expected[step][name], rel=1e-3, abs=1e-5), name
        assert {parameter.device.type for parameter in there.model.parameters()} == {"cuda"}
        again = open_trainer(tmp_path / "there", RECIPE, device="cuda")
        assert again.step == 2
        for name, master in there.optimizer.masters.masters.items():
            assert torch.equal(again.optimizer.masters.masters[name].cpu(), master.cpu()), name
    ours, theirs = (WeightStore(str(tmp_path / name / "weights")).read(2) for name in ("here", "there"))
    assert all(raw.like(theirs[name]) for name, raw in ours.items())
