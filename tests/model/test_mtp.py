"""MTP against a short reference written from the published description, on published tensors only."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from torch import Tensor

from etude.model import ModelError, save_hf


def norm(x: Tensor, w: Tensor) -> Tensor:
    return x / (x.pow(2).mean(-1, keepdim=True) + 1e-6).sqrt() * w


def turn(x: Tensor, theta: float) -> Tensor:
    """Complex rotation of interleaved pairs; the row index is the position."""
    pairs = torch.view_as_complex(x.unflatten(-1, (-1, 2)).contiguous())
    width = x.shape[-1]
    angle = torch.arange(x.shape[-2])[:, None] * theta ** (-torch.arange(0, width, 2) / width)
    return torch.view_as_real(pairs * torch.polar(torch.ones_like(angle), angle)).flatten(-2)


def reference_head(t: dict[str, Tensor], layer: int, config: Any, embedded: Tensor, hidden: Tensor) -> Tensor:
    """One MTP head for one sequence, [T, D] -> normed [T, D]."""
    w = {k.removeprefix(f"model.layers.{layer}."): v for k, v in t.items() if k.startswith(f"model.layers.{layer}.")}
    joined = torch.cat([norm(embedded, w["enorm.weight"]), norm(hidden, w["hnorm.weight"])], dim=-1)
    x = joined @ w["eh_proj.weight"].T
    h, (heads, nope, rope) = (
        norm(x, w["input_layernorm.weight"]),
        (config.attention.heads, config.attention.nope, config.attention.rope),
    )
    q = (h @ w["self_attn.q_proj.weight"].T).unflatten(-1, (heads, -1)).transpose(0, 1)
    down = h @ w["self_attn.kv_a_proj_with_mqa.weight"].T
    latent = norm(down[:, : config.attention.kv_rank], w["self_attn.kv_a_layernorm.weight"])
    kv = (latent @ w["self_attn.kv_b_proj.weight"].T).unflatten(-1, (heads, -1)).transpose(0, 1)
    scores = q[..., :nope] @ kv[..., :nope].mT
    q_turned, k_turned = (turn(x, config.rope.theta) for x in (q[..., nope:], down[:, config.attention.kv_rank :]))
    scores = scores + q_turned @ k_turned.mT
    scores = scores / (nope + rope) ** 0.5 + torch.full(scores.shape[-2:], float("-inf")).triu(1)
    x = x + (scores.softmax(-1) @ kv[..., nope:]).transpose(0, 1).flatten(1) @ w["self_attn.o_proj.weight"].T
    h = norm(x, w["post_attention_layernorm.weight"])

    def swiglu(v: Tensor, prefix: str) -> Tensor:
        gate, up, out = (w[f"{prefix}.{n}_proj.weight"] for n in ("gate", "up", "down"))
        return (F.silu(v @ gate.T) * (v @ up.T)) @ out.T

    score = torch.sigmoid(h @ w["mlp.gate.weight"].T)
    rows = []
    for i, v in enumerate(h):
        best = (score[i] + w["mlp.gate.e_score_correction_bias"]).topk(config.num_experts_per_tok).indices.tolist()
        total = sum(score[i, e] for e in best)
        rows.append(sum(score[i, e] / total * swiglu(v, f"mlp.experts.{e}") for e in best))
    x = x + torch.stack(rows) + swiglu(h, "mlp.shared_experts")
    return norm(x, w["shared_head.norm.weight"])


@pytest.mark.parametrize("changes", [{}, {"embedding_scale": 3.0}, {"tie_word_embeddings": False}])
def test_two_chained_heads_equal_the_reference(model_of: Any, tokens_of: Any, tmp_path: Path, changes: Any) -> None:
    model, tokens = model_of(num_nextn_predict_layers=2, **changes), tokens_of(2, 15)
    save_hf(model, tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    with torch.no_grad():
        output = model(tokens)
        heads = model.mtp_logits(output, tokens).logits
        for row in range(2):
            hidden = output.hidden_bth[row]
            for head in (0, 1):
                layer = model.config.num_hidden_layers + head
                length = 15 - 1 - head
                embedded = tensors[f"model.layers.{layer}.embed_tokens.weight"][tokens[row, head + 1 :]]
                hidden = reference_head(tensors, layer, model.config, embedded, hidden[:length])
                expected = hidden @ tensors[f"model.layers.{layer}.shared_head.head.weight"].T
                torch.testing.assert_close(heads[head][row], expected, rtol=1e-5, atol=2e-5)


def test_shapes_load_and_packing(model_of: Any, tokens_of: Any) -> None:
    model, tokens = model_of(num_nextn_predict_layers=2), tokens_of(1, 20)
    documents = torch.repeat_interleave(torch.arange(2), torch.tensor([8, 12]))[None]
    both = model.mtp_logits(model(tokens, documents_bt=documents), tokens, documents_bt=documents)
    assert [tuple(part.shape) for part in both.logits] == [(1, 19, 61), (1, 18, 61)]
    assert both.load_ke.sum(1).tolist() == [19 * 2, 18 * 2]
    second = model.mtp_logits(model(tokens[:, 8:]), tokens[:, 8:])
    for head in (0, 1):
        torch.testing.assert_close(both.logits[head][:, 8:], second.logits[head], rtol=1e-5, atol=1e-5)
    first = model.mtp_logits(model(tokens[:, :8]), tokens[:, :8])
    torch.testing.assert_close(both.logits[0][:, :7], first.logits[0], rtol=1e-5, atol=1e-5)


def test_heads_learn_alone_on_a_detached_trunk(model_of: Any, tokens_of: Any) -> None:
    model, tokens = model_of(), tokens_of(2, 12)
    with torch.no_grad():
        output = model(tokens)
    model.mtp_logits(output, tokens).logits[0].square().sum().backward()
    assert all(p.grad is not None for p in model.mtp.parameters())
    assert all(p.grad is None for p in model.layers.parameters())


def test_too_short_a_sequence_is_refused(model_of: Any, tokens_of: Any) -> None:
    model, tokens = model_of(), tokens_of(2, 1)
    with pytest.raises(ModelError, match="too few"):
        model.mtp_logits(model(tokens), tokens)
