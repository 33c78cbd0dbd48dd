"""Next-token and distillation losses.

`linear_cross_entropy` goes through the positions in chunks and computes the gradients together with the loss, so it
needs memory for the logits of one chunk only, whatever the sequence length.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

CHUNK = 2048


def weighted_cross_entropy(logits_btv: Tensor, targets_bt: Tensor, weights_bt: Tensor) -> Tensor:
    """Return the weighted mean cross-entropy: sum of weight * loss / sum of weights, or 0 if every weight is 0."""
    losses = F.cross_entropy(logits_btv.flatten(0, -2).float(), targets_bt.flatten(), reduction="none")
    weights = weights_bt.flatten()
    return (losses * weights).sum() / weights.sum().clamp_min(1e-6)


def linear_cross_entropy(
    hidden_nh: Tensor, head_vh: Tensor, targets_n: Tensor, weights_n: Tensor, *, chunk: int = CHUNK
) -> Tensor:
    """Return `weighted_cross_entropy(hidden @ head.T, ...)`, computed without materialising all logits."""
    loss: Tensor = _LinearCrossEntropy.apply(hidden_nh, head_vh, targets_n, weights_n, chunk)
    return loss


class _LinearCrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, hidden: Tensor, head: Tensor, targets: Tensor, weights: Tensor, chunk: int) -> Tensor:
        scale = weights / weights.sum().clamp_min(1e-6)
        total = torch.zeros((), device=hidden.device)
        wanted = any(ctx.needs_input_grad)
        grad_hidden = torch.empty_like(hidden) if wanted else None
        grad_head = torch.zeros(head.shape, device=head.device) if wanted else None
        for start in range(0, hidden.shape[0], chunk):
            part = slice(start, start + chunk)
            logits = (hidden[part] @ head.T).float()
            logs = F.log_softmax(logits, dim=-1)
            picked = logs.gather(1, targets[part].unsqueeze(1)).squeeze(1)
            total -= (picked * scale[part]).sum()
            if grad_hidden is not None and grad_head is not None:
                slope = logs.exp_()
                slope.scatter_add_(1, targets[part].unsqueeze(1), -torch.ones_like(picked).unsqueeze(1))
                slope.mul_(scale[part].unsqueeze(1))
                slope = slope.to(hidden.dtype)
                grad_hidden[part] = slope @ head
                grad_head += slope.T @ hidden[part]
        ctx.save_for_backward(grad_hidden, None if grad_head is None else grad_head.to(head.dtype))
        return total

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, None, None, None]:
        grad_hidden, grad_head = ctx.saved_tensors
        return grad_hidden * grads[0].to(grad_hidden.dtype), grad_head * grads[0].to(grad_head.dtype), None, None, None


def kl_to_teacher(student_nv: Tensor, teacher_nv: Tensor, weights_n: Tensor, *, chunk: int = CHUNK) -> Tensor:
    """Return the weighted mean over positions of KL(teacher || student), from logits. The teacher gets no gradient."""
    total = student_nv.new_zeros((), dtype=torch.float32)
    for start in range(0, student_nv.shape[0], chunk):
        part = slice(start, start + chunk)
        with torch.no_grad():
            target = F.log_softmax(teacher_nv[part].float(), dim=-1)
        logs = F.log_softmax(student_nv[part].float(), dim=-1)
        divergence = F.kl_div(logs, target, reduction="none", log_target=True).sum(-1)
        total = total + (divergence * weights_n[part]).sum()
    return total / weights_n.sum().clamp_min(1e-6)


@torch.no_grad()
def draft_agreement(draft_nv: Tensor, main_nv: Tensor, weights_n: Tensor) -> tuple[float, float]:
    """Return two weighted sums over positions, which measure how well a draft head predicts the main head: the
    probability that a drafted token is accepted (the sum over the vocabulary of the smaller of both probabilities), and
    how often both heads have the same argmax."""
    draft, main = draft_nv.float().softmax(-1), main_nv.float().softmax(-1)
    accepted = torch.minimum(draft, main).sum(-1)
    same = (draft_nv.argmax(-1) == main_nv.argmax(-1)).float()
    return float((accepted * weights_n).sum()), float((same * weights_n).sum())
