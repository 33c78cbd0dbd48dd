"""What the MTP loss compares, and whom it teaches."""

import numpy as np
import pytest
import torch

from etude.corpus import Batch
from etude.corpus.pack import fill_row, plan_rows
from etude.model import load_hf
from etude.pretrain.context import Rows
from etude.pretrain.draft import detached, draft_loss, trunk_frozen
from etude.pretrain.measure import draft_quality, followed


@pytest.fixture(scope="module")
def case(finished):
    run, _, _ = finished
    model = load_hf(run / "stages" / "mtp" / "model")
    documents = [np.random.default_rng(n).integers(0, 400, size=size) for n, size in enumerate((20, 9, 30, 12))]
    plan = plan_rows(np.array([len(d) for d in documents]), np.arange(4), 40)
    batch = Batch.of([fill_row(plan.row(n), 40, documents.__getitem__) for n in range(len(plan))])
    return model, batch, Rows.of(batch, "cpu")


def forward(model, rows):
    return model(rows.tokens, positions_bt=rows.positions, documents_bt=rows.documents)


def test_only_pairs_within_a_document_count(case):
    _, batch, rows = case
    expected = sum(
        max(0, int((batch.documents[row] == document).sum()) - 1)
        for row in range(len(batch.documents))
        for document in set(batch.documents[row].tolist()) - {-1}
    )
    assert int(followed(rows, 1).sum()) == expected


def test_the_loss_is_the_divergence_from_the_main_head(case):
    model, _, rows = case
    with torch.no_grad():
        output = forward(model, rows)
        loss, _ = draft_loss(model, output, rows)
    drafts = model.mtp_logits(output, rows.tokens, positions_bt=rows.positions, documents_bt=rows.documents).logits[0]
    drafts = drafts.detach()
    total, count = 0.0, 0
    for row, at in followed(rows, 1).nonzero().tolist():
        p, q = output.logits_btv[row, at + 1].softmax(-1), drafts[row, at].softmax(-1)
        total += float((p * (p / q).log()).sum())
        count += 1
    assert float(loss) == pytest.approx(total / count, rel=1e-4)


def test_frozen_means_no_gradient_outside_the_heads(case):
    model, _, rows = case
    model.zero_grad()
    output = forward(model, rows)
    with trunk_frozen(model):
        loss, _ = draft_loss(model, detached(output), rows)
    assert all(parameter.requires_grad for parameter in model.parameters())
    loss.backward()
    touched = {name for name, parameter in model.named_parameters() if parameter.grad is not None}
    assert touched
    assert all(name.startswith("mtp.") for name in touched)


def test_quality_is_a_share(case):
    model, batch, _ = case
    quality = draft_quality(model, [batch, batch], "cpu")
    assert quality == pytest.approx(draft_quality(model, [batch], "cpu"))
    assert all(0 <= value <= 1 for value in quality.values())
