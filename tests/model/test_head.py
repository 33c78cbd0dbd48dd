"""The output head in bf16: logits are the exact products of their operands, wherever they are computed."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from etude.model import Cache, Transformer, compute_with, serve
from etude.recipe.precision import PrecisionRecipe


@pytest.fixture(params=[False, True], ids=["plain", "invariant"])
def half(request: pytest.FixtureRequest, model_of: Any) -> Transformer:
    """A network in bf16 whose logits deviate by about 4, as those of trained ones do."""
    model = model_of(initializer_range=0.7).to(torch.bfloat16)
    compute_with(model, PrecisionRecipe(invariant=request.param))
    return model


def error(logits: Tensor, hidden: Tensor, model: Transformer) -> float:
    with torch.no_grad():
        return float((logits - hidden.double() @ model.head.weight_vh.double().T).abs().max())


def test_logits_are_not_rounded_to_the_compute_dtype(half: Transformer, tokens_of: Any) -> None:
    output = half(tokens_of(2, 40))
    assert 3 < output.logits_btv.std() < 6
    assert error(output.logits_btv, output.hidden_bth, half) < 1e-4


def test_nor_are_those_of_a_served_network(half: Transformer, tokens_of: Any) -> None:
    tokens = tokens_of(1, 12)[0]
    for changes in range(2):  # in the second round the weights have changed since the network was served first
        with torch.no_grad():
            half.embed_tokens.weight.mul_(1 - 0.5 * changes)
        serve(half)
        cache = Cache(half.config, 1, 16, torch.bfloat16, invariant=half.invariant)
        step = cache.step(torch.zeros(1, dtype=torch.long), torch.zeros(1, dtype=torch.long), torch.tensor([12]))
        read = torch.arange(12)
        out = half.extend(tokens[step.positions_t.clamp(max=11)], step)
        assert error(out.logits_rv[:12], out.hidden_th[:12], half) < 1e-4
        drafts = half.draft(out.hidden_th, tokens.roll(-1)[step.positions_t.clamp(max=11)], step, read)
        assert (drafts != drafts.bfloat16()).float().mean() > 0.9


def test_a_step_of_a_served_network_changes_its_logits(model_of: Any, tokens_of: Any) -> None:
    model, tokens = model_of().to(torch.bfloat16), tokens_of(1, 8)
    serve(model)
    before = model(tokens).logits_btv
    with torch.no_grad():
        model.embed_tokens.weight.mul_(2)
    assert (model(tokens).logits_btv - before).norm() > 0.1 * before.norm()


def test_gradients_are_those_of_a_matmul_in_the_compute_dtype(half: Transformer, tokens_of: Any) -> None:
    hidden = half(tokens_of(2, 9)).hidden_bth.detach()
    slope = torch.randn(2, 9, half.config.vocab_size)
    found, expected = [], []
    for logits_of, into in ((half.logits_of, found), (lambda x: F.linear(x, half.head.weight_vh).float(), expected)):
        x = hidden.clone().requires_grad_()
        into += torch.autograd.grad(logits_of(x), (x, half.head.weight_vh), slope)
    assert all(torch.equal(ours, theirs) for ours, theirs in zip(found, expected, strict=True))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_nor_on_a_gpu(half: Transformer, tokens_of: Any) -> None:
    there = copy.deepcopy(half).cuda()
    output = there(tokens_of(2, 40).cuda())
    assert error(output.logits_btv, output.hidden_bth, there) < 1e-4
