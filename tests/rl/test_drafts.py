"""What the MTP heads learn in RL: the main head's distribution at the sampled tokens, those of all microbatches."""

from __future__ import annotations

import pytest
import torch
from tests.rl.make import make_groups, tiny_model, tiny_recipe

from etude.rl.batch import microbatches
from etude.rl.drafts import draft_loss, drafted_tokens
from etude.rl.forward import forward
from etude.rl.scoring import score_groups

HEADS = 2


def test_each_head_is_compared_at_the_sampled_tokens_that_it_drafts() -> None:
    recipe = tiny_recipe()
    recipe = recipe.model_copy(update={"model": recipe.model.model_copy(update={"num_nextn_predict_layers": HEADS})})
    model = tiny_model(recipe)
    rows = score_groups(make_groups(recipe, model, 0), recipe.rl, {}).rows
    rows[0].sampled[1:3] = True  # an answer that begins before any head can draft
    totals = drafted_tokens(rows, HEADS)
    losses, accepted = [], 0.0
    divergences: list[list[float]] = [[] for _ in range(HEADS)]
    shared = 0.0
    for part in microbatches(rows, 1):
        output = forward(model, part, "off", 0.5)
        loss, share = draft_loss(model, output, part, totals)
        losses.append(loss)
        accepted += float(share)
        with torch.no_grad():
            whole = model(torch.from_numpy(part.tokens_bt))
            heads = model.mtp_logits(whole, torch.from_numpy(part.tokens_bt)).logits
        for _, at in torch.from_numpy(part.mask_bt).nonzero().tolist():
            for head in range(HEADS):
                if at >= 2 + head:  # drafted from the hidden state of the token 2 + head places before
                    p, q = whole.logits_btv[0, at - 1].softmax(-1), heads[head][0, at - 2 - head].softmax(-1)
                    divergences[head].append(float((p * (p / q).log()).sum()))
                    shared += float(torch.minimum(p, q).sum()) if head == 0 else 0.0
    assert len(losses) > 1
    assert [len(found) for found in divergences] == [int(total) for total in totals]
    expected = sum(sum(found) / len(found) for found in divergences) / HEADS
    assert float(sum(losses).detach()) == pytest.approx(expected, rel=1e-4)
    assert accepted == pytest.approx(shared / len(divergences[0]), rel=1e-4)
    sum(losses).backward()
    touched = {name for name, parameter in model.named_parameters() if parameter.grad is not None}
    assert touched
    assert all(name.startswith("mtp.") for name in touched)
