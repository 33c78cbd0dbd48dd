"""A layer of experts out of kernels, interpreted: against the references as kernels, and against the plain layers."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.model.precision.kernels.loads import picks
from torch import Tensor

from etude.model import KernelUnavailable, Numerics, Transformer, compute_with, config_from_recipe, expert_matmul, serve
from etude.model.experts import experts_reference
from etude.model.precision.kernels import ExpertKernels, experts_by_kernels
from etude.recipe.model import ModelRecipe
from etude.recipe.precision import PrecisionRecipe

pytest.importorskip("triton")
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore::RuntimeWarning")]
"""Of numpy, which the interpreter computes with: rows beyond the last expert's hold anything."""

FORMATS = ["bf16", "mxfp8", "fp8_block"]
WIDTH, INNER = 128, 64
EXAMPLES = 40
"""Each is a whole layer, both ways and twice: its loads are of few kinds."""
Case = tuple[Tensor, Tensor, Tensor, list[Tensor]]
some_picks = picks().filter(lambda picked: len(picked[0]) > 0)


def case(experts_nk: Tensor, experts: int, seed: int, width: int = WIDTH) -> Case:
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(len(experts_nk), width, generator=g).bfloat16()
    gates = torch.rand(experts_nk.shape, generator=g)
    shapes = ((INNER, width), (INNER, width), (width, INNER))
    weights = [(torch.randn(experts, m, k, generator=g) / k**0.5).bfloat16() for m, k in shapes]
    return x, experts_nk, gates, weights


def ragged() -> Case:
    """Of six experts the first has most, the third and the last none."""
    picked = torch.tensor([[0, 1], [0, 3], [0, 4], [1, 0], [0, 3], [4, 0], [0, 1]])
    return case(picked, 6, seed=0)


def in_fp32(given: Case) -> Case:
    x, experts_nk, gates, weights = given
    return x.float(), experts_nk, gates, [weight.float() for weight in weights]


def upstream(out: Tensor) -> Tensor:
    return torch.randn(out.shape, generator=torch.Generator().manual_seed(1)).to(out.dtype)


def trained(f: Any, given: Case) -> list[Tensor]:
    """The result, and the gradients of x, gates and the weights."""
    x, experts_nk, gates, weights = given
    leaves = [part.clone().requires_grad_() for part in (x, gates, *weights)]
    out = f(leaves[0], experts_nk, leaves[1], *leaves[2:])
    out.backward(upstream(out))
    return [out.detach(), *(leaf.grad for leaf in leaves if leaf.grad is not None)]


def by(implementation: str, format: str) -> Any:
    kernels = ExpertKernels.of(implementation, format, "cpu")
    return lambda *inputs: expert_matmul(*inputs, kernels=kernels)


def off(found: list[Tensor], wanted: list[Tensor], given: Case) -> float:
    """The largest difference in norm, relative to what it differs from. A gate's gradient is one sum over the width,
    which may cancel to next to nothing: it is held against the same sum of its terms' magnitudes."""
    assert len(found) == len(wanted) == 6
    assert all(a.isfinite().all() for a in found)
    sizes = [b.float() for b in wanted]
    sizes[2] = gates_uncancelled(given)
    pairs = zip(found, wanted, sizes, strict=True)
    return max(float((a.float() - b.float()).norm() / size.norm().clamp_min(1e-9)) for a, b, size in pairs)


@torch.no_grad()
def gates_uncancelled(given: Case) -> Tensor:
    """What the gradients of the gates would be if all terms of a sum had one sign."""
    x, experts_nk, gates, weights = in_fp32(given)
    alone = (
        experts_reference(x, experts_nk[:, k : k + 1], torch.ones_like(gates[:, :1]), *weights)
        for k in range(experts_nk.shape[1])
    )
    return torch.stack([(y * upstream(y)).abs().sum(-1) for y in alone], -1)


@pytest.mark.parametrize("format", FORMATS)
def test_the_interpreted_kernels_are_the_references(format: str) -> None:
    """But for sums in another order, which may take a number that is quantised afterwards across a tie."""
    assert off(trained(by("triton", format), ragged()), trained(by("reference", format), ragged()), ragged()) < 5e-3


@pytest.mark.parametrize("format", FORMATS)
def test_what_is_kept_for_the_backward_pass_is_autograds_to_keep(format: str) -> None:
    """And to let go, or to put elsewhere meanwhile: a layer holds nothing itself."""
    plain = trained(by("reference", format), ragged())
    with torch.autograd.graph.saved_tensors_hooks(torch.clone, lambda tensor: tensor):
        found = trained(by("reference", format), ragged())
    assert all(torch.equal(a, b) for a, b in zip(found, plain, strict=True))
    x, experts_nk, gates, weights = ragged()
    out = by("reference", format)(x.requires_grad_(), experts_nk, gates, *weights)
    held = {name: value for name, value in vars(out.grad_fn).items() if name != "placement"}
    assert held.keys() == {"kernels", "made"}, "where rows lie is its own, and small"
    assert not [part for made in held["made"] for part in made if isinstance(part, Tensor)]
    assert not [
        value
        for _, made in held["made"]
        for value in getattr(made, "keywords", {}).values()
        if not isinstance(value, int)
    ]


@given(picked=some_picks, seed=st.integers(0, 99))
@settings(max_examples=EXAMPLES)
def test_in_bf16_it_is_the_layer_in_fp32_but_for_rounding(picked: tuple[Tensor, int], seed: int) -> None:
    given = case(*picked, seed)
    exact = trained(experts_reference, in_fp32(given))
    assert off(trained(by("reference", "bf16"), given), exact, given) < 2e-2


@pytest.mark.parametrize("format", FORMATS[1:])
@given(picked=some_picks, seed=st.integers(0, 99))
@settings(max_examples=EXAMPLES)
def test_rounded_it_is_what_is_emulated(format: str, picked: tuple[Tensor, int], seed: int) -> None:
    """Both ways: the same operands are rounded, along the same axes."""
    given = case(*picked, seed)
    emulated = trained(lambda *inputs: expert_matmul(*inputs, numerics=Numerics(format)), given)
    assert off(trained(by("reference", format), given), emulated, given) < 2e-2


def network(precision: PrecisionRecipe) -> Transformer:
    shape = {"hidden_size": 64, "num_hidden_layers": 2, "intermediate_size": 96, "moe_intermediate_size": 64}
    heads = {"num_attention_heads": 2, "kv_lora_rank": 16, "qk_nope_head_dim": 8, "qk_rope_head_dim": 8}
    config = config_from_recipe(ModelRecipe(**shape, **heads, v_head_dim=16, initializer_range=0.15), 61)
    model = Transformer(config).initialise(1).bfloat16()
    compute_with(model, precision)
    return model


TOKENS = torch.randint(61, (2, 6), generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize(
    ("chosen", "plain", "near"),
    [
        (PrecisionRecipe(kernels="triton"), PrecisionRecipe(), 0.03),
        (
            PrecisionRecipe(experts="fp8_block", kernels="triton"),
            PrecisionRecipe(experts="fp8_block", emulate=True),
            0.06,
        ),
    ],
    ids=["bf16", "fp8_block"],
)
def test_a_network_trains_through_the_kernels_that_its_recipe_names(
    chosen: PrecisionRecipe, plain: PrecisionRecipe, near: float
) -> None:
    def results(precision: PrecisionRecipe) -> tuple[Tensor, dict[str, Tensor]]:
        model = network(precision)
        logits = model(TOKENS).logits_btv
        logits.float().log_softmax(-1)[..., 5].mean().backward()
        return logits.detach(), {name: p.grad for name, p in model.named_parameters() if p.grad is not None}

    (logits, grads), (expected, expected_grads) = results(chosen), results(plain)
    assert float((logits - expected).norm() / expected.norm()) < near
    assert grads.keys() == expected_grads.keys()
    for name, grad in grads.items():
        assert float((grad - expected_grads[name]).norm() / expected_grads[name].norm()) < 3 * near, name


def test_an_engine_computes_with_the_codes_what_a_trainer_does() -> None:
    model = network(PrecisionRecipe(experts="fp8_block", kernels="triton"))
    with torch.no_grad():
        expected = model(TOKENS).logits_btv
        serve(model)
        assert torch.equal(model(TOKENS).logits_btv, expected)


def test_no_tokens_and_other_numbers_than_bf16() -> None:
    kernels = ExpertKernels.of("triton", "bf16", "cpu")
    x, experts_nk, gates, weights = ragged()
    assert experts_by_kernels(x[:0], experts_nk[:0], gates[:0], weights, kernels).shape == (0, WIDTH)
    with pytest.raises(KernelUnavailable, match="take bfloat16, not float32"):
        experts_by_kernels(x.float(), experts_nk, gates, weights, kernels)
