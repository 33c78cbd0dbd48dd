"""Compiled parts compute what they computed before, and each is one graph."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch

from etude.model.compiled import compile_parts


@pytest.mark.slow
def test_compiled_parts_change_nothing_but_the_kernels(model_of: Any, tokens_of: Any) -> None:
    for shape in ({"model_type": "qwen3", "head_dim": 12}, {"q_lora_rank": 20}):
        model = model_of(**shape)
        other = copy.deepcopy(model)
        graphs: list[Any] = []

        def count(graph: Any, inputs: Any, graphs: list[Any] = graphs) -> Any:
            graphs.append(graph)
            return graph.forward

        compile_parts(other, count)  # type: ignore[arg-type]
        for length in (8, 24, 40):
            tokens = tokens_of(2, length)
            for one in (model, other):
                one.zero_grad()
                one(tokens).logits_btv.logsumexp(-1).sum().backward()
            torch.testing.assert_close(other(tokens).logits_btv, model(tokens).logits_btv, rtol=1e-6, atol=1e-6)
            for name, parameter in model.named_parameters():
                if parameter.grad is not None:
                    found = other.get_parameter(name).grad
                    torch.testing.assert_close(found, parameter.grad, rtol=1e-4, atol=1e-6, msg=name)
        assert 3 <= len(graphs) <= 12, "a graph per kind of part, not one per length"
    torch._dynamo.reset()
