"""Losses of hidden states under the output head, without the logits of all positions.

Logits exist for one chunk of positions at a time. Its loss and gradients are computed together, and the backward pass
only hands the gradients on. Positions of weight 0 are left out before anything is computed. On a CPU all chunks use the
same memory, since fresh memory costs as much time as reading and writing it a dozen times.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor

from etude.model.head import Head
from etude.model.tiles import product

CHUNK_BYTES = 2**27
"""Maximum size of a chunk's logits."""
_CHUNK_ROWS = 2048
"""Maximum number of positions in a chunk; with small vocabularies, larger chunks would only leave the CPU's caches."""

Objective = Callable[[Tensor, Tensor], tuple[Tensor, Tensor, Tensor]]
"""Given fp32 logits [n, V] and the indices of these n positions, returns the sum of the positions' losses, and its
gradient by the logits as two factors: one of each logit [n, V], one of each position [n, 1]. The logits may be
overwritten."""


def head_loss(
    hidden_nh: Tensor, head: Head, positions: Tensor, objective: Objective, *, chunk: int | None = None
) -> Tensor:
    """Return the sum of an objective over `positions`, which are indices of rows of `hidden_nh`, each at most once.
    `chunk` is the number of positions whose logits exist at once; None chooses it by CHUNK_BYTES."""
    operands = hidden_nh, head.weight_vh
    if not torch.is_grad_enabled():  # an autograd function is not told, and would compute the gradients all the same
        operands = hidden_nh.detach(), head.weight_vh.detach()
    chunk = chunk or chunk_rows(len(head.weight_vh), cuda=head.weight_vh.is_cuda)
    return cast(Tensor, _HeadLoss.apply(*operands, head.widened(), positions, objective, chunk))


def head_cross_entropy(
    hidden_nh: Tensor,
    head: Head,
    targets_n: Tensor,
    weights_n: Tensor,
    *,
    total: Tensor | None = None,
    chunk: int | None = None,
) -> Tensor:
    """Return the weighted mean cross-entropy: the sum of weight * loss, divided by `total`; 0 if every weight is 0.
    `total` is the sum of the weights by default, and that of the whole batch where these rows are a part of one."""
    positions, scale_n = _weighted(weights_n, total)

    def objective(logits_nv: Tensor, part: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        chosen, scale = targets_n[part, None], scale_n[part, None]
        below = logits_nv.gather(1, chosen) - logits_nv.amax(-1, keepdim=True)
        # On a CPU in place. The largest probability is the inverse of the sum of exponentials.
        found = torch.softmax(logits_nv, -1, out=logits_nv if logits_nv.is_cpu else None)
        loss = -((below + found.amax(-1, keepdim=True).log()) * scale).sum()
        return loss, slope_of_chosen(found, chosen), scale

    return head_loss(hidden_nh, head, positions, objective, chunk=chunk)


def head_divergence(
    student_nh: Tensor,
    teacher_nh: Tensor,
    head: Head,
    weights_n: Tensor,
    *,
    total: Tensor | None = None,
    chunk: int | None = None,
) -> tuple[Tensor, Tensor]:
    """Return the weighted mean over positions of KL(teacher || student), and of the probability that the teacher
    accepts a token drafted by the student: the sum over the vocabulary of the smaller of both probabilities.

    Both predict by the same head. The teacher gets no gradient, neither does the second value. `total` is that of
    `head_cross_entropy`."""
    positions, scale_n = _weighted(weights_n, total)
    teacher_nh, wide = teacher_nh.detach(), head.widened()
    accepted = torch.zeros((), device=student_nh.device)

    def objective(logits_nv: Tensor, part: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        scale = scale_n[part]
        logs, target = F.log_softmax(logits_nv, dim=-1), F.log_softmax(wide.product(teacher_nh[part]), dim=-1)
        taught = torch.exp(target, out=logits_nv)
        divergence = target.sub_(logs).mul_(taught).sum(-1)
        found = logs.exp_()
        accepted.add_((torch.minimum(found, taught, out=target).sum(-1) * scale).sum())
        return (divergence * scale).sum(), found.sub_(taught), scale.unsqueeze(1)

    return head_loss(student_nh, wide, positions, objective, chunk=chunk), accepted


def slope_of_chosen(probabilities_nv: Tensor, chosen_n1: Tensor) -> Tensor:
    """Return the gradient, by the logits, of -log-prob of each position's chosen token. Overwrites the
    probabilities."""
    minus = torch.full_like(chosen_n1, -1, dtype=probabilities_nv.dtype)
    return probabilities_nv.scatter_add_(1, chosen_n1, minus)


@torch.no_grad()
def head_logprobs(hidden_nh: Tensor, head: Head, tokens_n: Tensor, temperature: float) -> Tensor:
    """Return the log-probs of the tokens, each under its row of hidden states."""
    wide, found_n = head.widened(), hidden_nh.new_empty(len(tokens_n), dtype=torch.float32)
    for part in torch.arange(len(tokens_n), device=hidden_nh.device).split(
        chunk_rows(len(head.weight_vh), cuda=head.weight_vh.is_cuda)
    ):
        logs = F.log_softmax(tempered(wide.product(hidden_nh[part]), temperature), dim=-1)
        found_n[part] = logs.gather(1, tokens_n[part].unsqueeze(1)).squeeze(1)
    return found_n


def tempered(logits_nv: Tensor, temperature: float) -> Tensor:
    """Divide logits by the temperature, in place."""
    return logits_nv if temperature == 1 else logits_nv.div_(temperature)


@torch.no_grad()
def head_agreement(one_nh: Tensor, other_nh: Tensor, head: Head, weights_n: Tensor) -> Tensor:
    """Return the weighted number of positions at which the same token is the most likely one by both hidden states."""
    positions, wide = weights_n.nonzero().squeeze(1), head.widened()
    same = torch.zeros((), device=one_nh.device)
    for part in positions.split(chunk_rows(len(head.weight_vh), cuda=head.weight_vh.is_cuda)):
        tokens, others = (wide.product(hidden_nh[part]).argmax(-1) for hidden_nh in (one_nh, other_nh))
        same += ((tokens == others) * weights_n[part]).sum()
    return same


def _weighted(weights_n: Tensor, total: Tensor | None) -> tuple[Tensor, Tensor]:
    """Return the positions that have a weight, and the factor of every position's loss in the mean."""
    scale_n = weights_n / (weights_n.sum() if total is None else total).clamp_min(1e-6)
    return weights_n.nonzero().squeeze(1), scale_n


def chunk_rows(vocabulary: int, *, cuda: bool = False) -> int:
    """Return how many positions have logits at once. On a GPU more, since each chunk adds a gradient of the head's
    size."""
    share = CHUNK_BYTES // (4 * vocabulary)
    return max(16, 4 * share if cuda else min(_CHUNK_ROWS, share))


class _HeadLoss(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, weight: Tensor, head: Head, positions: Tensor, objective: Objective, chunk: int
    ) -> Tensor:
        total = torch.zeros((), device=hidden.device)
        to_hidden, to_head = ctx.needs_input_grad[:2]
        grad_hidden = torch.zeros_like(hidden) if to_hidden else None
        grad_head = torch.zeros(weight.shape, device=weight.device) if to_head else None
        room = hidden.new_empty(min(chunk, len(positions)), len(weight), dtype=torch.float32) if hidden.is_cpu else None
        for part in positions.split(chunk):
            rows = hidden[part]
            loss, slope, factor = objective(head.product(rows, room), part)
            total += loss
            slope = slope.to(hidden.dtype)
            if grad_hidden is not None:
                grad_hidden[part] = (product(slope, weight) * factor).to(hidden.dtype)
            if grad_head is None:
                continue
            rows = (rows * factor).to(hidden.dtype)
            if slope.dtype == torch.float32 and not head.invariant:
                grad_head.addmm_(slope.T, rows)
            else:
                grad_head += product(slope.T, rows)
        # Not as saved tensors, so that the backward pass may overwrite them: the head's is as large as the head.
        ctx.found = grad_hidden, None if grad_head is None else grad_head.to(weight.dtype)
        return total

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        if ctx.found is None:
            raise RuntimeError("the gradients of a head loss can be taken once only")
        (dx, dw), ctx.found = ctx.found, None
        for slope in (dx, dw):
            if slope is not None:
                slope.mul_(grads[0].to(slope.dtype))
        return dx, dw, None, None, None, None
