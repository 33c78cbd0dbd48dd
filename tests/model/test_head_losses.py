"""Losses under the output head against their definitions on all logits, gradients included."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from etude.model import Head, head_agreement, head_cross_entropy, head_divergence

ROWS, WIDTH, VOCAB = 37, 8, 19
CHUNKS = [1, 5, ROWS, 100]


def random(*shape: int, seed: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).requires_grad_()


HIDDEN, TEACHER, WEIGHT = random(ROWS, WIDTH, seed=0), random(ROWS, WIDTH, seed=1), random(VOCAB, WIDTH, seed=2)
TARGETS = torch.randint(0, VOCAB, (ROWS,), generator=torch.Generator().manual_seed(3))
WEIGHTS = random(ROWS, seed=4).detach().clamp_min(0)
"""About half of the positions have no weight."""


def plain_cross_entropy(hidden: Tensor, weight: Tensor, total: float) -> Tensor:
    return (F.cross_entropy(hidden @ weight.T, TARGETS, reduction="none") * WEIGHTS).sum() / total


def plain_divergence(hidden: Tensor, weight: Tensor, total: float) -> Tensor:
    p, q = (TEACHER @ weight.T).softmax(-1).detach(), (hidden @ weight.T).softmax(-1)
    return ((p * (p / q).log()).sum(-1) * WEIGHTS).sum() / total


def same_gradients(found: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)
    pairs = [torch.autograd.grad(2 * loss, (HIDDEN, WEIGHT)) for loss in (found, expected)]
    for ours, theirs in zip(*pairs, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("total", [None, 100.0])
@pytest.mark.parametrize("chunk", CHUNKS)
def test_chunks_change_neither_loss_nor_gradients(chunk: int, total: float | None) -> None:
    divisor, whole = total or float(WEIGHTS.sum()), None if total is None else torch.tensor(total)
    found = head_cross_entropy(HIDDEN, Head(WEIGHT), TARGETS, WEIGHTS, total=whole, chunk=chunk)
    same_gradients(found, plain_cross_entropy(HIDDEN, WEIGHT, divisor))
    loss, accepted = head_divergence(HIDDEN, TEACHER, Head(WEIGHT), WEIGHTS, total=whole, chunk=chunk)
    same_gradients(loss, plain_divergence(HIDDEN, WEIGHT, divisor))
    probabilities = [(hidden @ WEIGHT.T).softmax(-1) for hidden in (HIDDEN, TEACHER)]
    overlap = (torch.minimum(*probabilities).sum(-1) * WEIGHTS).sum() / divisor
    torch.testing.assert_close(accepted, overlap.detach())


def test_equals_do_not_diverge_and_agree_everywhere() -> None:
    loss, accepted = head_divergence(HIDDEN, HIDDEN, Head(WEIGHT), WEIGHTS)
    assert float(loss.detach()) == pytest.approx(0, abs=1e-6)
    assert float(accepted) == pytest.approx(1)
    assert head_agreement(HIDDEN, HIDDEN, Head(WEIGHT), WEIGHTS) == pytest.approx(float(WEIGHTS.sum()))
    other = HIDDEN.detach().clone()
    other[0] = -other[0]
    assert head_agreement(HIDDEN, other, Head(WEIGHT), torch.ones(ROWS)) == ROWS - 1


def test_no_weight_is_no_loss() -> None:
    nothing = torch.zeros(ROWS)
    losses = (
        head_cross_entropy(HIDDEN, Head(WEIGHT), TARGETS, nothing),
        *head_divergence(HIDDEN, TEACHER, Head(WEIGHT), nothing),
    )
    assert [float(loss.detach()) for loss in losses] == [0, 0, 0]
    gradients = torch.autograd.grad(losses[0] + losses[1], (HIDDEN, WEIGHT))
    assert all((gradient == 0).all() for gradient in gradients)


def test_a_frozen_head_and_the_teacher_get_no_gradient() -> None:
    teacher = TEACHER.detach().clone().requires_grad_()
    loss, _ = head_divergence(HIDDEN, teacher, Head(WEIGHT.detach()), WEIGHTS)
    expected = torch.autograd.grad(plain_divergence(HIDDEN, WEIGHT, float(WEIGHTS.sum())), HIDDEN)[0]
    found, taught = torch.autograd.grad(loss, (HIDDEN, teacher), allow_unused=True)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)
    assert taught is None


@pytest.mark.parametrize("invariant", [False, True])
def test_in_bf16_the_loss_is_that_of_exact_logits(invariant: bool) -> None:
    hidden, weight = (4 * HIDDEN).detach().bfloat16(), WEIGHT.detach().bfloat16()
    losses = F.cross_entropy(hidden.double() @ weight.double().T, TARGETS, reduction="none")
    loss = head_cross_entropy(hidden, Head(weight, invariant), TARGETS, WEIGHTS, chunk=8)
    assert float(loss) == pytest.approx(float((losses * WEIGHTS).sum() / WEIGHTS.sum()), rel=1e-6)


def test_a_token_whose_probability_is_zero_in_fp32_has_its_loss() -> None:
    hidden, weight = torch.tensor([[100.0], [1.0]]), torch.tensor([[1.0], [-1.0], [0.5]])
    loss = head_cross_entropy(hidden, Head(weight), torch.tensor([1, 2]), torch.tensor([1.0, 0.0]))
    assert float(loss) == pytest.approx(200)


class Made(TorchDispatchMode):
    """Counts the tensors of a shape that operations make in memory of their own."""

    def __init__(self, *shape: int) -> None:
        super().__init__()
        self.shape, self.count = shape, 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = func(*args, **(kwargs or {}))
        if isinstance(found, Tensor) and tuple(found.shape) == self.shape and func.is_view is False:
            given = [x for x in (*args, *(kwargs or {}).values()) if isinstance(x, Tensor)]
            self.count += all(x.data_ptr() != found.data_ptr() for x in given)
        return found


def test_all_chunks_have_their_logits_in_the_same_memory() -> None:
    with Made(5, VOCAB) as made:
        head_cross_entropy(HIDDEN[:20], Head(WEIGHT), TARGETS[:20], torch.ones(20), chunk=5)
    assert made.count == 1


def test_without_gradients_none_are_computed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("etude.model.head_losses.product", None)
    with torch.no_grad():
        head_cross_entropy(HIDDEN, Head(WEIGHT), TARGETS, WEIGHTS)


def test_the_gradients_of_a_loss_are_taken_once() -> None:
    hidden = torch.randn(5, 4, requires_grad=True)
    loss = head_cross_entropy(hidden, Head(torch.randn(7, 4)), torch.arange(5), torch.ones(5))
    loss.backward(retain_graph=True)
    with pytest.raises(RuntimeError, match="once"):
        loss.backward()
