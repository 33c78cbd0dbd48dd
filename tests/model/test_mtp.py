"""MTP heads: equal to those of `transformers` on checkpoints that we wrote; shapes, packing, gradients."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from tests.model.conftest import SHAPES
from tests.needs import transformers

from etude.model import ModelError, save_hf


def heads_there(main: Any) -> Any:
    """The MTP heads of a checkpoint that `transformers` has loaded, in its implementation."""
    # Not above: it takes two seconds, which every worker would spend, as each collects all tests.
    from transformers.modeling_layers import MtpModel

    layers = main.config.num_hidden_layers
    # It knows the heads' names of the published sizes only.
    main._keys_to_ignore_on_load_unexpected = [rf"model\.layers\.{layers + head}\.." for head in (0, 1)]
    return MtpModel.from_pretrained(main)


CASES: dict[str, dict[str, Any]] = {
    "deepseek_v3": {},
    "embedding_scale": {"embedding_scale": 3.0},
    "untied": {"tie_word_embeddings": False},
    "glm4_moe": SHAPES["glm4_moe"],
}


@pytest.mark.parametrize("shape", CASES.values(), ids=CASES)
def test_two_chained_heads_equal_those_of_transformers(
    model_of: Any, tokens_of: Any, tmp_path: Path, shape: dict[str, Any]
) -> None:
    """Logits, and the gradients that the heads pass on to the trunk."""
    model, tokens = model_of(**{**shape, "num_nextn_predict_layers": 2}), tokens_of(2, 15)
    save_hf(model, tmp_path)
    main = transformers.AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32)
    theirs = heads_there(main)
    output = model(tokens)
    hidden = first = main.model(tokens).last_hidden_state
    heads = model.mtp_logits(output, tokens).logits
    for head in (0, 1):
        length = 15 - 1 - head
        positions = torch.arange(length)[None].expand(2, -1)
        hidden = theirs.forward_layer(head, hidden[:, :length], positions, None, input_ids=tokens[:, head + 1 :])
        assert heads[head].std() > 0.05
        torch.testing.assert_close(heads[head], main.lm_head(hidden), rtol=1e-5, atol=2e-5)
    (expected,) = torch.autograd.grad(main.lm_head(hidden).square().sum(), first)
    (found,) = torch.autograd.grad(heads[1].square().sum(), output.hidden_bth)
    assert (found - expected).abs().max() <= 2e-5 * expected.abs().max()


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
