"""Gradients of several backward passes add up in fp32, whatever dtype the module computes in."""

import pytest
import torch
from torch import nn

from etude.recipe.training import OptimizerRecipe
from etude.training import MasterWeights, Optim, build_optimizer


def linear(dtype: torch.dtype) -> tuple[nn.Linear, Optim]:
    torch.manual_seed(0)
    model = nn.Linear(8, 8, bias=False)
    recipe = OptimizerRecipe(name="adamw", lr=1e-2, warmup_steps=0, grad_clip=1e9)
    return model, build_optimizer(model, recipe, 10, masters=MasterWeights(model, dtype))


def test_many_microbatches_in_bf16_add_up() -> None:
    model, optim = linear(torch.bfloat16)
    inputs = torch.rand(300, 8).to(torch.bfloat16)
    for x in inputs:
        model(x).sum().backward()
        optim.accumulate()
    expected = inputs.double().sum(0).expand(8, 8)
    torch.testing.assert_close(optim.masters.gradients["weight"].double(), expected, rtol=1e-5, atol=0)
    assert optim.step()["grad_norm"] == pytest.approx(float(expected.norm()), rel=1e-5)


def test_in_fp32_they_are_the_bits_that_autograd_adds() -> None:
    (model, optim), (other, plain) = linear(torch.float32), linear(torch.float32)
    for x in torch.rand(16, 8):
        model(x).square().sum().backward()
        optim.accumulate()
        other(x).square().sum().backward()
    assert optim.step() == plain.step()
    assert torch.equal(model.weight, other.weight)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_gradient_enters_one_step_only(dtype) -> None:
    model, optim = linear(dtype)
    x = torch.ones(8, dtype=dtype)

    def gradient(times: int) -> None:
        for _ in range(times):
            model(x).sum().backward()
            optim.accumulate()

    gradient(3)
    optim.zero_grad()
    gradient(2)
    assert optim.step()["grad_norm"] == pytest.approx(16.0), "2 * 8: what came before `zero_grad` is forgotten"
    assert optim.step()["grad_norm"] == 0.0, "and what a step has used too"
