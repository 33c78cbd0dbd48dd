"""Forward and backward on a GPU in bf16: packed documents by one kernel, experts by grouped matmuls."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch

LENGTHS = (3, 17, 1, 27)


@pytest.mark.parametrize("shape", [{}, {"model_type": "qwen3", "head_dim": 16}, "qwen3_moe"], ids=str)
def test_packed_rows_are_those_of_a_cpu(shape: Any, model_of: Any, tokens_of: Any, with_cuda: Any) -> None:
    if shape == "qwen3_moe":
        sizes = {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 16, "mlp_only_layers": [1]}
        shape = {"model_type": "qwen3_moe", "head_dim": 16, **sizes}
    exact = model_of(initializer_range=0.05, **shape)
    tokens = tokens_of(2, sum(LENGTHS))
    documents = torch.cat([torch.full((length,), n) for n, length in enumerate(LENGTHS)]).expand(2, -1)
    expected = exact(tokens, documents_bt=documents)
    expected.logits_btv.logsumexp(-1).mean().backward()
    with with_cuda() as waits:
        model = copy.deepcopy(exact).to(torch.bfloat16).to("cuda")
        rows, ids = tokens.to("cuda"), documents.contiguous().to("cuda")
        waits.clear()
        found = model(rows, documents_bt=ids)
        forward = waits.copy()
        found.logits_btv.logsumexp(-1).mean().backward()
        logits = found.logits_btv.detach().cpu()
        gradients = {n: p.grad.float().cpu() for n, p in model.named_parameters() if p.grad is not None}
    assert sum(forward.values()) <= 2, f"only the lengths of the documents are waited for, not {forward}"
    assert (logits - expected.logits_btv).norm() < 0.03 * expected.logits_btv.norm()
    for name, parameter in exact.named_parameters():
        if parameter.grad is not None and ".gate.weight" not in name:
            assert (gradients[name] - parameter.grad).norm() < 0.15 * parameter.grad.norm() + 1e-6, name
