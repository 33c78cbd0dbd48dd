"""Layers whose activations are computed again give the same bits, and keep only their inputs."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tests.model.conftest import SHAPES, WITH_HEAD

from etude.model import Replay, Transformer, adapters_of, begin_adapters, compute_with
from etude.pretrain.draft import detached, heads_learn, trunk_frozen
from etude.recipe.lora import LoraRecipe
from etude.recipe.precision import PrecisionRecipe

ROWS, LENGTH = 2, 40
DOCUMENTS = torch.arange(LENGTH).div(17, rounding_mode="floor").expand(ROWS, -1)


def gradients(model: Transformer, tokens: torch.Tensor, *, checkpointed: bool, **how: Any) -> dict[str, torch.Tensor]:
    """Return the loss, the routing and all gradients of a pass that trains the trunk and then the MTP heads alone."""
    model.checkpoint_activations(checkpointed)
    model.zero_grad(set_to_none=True)
    output = model(tokens, documents_bt=DOCUMENTS, **how)
    loss = output.logits_btv.log_softmax(-1).square().mean()
    if output.balance_loss is not None:
        loss = loss + output.balance_loss
    loss.backward()
    found = {"loss": loss.detach(), "experts": output.experts_btlk, "load": output.load_le}
    found |= {name: mark for name in ("overridden_bt", "refused_bt") if (mark := getattr(output, name)) is not None}
    if heads_learn(model):
        with trunk_frozen(model):
            heads = model.mtp_logits(detached(output), tokens, documents_bt=DOCUMENTS)
            sum(logits.square().mean() for logits in heads.logits).backward()  # type: ignore[union-attr]
    return found | {name: p.grad for name, p in model.named_parameters() if p.grad is not None}


@pytest.fixture(params=["default", "groups", "llama", "qwen3_moe_with_head"])
def network(request: pytest.FixtureRequest, model_of: Any) -> Transformer:
    return model_of(**{**SHAPES, **WITH_HEAD}[request.param])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    "how", ["plain", "invariant", "rounded", "replay on", "replay filter", "balanced", "attention", "mlp"]
)
def test_checkpointed_layers_give_the_same_bits(network: Transformer, tokens_of: Any, how: str, dtype: Any) -> None:
    model, tokens, config = network.to(dtype), tokens_of(ROWS, LENGTH), network.config
    extra: dict[str, Any] = {}
    if how.startswith("replay") or how == "balanced":
        if not config.moe_layers:
            pytest.skip("a network without experts")
        choice = torch.rand(ROWS, LENGTH, config.moe_layers, config.n_routed_experts).argsort(-1)
        replay = Replay(choice[..., : config.num_experts_per_tok], "on" if how == "replay on" else "filter", 0.7)
        extra = {"balance_loss": True} if how == "balanced" else {"replay": replay}
    if how == "invariant":
        compute_with(model, PrecisionRecipe(invariant=True))
    if how == "rounded" and config.moe_layers:
        compute_with(model, PrecisionRecipe(experts="fp8_block", emulate=True))
    if how in ("attention", "mlp"):  # with "mlp", nothing before the first layer's feed-forward needs a gradient
        begin_adapters(model, LoraRecipe(rank=4, targets=[how]), dtype=dtype)
        for adapter in adapters_of(model).values():
            adapter.b.data.normal_(generator=torch.Generator().manual_seed(1))
    plain = gradients(model, tokens, checkpointed=False, **extra)
    again = gradients(model, tokens, checkpointed=True, **extra)
    assert plain.keys() == again.keys()
    assert [name for name in plain if not torch.equal(plain[name], again[name])] == []


def test_a_checkpointed_layer_keeps_its_input_alone(network: Transformer, tokens_of: Any) -> None:
    def kept(*, checkpointed: bool) -> int:
        """Number of bytes that the layers keep for the backward pass, weights not counted."""
        network.checkpoint_activations(checkpointed)
        own = {p.data_ptr() for p in network.parameters()}
        held: dict[int, int] = {}

        def pack(x: torch.Tensor) -> torch.Tensor:
            if x.untyped_storage().data_ptr() not in own:
                held[x.untyped_storage().data_ptr()] = x.untyped_storage().nbytes()
            return x

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x):
            output = network(tokens_of(ROWS, LENGTH), logits=False)
        assert output.hidden_bth.grad_fn is not None
        return sum(held.values())

    inputs = ROWS * LENGTH * network.config.hidden_size * 4
    assert kept(checkpointed=True) <= (network.config.num_hidden_layers + 4) * inputs
    assert kept(checkpointed=False) > 4 * kept(checkpointed=True)
