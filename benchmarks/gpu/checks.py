"""Checks that the model computes the same on a GPU as on the CPU. Each check returns a line of findings, or raises."""

from __future__ import annotations

import copy
from collections.abc import Callable

import torch
from shapes import CHECKED

from etude.model import UNKNOWN, Cache, Replay, Transformer

TOLERANCE = 1e-4


def pair(device: str) -> tuple[Transformer, Transformer]:
    """Return the same network on the CPU and on the device."""
    here = Transformer(CHECKED).initialise(1)
    return here, copy.deepcopy(here).to(device)


def tokens(batch: int, length: int) -> torch.Tensor:
    return torch.randint(0, CHECKED.vocab_size, (batch, length), generator=torch.Generator().manual_seed(0))


def apart(there: torch.Tensor, here: torch.Tensor, tolerance: float = TOLERANCE) -> str:
    got, wanted = there.detach().float().cpu(), here.detach().float()
    torch.testing.assert_close(got, wanted, rtol=tolerance, atol=tolerance)
    return f"largest difference {float((got - wanted).abs().max()):.2e}"


def forward_equals_cpu(device: str) -> str:
    here, there = pair(device)
    asked = tokens(4, 64)
    return apart(there(asked.to(device)).logits_btv, here(asked).logits_btv)


def packed_forward_equals_cpu(device: str) -> str:
    here, there = pair(device)
    asked = tokens(2, 96)
    documents = (torch.arange(96) // 32).expand(2, -1).contiguous()
    there_logits = there(asked.to(device), documents_bt=documents.to(device)).logits_btv
    return apart(there_logits, here(asked, documents_bt=documents).logits_btv)


def replayed_forward_equals_cpu(device: str) -> str:
    here, there = pair(device)
    asked = tokens(2, 48)
    experts = here(tokens(2, 48).flip(1)).experts_btlk.clone()
    experts[:, -1] = int(UNKNOWN)
    output = here(asked, replay=Replay(experts, "filter", 0.9))
    other = there(asked.to(device), replay=Replay(experts.to(device), "filter", 0.9))
    for marks, found in ((output.overridden_bt, other.overridden_bt), (output.refused_bt, other.refused_bt)):
        assert torch.equal(marks, found.cpu())
    counts = f"{int(output.overridden_bt.sum())} tokens overridden, {int(output.refused_bt.sum())} refused"
    return f"{apart(other.logits_btv, output.logits_btv)}, {counts}"


def gradients_equal_cpu(device: str) -> str:
    here, there = pair(device)
    asked = tokens(2, 48)
    for model, place in ((here, "cpu"), (there, device)):
        output = model(asked.to(place))
        loss = output.logits_btv.logsumexp(-1).mean()
        for logits in model.mtp_logits(output, asked.to(place)).logits:
            loss = loss + logits.logsumexp(-1).mean()
        loss.backward()
    named = dict(there.named_parameters())
    worst = 0.0
    for name, parameter in here.named_parameters():
        if parameter.grad is not None:
            other = named[name].grad
            assert other is not None, name
            worst = max(worst, float((other.cpu() - parameter.grad).abs().max()))
    assert worst < TOLERANCE, worst
    return f"largest difference {worst:.2e}"


def extend_equals_forward(device: str) -> str:
    _, there = pair(device)
    asked = tokens(3, 40).to(device)
    whole = there(asked).logits_btv
    return apart(extended(there, asked), whole.cpu())


def extended(model: Transformer, asked: torch.Tensor) -> torch.Tensor:
    """Logits of `model.extend` on the cache: all but the last eight tokens at once, then one token at a time."""
    device, (rows, length) = asked.device, asked.shape
    cache = Cache(model.config, rows, 64, device=device)
    slots = torch.arange(rows, device=device)
    parts = []
    for first, last in [(0, length - 8), *((place, place + 1) for place in range(length - 8, length))]:
        starts = torch.full((rows,), first, device=device)
        lengths = torch.full((rows,), last - first, device=device)
        step = cache.step(slots, starts, lengths)
        fed = asked[step.rows_t, step.positions_t.clamp(max=length - 1)]
        wanted = (step.first_b[:, None] + torch.arange(last - first, device=device)).flatten()
        parts.append(model.extend(fed, step, wanted).logits_rv.unflatten(0, (rows, -1)))
    return torch.cat(parts, dim=1)


def bf16_is_near_fp32(device: str) -> str:
    here, there = pair(device)
    asked = tokens(4, 64)
    logits = there.to(torch.bfloat16)(asked.to(device)).logits_btv
    wanted = here(asked).logits_btv.detach()
    off = float((logits.detach().cpu() - wanted).norm() / wanted.norm())
    logits.square().sum().backward()
    finite = all(p.grad is None or bool(p.grad.isfinite().all()) for p in there.parameters())
    assert off < 0.1, off
    assert finite, "gradients that are not finite"
    return f"relative difference {off:.3f}"


CHECKS: tuple[Callable[[str], str], ...] = (
    forward_equals_cpu,
    packed_forward_equals_cpu,
    replayed_forward_equals_cpu,
    gradients_equal_cpu,
    extend_equals_forward,
    bf16_is_near_fp32,
)
