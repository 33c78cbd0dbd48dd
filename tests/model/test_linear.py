from __future__ import annotations

import pytest
import torch

from etude.model import Numerics
from etude.model.linear import Linear


@pytest.mark.parametrize("way", ["plain", "invariant", "rounded", "prepared"])
def test_the_bias_is_added_after_the_matmul(way: str) -> None:
    layer, x = Linear(32, 64, bias=True), torch.randn(5, 32)
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.normal_()
    layer.invariant = way == "invariant"
    layer.numerics = Numerics("mxfp8") if way in ("rounded", "prepared") else None
    if way == "prepared":
        layer.prepare()
    got = layer(x)
    with torch.no_grad():
        bias = layer.bias.clone()
        layer.bias.zero_()
        torch.testing.assert_close(got, layer(x) + bias)
