"""The feed-forward that computes its inner activations again, against plain autograd."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef

from etude.model.block import FeedForward
from etude.model.lora import LowRank


@pytest.mark.parametrize("adapted", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_gradients_have_the_bits_of_plain_autograd(dtype: torch.dtype, adapted: bool) -> None:
    torch.manual_seed(0)
    layer = FeedForward(8, 24).to(dtype)
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.normal_()
    if adapted:
        layer.down_proj.weight.requires_grad_(False)
        layer.down_proj.lora = LowRank(torch.randn(2, 24, dtype=dtype), torch.randn(8, 2, dtype=dtype), 1.0)
    x = torch.randn(3, 5, 8, dtype=dtype, requires_grad=True)
    inputs = [x, *(p for p in layer.parameters() if p.requires_grad)]

    def gradients(y: Tensor) -> list[Tensor]:
        return [y, *torch.autograd.grad(y.float().square().sum(), inputs)]

    plain = gradients(layer.down_proj(F.silu(layer.gate_proj(x)) * layer.up_proj(x)))
    for ours, theirs in zip(gradients(layer(x)), plain, strict=True):
        assert torch.equal(ours, theirs)


def test_the_product_is_not_kept() -> None:
    layer, products = FeedForward(8, 24), list[StorageWeakRef]()
    layer.down_proj.register_forward_pre_hook(
        lambda _, inputs: products.append(StorageWeakRef(inputs[0].untyped_storage()))
    )
    y = layer(torch.randn(3, 5, 8))
    assert y.requires_grad
    assert products[0].expired()
