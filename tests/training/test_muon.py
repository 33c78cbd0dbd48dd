"""Muon against a reference that treats one block after the other, on the real network."""

import pytest
import torch
import torch.nn.functional as F
from tests.engine.tiny import tiny_model

from etude.model import Numerics, Transformer, read_config, round_with
from etude.recipe.training import OptimizerRecipe
from etude.training import MasterWeights, build_optimizer, muon
from etude.training.muon import blocks_of, orthogonalise

RECIPE = OptimizerRecipe(name="muon", lr=0.01, weight_decay=0.1, warmup_steps=0, grad_clip=1e9, final_lr_share=1.0)


def network(**changes):
    if "model_type" in changes:
        return Transformer(read_config(changes)).initialise(0)
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
    if tensor.ndim == 3:
        return [(expert,) for expert in range(tensor.shape[0])]
    if config.family == "qwen3_moe":
        starts = range(0, max(tensor.shape), 12)
        kind = name.split(".")[-2]
        if kind in ("q_proj", "k_proj", "v_proj"):
            return [(slice(s, s + 12),) for s in starts if s < tensor.shape[0]]
        return [(slice(None), slice(s, s + 12)) for s in starts if s < 48] if kind == "o_proj" else [(slice(None),)]
    heads, nope, value = config.attention.heads, config.attention.nope, config.attention.value
    if "q_proj" in name or "q_b_proj" in name:
        width = tensor.shape[0] // heads
        return [(slice(h * width, (h + 1) * width),) for h in range(heads)]
    if "kv_b_proj" in name:
        starts = [h * (nope + value) for h in range(heads)]
        return [(slice(s, s + nope),) for s in starts] + [(slice(s + nope, s + nope + value),) for s in starts]
    if "o_proj" in name:
        return [(slice(None), slice(h * value, (h + 1) * value)) for h in range(heads)]
    return [(slice(None),)]


GROUPED = {
    "model_type": "qwen3_moe",
    "vocab_size": 61,
    "hidden_size": 32,
    "num_hidden_layers": 3,
    "intermediate_size": 40,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 12,
    "attention_bias": True,
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 16,
    "mlp_only_layers": [0],
    "max_position_embeddings": 64,
    "rms_norm_eps": 1e-6,
}


@pytest.mark.parametrize("changes", [{}, {"q_lora_rank": 16, "tie_word_embeddings": False}, GROUPED])
def test_two_steps_equal_the_reference(changes):
    model = network(**changes)
    optim = build_optimizer(model, RECIPE, 10)
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


def test_an_expert_without_a_gradient_rests_and_then_follows_its_fresh_one():
    experts = torch.nn.ParameterList([torch.randn(4, 6, 8, generator=torch.Generator().manual_seed(0))])
    (weight,) = experts
    optim = build_optimizer(experts, RECIPE, 100)

    def step(number, idle):
        weight.grad = torch.randn(weight.shape, generator=torch.Generator().manual_seed(number))
        weight.grad[idle] = 0
        before, given = weight.detach().clone(), weight.grad.clone()
        optim.step()
        return before, given

    step(0, [])
    for number in range(1, 60):
        before, _ = step(number, [1, 3])
        moved = (weight != before).any(-1).any(-1)
        assert moved.tolist() == [True, False, True, False]
    before, fresh = step(60, [])
    expected = before[1].double() * (1 - 0.01 * 0.1) - 0.01 * reference_update(fresh[1])
    assert (weight[1] - expected).abs().max() < 1e-4, "its old direction is forgotten"


ON_CUDA = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]


@pytest.mark.parametrize("computed", ["float32", "bfloat16", "mxfp8", pytest.param("cuda", marks=ON_CUDA)])
def test_experts_that_no_token_chose_are_left_alone(computed):
    device = "cuda" if computed == "cuda" else "cpu"
    model = tiny_model(moe_intermediate_size=32).to(device)
    dtype = torch.float32 if computed == "float32" else torch.bfloat16
    if computed == "mxfp8":
        round_with(model, Numerics("mxfp8"))
    for name, buffer in model.named_buffers():
        if name.endswith("e_score_correction_bias"):
            buffer[:2] += 9  # of four experts every token chooses the first two
    optim = build_optimizer(model, RECIPE, 10, masters=MasterWeights(model, dtype))
    before = {name: master.clone() for name, master in optim.masters.masters.items() if master.ndim == 3}
    tokens = torch.randint(model.config.vocab_size, (2, 24), device=device)
    output = model(tokens)
    F.cross_entropy(output.logits_btv[:, :-1].flatten(0, 1), tokens[:, 1:].flatten()).backward()
    optim.step()
    assert output.load_le[:, 2:].sum() == 0
    for name, weight in before.items():
        same = [torch.equal(one, other) for one, other in zip(weight, optim.masters.masters[name], strict=True)]
        assert same == ([True] * 4 if name.startswith("mtp.") else [False, False, True, True]), name


def test_blocks_are_orthogonalised_in_batches_of_limited_size(monkeypatch):
    """Whatever the limit, every block gets its update, stacks that are divided too."""
    generator = torch.Generator().manual_seed(0)
    momenta = [torch.randn(shape, generator=generator) for shape in ((7, 6, 10), (6, 10), (3, 10, 6))]
    parted = [(momentum, lambda tensor: [tensor if tensor.ndim == 3 else tensor[None]]) for momentum in momenta]
    whole = muon.muon_updates(parted, torch.float32)
    for limit in (1, 2 * 60, 5 * 60):
        monkeypatch.setattr(muon, "BATCH", limit)
        for update, expected in zip(muon.muon_updates(parted, torch.float32), whole, strict=True):
            torch.testing.assert_close(update, expected)
