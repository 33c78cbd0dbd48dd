"""The formulas for a network's activations against what autograd keeps."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tests.model.conftest import GROUPED, VOCAB

from etude.model import Transformer, begin_adapters, config_from_recipe, read_config, without_matrices
from etude.model.activations import Pass, activations_of
from etude.recipe.lora import LoraRecipe
from etude.recipe.model import ModelRecipe

WIDE: dict[str, Any] = {"hidden_size": 128, "intermediate_size": 352, "num_attention_heads": 4, "head_dim": 32}
NETWORKS: dict[str, Any] = {
    "deepseek_v3": config_from_recipe(ModelRecipe(num_hidden_layers=3, q_lora_rank=64), VOCAB),
    "llama": read_config({**GROUPED, **WIDE, "model_type": "llama"}),
    "qwen3": read_config({**GROUPED, **WIDE, "model_type": "qwen3", "num_key_value_heads": 1}),
    "qwen3_moe": read_config(
        {
            **GROUPED,
            **WIDE,
            "model_type": "qwen3_moe",
            "num_experts": 8,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 64,
        }
    ),
}


def kept(model: Transformer, rows: int, length: int, *, drafts: bool = False) -> int:
    """Return the bytes that autograd keeps of a forward pass, parameters not counted."""
    own = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
    held: dict[int, tuple[int, torch.Tensor]] = {}

    def pack(x: torch.Tensor) -> torch.Tensor:
        storage = x.untyped_storage()
        if storage.data_ptr() not in own:
            held[storage.data_ptr()] = storage.nbytes(), x
        return x

    tokens = torch.randint(VOCAB, (rows, length))
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x):
        output = model(tokens, documents_bt=torch.zeros_like(tokens), logits=False)
        heads = model.mtp_hidden(output, tokens, documents_bt=torch.zeros_like(tokens)) if drafts else None
    assert output.hidden_bth.requires_grad
    assert heads is None or heads.hidden[0].requires_grad
    return sum(size for size, _ in held.values())


@pytest.mark.parametrize(("rows", "length"), [(4, 256), (1, 2048)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("family", NETWORKS)
def test_layers_keep_what_the_formulas_say(family: str, dtype: torch.dtype, rows: int, length: int) -> None:
    config = NETWORKS[family]
    found = activations_of(config, Pass(rows, length, dtype))
    really = kept(Transformer(config).initialise(1).to(dtype), rows, length)
    assert found.layers + found.ends == pytest.approx(really, rel=0.06)


def test_heads_that_draft_keep_theirs() -> None:
    config = NETWORKS["deepseek_v3"]
    found = activations_of(config, Pass(4, 256, drafts=True))
    assert found.layers + found.ends == pytest.approx(kept(Transformer(config), 4, 256, drafts=True), rel=0.06)


@pytest.mark.parametrize("targets", [["attention"], ["mlp"], ["attention", "mlp"], ["attention", "experts"]])
@pytest.mark.parametrize("family", NETWORKS)
def test_a_frozen_matrix_keeps_nothing_for_itself(family: str, targets: list[Any]) -> None:
    config, recipe = NETWORKS[family], LoraRecipe(rank=8, targets=targets)
    if without_matrices(model := Transformer(config).initialise(1), targets):
        pytest.skip("no such matrices")
    really = kept(begin_adapters(model, recipe), 4, 256)
    found = activations_of(config, Pass(4, 256, adapters=frozenset(targets), rank=8))
    assert found.layers + found.ends == pytest.approx(really, rel=0.1)
