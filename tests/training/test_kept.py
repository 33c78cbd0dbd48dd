"""What an optimizer keeps, in 8 bits and on the CPU, beside fp32 on the device."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from etude.recipe.training import OptimizerRecipe
from etude.training import MasterWeights, build_optimizer
from etude.training.kept import BLOCK, from_blocks, to_blocks


@given(st.integers(1, 3 * BLOCK), st.integers(0, 2**31), st.sampled_from([1e-12, 1.0, 1e12]), st.booleans())
def test_a_block_keeps_sign_and_size_of_numbers_a_thousand_times_smaller_than_its_largest(count, seed, scale, signed):
    numbers = torch.randn(count, generator=torch.Generator().manual_seed(seed)) * scale
    numbers = numbers if signed else numbers.square() / scale
    blocks = to_blocks(numbers, signed=signed)
    found = from_blocks(blocks)
    assert blocks.codes.element_size() == 1
    assert found.shape == numbers.shape
    largest = torch.cat([part.abs().amax().expand(len(part)) for part in numbers.split(BLOCK)])
    if signed:  # half a step of the square root of the share
        step = (numbers.abs() / largest).sqrt() / 127 + 1 / (4 * 127**2)
        assert ((found - numbers).abs() <= largest * step * 1.01).all()
    else:
        assert (found > 0).all()
        assert ((found / largest) ** 0.25 - (numbers / largest) ** 0.25).abs().max() <= 1.01 / 255


def trained(device: str, offload: str, moments: str, name: str, steps: int = 60) -> tuple[list[float], nn.Module]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 64), nn.Tanh(), nn.Linear(64, 4))
    inputs = torch.randn(256, 16)
    targets = (inputs @ torch.randn(16, 4)).argmax(1)
    model, inputs, targets = model.to(device), inputs.to(device), targets.to(device)
    recipe = OptimizerRecipe(name=name, lr=1e-2, warmup_steps=2, weight_decay=0.01, moments=moments)
    optim = build_optimizer(model, recipe, steps, masters=MasterWeights(model, None, offload))
    losses = []
    for step in range(steps):
        loss = nn.functional.cross_entropy(model(inputs), targets)
        loss.backward()
        optim.step()
        losses.append(float(loss.detach()))
        if step == steps // 2:  # as after a kill
            again = build_optimizer(model, recipe, steps, masters=MasterWeights(model, None, offload))
            again.load_state_dict(optim.state_dict())
            optim = again
    return losses, model


@pytest.mark.parametrize("name", ["adamw", "muon"])
def test_8_bit_moments_learn_as_fp32_ones_do(name):
    full, _ = trained("cpu", "none", "float32", name)
    rounded, _ = trained("cpu", "none", "8bit", name)
    assert full != rounded
    assert full[-1] < 0.6 * full[0]
    assert rounded[-1] == pytest.approx(full[-1], rel=0.05)


@pytest.mark.parametrize("moments", ["float32", "8bit"])
@pytest.mark.parametrize("name", ["adamw", "muon"])
def test_what_lies_on_the_cpu_changes_no_bit(with_cuda, name, moments, monkeypatch):
    monkeypatch.setattr("etude.training.optimizers.AT_ONCE", 1100)  # several groups
    with with_cuda():
        expected, there = trained("cuda", "none", moments, name, steps=6)
        for offload in ("moments", "masters"):
            losses, model = trained("cuda", offload, moments, name, steps=6)
            assert losses == pytest.approx(expected, rel=1e-6)
            for one, other in zip(model.parameters(), there.parameters(), strict=True):
                assert one.is_cuda
                torch.testing.assert_close(one.cpu(), other.cpu(), rtol=1e-5, atol=1e-7)
