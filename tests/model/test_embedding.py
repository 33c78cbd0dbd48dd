"""The gradient of an embedding that is also the output head."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tests.model.conftest import GROUPED, VOCAB
from torch.utils._python_dispatch import TorchDispatchMode

from etude.model import Transformer, head_cross_entropy, read_config


class Names(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.seen = set[str]()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.seen.add(func.__name__.split(".")[0])
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_tied_embedding_has_one_gradient_for_both_uses(dtype: torch.dtype, tokens_of: Any) -> None:
    config = read_config({**GROUPED, "model_type": "llama", "tie_word_embeddings": True})
    model = Transformer(config).initialise(1).to(dtype)
    tokens, targets = tokens_of(2, 40) % 7, torch.arange(80) % VOCAB
    gradients = []
    for together in (True, False):
        output = model(tokens, logits=False)
        head, hidden = output.head if together else model.head, output.hidden_bth.flatten(0, 1)
        loss = head_cross_entropy(hidden, head, targets, torch.ones(80))
        loss = loss + head_cross_entropy(hidden.flip(0), head, targets, torch.ones(80), chunk=7)
        with Names() as names:
            gradients += torch.autograd.grad(loss, model.embed_tokens.weight)
        separate = not together or dtype == torch.bfloat16  # whose occurrences are summed in fp32 first
        assert ("embedding_dense_backward" in names.seen) is separate
    exact = dtype == torch.float32
    torch.testing.assert_close(*gradients, rtol=1e-5 if exact else 2**-6, atol=1e-6 if exact else 1e-3)
