"""Adapters in the network: without effect until trained, the same in training and generation, swapped by themselves."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.model.test_experts import case, result
from tests.model.test_invariance import Row, alone, feed, network, new_cache, packed, sequence
from torch import Tensor

from etude.model import (
    Cache,
    CannotQuantise,
    ModelError,
    Transformer,
    adapter_size,
    adapter_state,
    adapters_of,
    begin_adapters,
    compute_with,
    merge_adapters,
    prepare,
    serve,
    served_state,
    with_adapters,
)
from etude.model.experts import experts_grouped, experts_padded, experts_reference, experts_tiled, experts_wide
from etude.model.lora import ExpertAdapters, LowRank
from etude.model.tiles import linear
from etude.recipe.lora import LoraRecipe
from etude.recipe.precision import PrecisionRecipe

EVERY = LoraRecipe(rank=3, alpha=6.0, targets=["attention", "mlp", "experts", "shared"])
MIXED: dict[str, Any] = {
    "model_type": "qwen3_moe",
    "num_experts": 6,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
    "mlp_only_layers": [1],
}
SHAPES: dict[str, dict[str, Any]] = {"latent": {"q_lora_rank": 20}, "grouped": MIXED}


def adapted(model: Transformer, recipe: LoraRecipe | None = None, size: float = 0.3) -> Transformer:
    """Give a network adapters that have an effect."""
    shared = getattr(model.config.mixture, "shared_width", 0)
    asked = recipe or (EVERY if shared else EVERY.model_copy(update={"targets": EVERY.targets[:3]}))
    dtype = model.embed_tokens.weight.dtype
    begin_adapters(model, asked, seed=1)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for adapter in adapters_of(model).values():
            adapter.to(dtype)
            adapter.b.copy_(torch.randn(adapter.b.shape, generator=generator) * size)
    return model


def clones(state: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: tensor.clone() for name, tensor in state.items()}


def test_fresh_adapters_change_no_bit_and_alone_are_trained(model_of: Any, tokens_of: Any) -> None:
    model, tokens = model_of(q_lora_rank=20), tokens_of(2, 30)
    before = model(tokens).logits_btv
    begin_adapters(model, EVERY, seed=1)
    assert torch.equal(model(tokens).logits_btv, before)
    trained = {name for name, parameter in model.named_parameters() if parameter.requires_grad}
    assert trained == set(adapter_state(model))
    assert adapter_size(model_of(q_lora_rank=20), EVERY) == sum(map(Tensor.numel, adapter_state(model).values()))
    kinds = {
        name.split(".", 2)[2].removesuffix(".weight") for name in adapters_of(model) if name.startswith("layers.1")
    }
    assert kinds == {
        *(f"self_attn.{name}" for name in ("q_a_proj", "q_b_proj", "kv_a_proj_with_mqa", "kv_b_proj", "o_proj")),
        *(f"mlp.{place}.{name}_proj" for place in ("experts", "shared_experts") for name in ("gate", "up", "down")),
    }
    assert {"layers.0.mlp.up_proj.weight", "mtp.0.block.mlp.experts.up_proj"} <= adapters_of(model).keys()
    assert {adapter.scale for adapter in adapters_of(model).values()} == {2.0}
    every = list(adapters_of(model).values())
    assert len({tuple(adapter.a.detach().flatten().tolist()) for adapter in every}) == len(every), "each has its own A"
    spread = torch.cat([adapter.a.detach().flatten() * adapter.a.shape[-1] ** 0.5 for adapter in every])
    assert spread.abs().max() <= 1, "as PEFT begins them: uniform within one over the root of the width"
    assert spread.std() == pytest.approx(3**-0.5, rel=0.02)
    again = adapter_state(begin_adapters(model_of(q_lora_rank=20), EVERY, seed=1))
    assert all(torch.equal(tensor, again[name]) for name, tensor in adapter_state(model).items())


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_training_and_generation_agree_by_bits_if_invariant(shape: dict[str, Any], dtype: torch.dtype) -> None:
    model = adapted(network(dtype, **shape))
    rows = [Row(sequence(length, seed), slot) for seed, (length, slot) in enumerate(((70, 3), (9, 1), (33, 5)))]
    expected = [alone(model, row.tokens) for row in rows]
    for one, found in zip(expected, packed(model, [row.tokens for row in rows], 1), strict=True):
        assert found.same(one)
    serve(model)
    cache = new_cache(model, dtype)
    for step in ([60, 5, 20], [1, 1, 1], [9, 3, 12]):
        feed(model, cache, rows, step)
    assert all(row.seen().same(one) for row, one in zip(rows, expected, strict=True))


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_generation_computes_the_same_function(shape: dict[str, Any]) -> None:
    """Not invariant: other forms of attention and of the experts' matmuls than in training."""
    model = adapted(network(torch.float32, PrecisionRecipe(), **shape))
    rows = [Row(sequence(length, length), slot) for length, slot in ((40, 3), (9, 1))]
    whole = [model(row.tokens[None]).logits_btv[0].detach() for row in rows]
    cache = Cache(model.config, 7, 150)
    for step in ([30, 4], [1, 1], [9, 4]):
        feed(model, cache, rows, step)
    for row, logits in zip(rows, whole, strict=True):
        torch.testing.assert_close(row.seen().logits, logits, rtol=1e-5, atol=1e-5)


def of_experts(f: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """An implementation as a function of the adapters' six stacks, too."""

    def computed(*tensors: Tensor) -> Tensor:
        lora = ExpertAdapters()
        for place, name in enumerate(("gate_proj", "up_proj", "down_proj")):
            low = LowRank(torch.empty(0), torch.empty(0), 1.5)
            del low.a, low.b  # as parameters they would be leaves of their own
            low.a, low.b = tensors[6 + 2 * place : 8 + 2 * place]
            setattr(lora, name, low)
        return f(*tensors[:6], lora=lora)

    return computed


@pytest.mark.parametrize("f", [experts_wide, experts_padded, experts_grouped, experts_tiled])
def test_every_form_adapts_experts_as_the_reference_does(f: Callable[..., Tensor]) -> None:
    generator = torch.Generator().manual_seed(0)
    inputs = case(40, 8, 2)
    for weight in inputs[3:6]:
        out, width = weight.shape[1:]
        inputs += [torch.randn(8, *shape, generator=generator) * 0.3 for shape in ((3, width), (out, 3))]
    y, gradients = result(of_experts(f), inputs)
    expected, expected_gradients = result(of_experts(experts_reference), inputs)
    merged = [weight + 1.5 * b @ a for weight, a, b in zip(inputs[3:6], inputs[6::2], inputs[7::2], strict=True)]
    torch.testing.assert_close(expected, experts_reference(*inputs[:3], *merged), rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(y, expected, rtol=1e-5, atol=1e-5)
    assert len(gradients) == 11
    for gradient, other in zip(gradients, expected_gradients, strict=True):
        torch.testing.assert_close(gradient, other, rtol=1e-4, atol=2e-4)


def test_adapters_are_swapped_and_put_back(model_of: Any, tokens_of: Any) -> None:
    model, tokens = adapted(model_of()), tokens_of(2, 30)
    own, before = clones(adapter_state(model)), model(tokens).logits_btv
    none = {name: torch.zeros_like(tensor) for name, tensor in own.items()}
    with with_adapters(model, none):
        assert torch.equal(model(tokens).logits_btv, model_of()(tokens).logits_btv)
    assert torch.equal(model(tokens).logits_btv, before)
    with pytest.raises(ModelError, match="adapters of another network"), with_adapters(model, {}):
        pass


def test_a_served_network_computes_with_new_adapters_once_prepared(model_of: Any) -> None:
    served, other = adapted(model_of()), adapted(model_of(), size=0.1)
    serve(served)
    assert served_state(other).keys() == served.swapped_state().keys() == adapter_state(other).keys()
    for name, tensor in adapter_state(other).items():
        served.swapped_state()[name].copy_(tensor)
    prepare(served)
    rows = [Row(sequence(20, 0), 1)]
    feed(served, Cache(served.config, 7, 150), rows, [20])
    torch.testing.assert_close(rows[0].seen().logits, alone(other, rows[0].tokens).logits, rtol=1e-5, atol=1e-5)


def test_a_longer_context_keeps_the_adapters(model_of: Any, tokens_of: Any) -> None:
    model, tokens = adapted(model_of(q_lora_rank=20)), tokens_of(1, 20)
    expected = adapted(Transformer(model.config.extended(4.0, 16)))
    expected.load_state_dict(model.state_dict())
    model.take_positions(expected.config)
    assert torch.equal(model(tokens).logits_btv, expected(tokens).logits_btv)
    assert {name for name, p in model.named_parameters() if p.requires_grad} == set(adapter_state(model))


def test_merging_in_bf16_rounds_once(model_of: Any) -> None:
    model = adapted(model_of().to(torch.bfloat16), size=1e-3).float()
    name, adapter = next(iter(adapters_of(model).items()))
    exact = model.state_dict()[name] + (adapter.b * adapter.scale) @ adapter.a
    for name_, parameter in model.named_parameters():
        if name_ not in adapter_state(model):
            parameter.data = parameter.data.to(torch.bfloat16)
    assert torch.equal(merge_adapters(model).state_dict()[name], exact.detach().to(torch.bfloat16))
    assert all(parameter.requires_grad for parameter in model.parameters())


@pytest.mark.parametrize(
    "precision",
    [{"experts": "mxfp8", "emulate": True}, {"kernels": "reference"}, {"emulate": True}],
    ids=str,
)
def test_experts_with_adapters_have_no_low_precision(precision: dict[str, Any]) -> None:
    with pytest.raises(CannotQuantise, match=r"leave experts out of lora\.targets"):
        compute_with(adapted(network(torch.float32, PrecisionRecipe())), PrecisionRecipe(**precision))


def test_adapters_of_rounded_layers_are_not_rounded() -> None:
    rounded = PrecisionRecipe(experts="mxfp8", also=["shared", "attention"], emulate=True, invariant=True)
    recipe = LoraRecipe(rank=3, alpha=6.0, targets=["attention", "mlp", "shared"])
    model = adapted(network(torch.bfloat16, rounded), recipe)
    compute_with(model, rounded)
    attention = model.layers[0].self_attn
    x = torch.randn(1, 9, 64, generator=torch.Generator().manual_seed(0)).to(torch.bfloat16)
    y, low = attention.q_proj(x), attention.q_proj.lora
    attention.q_proj.lora = None
    assert torch.equal(y, attention.q_proj(x) + linear(linear(x, low.a) * low.scale, low.b))


def test_targets_that_are_not_there_are_named(model_of: Any) -> None:
    with pytest.raises(ModelError, match=r"lora\.targets names shared: the network has no such"):
        begin_adapters(model_of(model_type="llama"), EVERY.model_copy(update={"targets": ["mlp", "shared"]}), seed=1)
