"""Losses against their plain definitions, gradients included."""

import pytest
import torch
import torch.nn.functional as F

from etude.training import draft_agreement, kl_to_teacher, linear_cross_entropy, weighted_cross_entropy


def given_rows(n=37, hidden=8, vocab=19):
    generator = torch.Generator().manual_seed(0)
    return (
        torch.randn(n, hidden, generator=generator, requires_grad=True),
        torch.randn(vocab, hidden, generator=generator, requires_grad=True),
        torch.randint(0, vocab, (n,), generator=generator),
        torch.rand(n, generator=generator) * (torch.rand(n, generator=generator) > 0.3),
    )


def test_weighted_cross_entropy_is_a_weighted_mean():
    hidden, head, targets, weights = given_rows()
    logits = hidden @ head.T
    single = torch.stack([F.cross_entropy(row, target) for row, target in zip(logits, targets, strict=True)])
    expected = (single * weights).sum() / weights.sum()
    assert torch.allclose(weighted_cross_entropy(logits[None], targets[None], weights[None]), expected)
    assert weighted_cross_entropy(logits, targets, torch.zeros(37)) == 0


@pytest.mark.parametrize("chunk", [1, 5, 37, 100])
def test_chunks_change_neither_loss_nor_gradients(chunk):
    hidden, head, targets, weights = given_rows()
    expected = weighted_cross_entropy(hidden @ head.T, targets, weights)
    wanted = torch.autograd.grad(2 * expected, (hidden, head))
    found = linear_cross_entropy(hidden, head, targets, weights, chunk=chunk)
    assert torch.allclose(found, expected)
    for left, right in zip(torch.autograd.grad(2 * found, (hidden, head)), wanted, strict=True):
        assert torch.allclose(left, right, atol=1e-6)


def test_chunked_loss_in_bf16_is_close():
    hidden, head, targets, weights = given_rows()
    full = linear_cross_entropy(hidden, head, targets, weights)
    half = linear_cross_entropy(hidden.bfloat16(), head.bfloat16(), targets, weights, chunk=8)
    assert half.dtype == torch.float32
    assert torch.allclose(full, half, rtol=0.02)


@pytest.mark.parametrize("chunk", [4, 50])
def test_kl_is_zero_for_equals_and_teaches_the_student_only(chunk):
    generator = torch.Generator().manual_seed(2)
    student = torch.randn(11, 7, generator=generator, requires_grad=True)
    teacher = torch.randn(11, 7, generator=generator, requires_grad=True)
    weights = torch.arange(11) % 2 * 1.0
    assert float(kl_to_teacher(teacher, teacher, weights, chunk=chunk).detach()) == pytest.approx(0, abs=1e-6)
    loss = kl_to_teacher(student, teacher, weights, chunk=chunk)
    p, q = teacher.softmax(-1), student.softmax(-1)
    assert torch.allclose(loss, ((p * (p / q).log()).sum(-1) * weights).sum() / weights.sum())
    loss.backward()
    assert teacher.grad is None
    assert (student.grad[weights == 0] == 0).all()
    assert (student.grad[weights > 0] != 0).any()


def test_draft_agreement():
    main = torch.log(torch.tensor([[0.5, 0.5], [0.9, 0.1], [0.2, 0.8]]))
    draft = torch.log(torch.tensor([[0.25, 0.75], [0.6, 0.4], [0.9, 0.1]]))
    accepted, same = draft_agreement(draft, main, torch.tensor([1.0, 1.0, 0.0]))
    assert accepted == pytest.approx(0.75 + 0.7)
    assert same in (1.0, 2.0)  # the first row is a tie
