"""Muon against a reference that treats one block after the other, on the real network."""

import pytest
import torch
from tests.engine.tiny import tiny_model

from etude.recipe.training import OptimizerRecipe
from etude.training import build_optimizer
from etude.training.muon import blocks_of, orthogonalise


def network(**changes):
    return tiny_model(qk_nope_head_dim=16, v_head_dim=24, **changes)


def reference_update(block):
    """Newton-Schulz on one matrix, and the scale."""
    x = block.double() if block.shape[0] <= block.shape[1] else block.double().T
    x = x / (x.norm() + 1e-7)
    for _ in range(5):
        gram = x @ x.T
        x = 3.4445 * x + (-4.7750 * gram + 2.0315 * gram @ gram) @ x
    x = x if block.shape[0] <= block.shape[1] else x.T
    return 0.2 * max(block.shape) ** 0.5 * x


def reference_blocks(name, tensor, config):
    """Slices that cover the tensor, written out."""
    heads, nope, value = config.attention.heads, config.attention.nope, config.attention.value
    if tensor.ndim == 3:
        return [(expert,) for expert in range(tensor.shape[0])]
    if "q_proj" in name or "q_b_proj" in name:
        width = tensor.shape[0] // heads
        return [(slice(h * width, (h + 1) * width),) for h in range(heads)]
    if "kv_b_proj" in name:
        starts = [h * (nope + value) for h in range(heads)]
        return [(slice(s, s + nope),) for s in starts] + [(slice(s + nope, s + nope + value),) for s in starts]
    if "o_proj" in name:
        return [(slice(None), slice(h * value, (h + 1) * value)) for h in range(heads)]
    return [(slice(None),)]


@pytest.mark.parametrize("changes", [{}, {"q_lora_rank": 16, "tie_word_embeddings": False}])
def test_two_steps_equal_the_reference(changes):
    model = network(**changes)
    recipe = OptimizerRecipe(name="muon", lr=0.01, weight_decay=0.1, warmup_steps=0, grad_clip=1e9, final_lr_share=1.0)
    optim = build_optimizer(model, recipe, 10)
    expected = {name: parameter.detach().clone().double() for name, parameter in model.named_parameters()}
    momenta = {name: torch.zeros_like(value) for name, value in expected.items()}
    checked = 0
    for step in range(2):
        for place, (name, parameter) in enumerate(model.named_parameters()):
            generator = torch.Generator().manual_seed(100 * step + place)
            parameter.grad = torch.randn(parameter.shape, generator=generator)
            if blocks_of(name, parameter, model.config) is None:
                continue
            grad = parameter.grad.double()
            momenta[name] = 0.9 * momenta[name] + 0.1 * grad
            ahead = 0.1 * grad + 0.9 * momenta[name]
            expected[name] *= 1 - 0.01 * 0.1
            for where in reference_blocks(name, expected[name], model.config):
                expected[name][where] -= 0.01 * reference_update(ahead[where])
                checked += 1
        optim.step()
    for name, parameter in model.named_parameters():
        if blocks_of(name, parameter, model.config) is not None:
            assert (parameter.double() - expected[name]).abs().max() < 1e-5, name
    assert checked > 60


def test_embedding_head_norms_and_routers_belong_to_adamw():
    model = network(tie_word_embeddings=False)
    left_out = {n for n, p in model.named_parameters() if blocks_of(n, p, model.config) is None}
    kinds = ("embed_tokens.weight", "lm_head.weight", "norm.weight", "mlp.gate.weight")
    assert {name for name in left_out if not name.endswith(kinds)} == set()
    assert "layers.1.mlp.gate.weight" in left_out
    assert not any("gate_proj" in name for name in left_out)


def test_a_zero_gradient_stays_zero():
    assert orthogonalise(torch.zeros(1, 4, 6)).abs().max() == 0
