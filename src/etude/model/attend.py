"""Attention over whole sequences, and every decision about which token may see which.

A row of a batch holds one document or several, one after the other. A token attends to the tokens before it in its own
document. Short rows get a mask that is added to the scores. In long rows such a mask would grow with the square of the
length, so each document is attended to by itself.

Axes: b rows, h heads of queries, g groups of keys (each group serves h / g adjacent heads), t tokens, d and v widths.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor

LONG = 2048
"""Number of tokens from which a row is long: no mask is made for it, and a CPU uses the fused kernel too."""
LONG_IN_FP32 = 512
"""The same on a CPU in fp32, where the fused kernel is faster than in bf16."""
QUERY_BLOCK = 128
"""Number of queries per matmul. Each block of queries skips the keys after it, which saves nearly half of the
scores."""

_HALVES = (torch.bfloat16, torch.float16)
_WIDEST = 256
"""Largest width of queries that the kernel for all documents at once takes."""


@dataclass(frozen=True, slots=True)
class Mask:
    """What the tokens of a batch [B, T] of whole sequences attend to: at most one of the two fields is set. With
    neither, every row is one document, whose causal mask the fused kernel makes itself."""

    bias: Tensor | None = None
    """Added to the scores, [T, T] or [B, 1, T, T]: 0 where a query may attend, else -inf."""
    documents: tuple[int, ...] | None = None
    """Lengths of the documents, row after row; together B * T."""
    bounds: Tensor | None = None
    """With `documents`, for the kernel of GPUs that takes all of them at once: where each begins in the flat list of
    tokens, and at last the number of tokens, int32."""

    @classmethod
    def build(cls, length: int, documents_bt: Tensor | None, dtype: torch.dtype, device: torch.device) -> Mask:
        """Build the mask for rows of `length` tokens. `documents_bt` holds each token's document id; None means that
        each row is one document. Where each document is attended to by itself, this waits for the device, because the
        lengths become Python numbers."""
        long = length >= (LONG_IN_FP32 if device.type == "cpu" and dtype == torch.float32 else LONG)
        at_once = device.type == "cuda" and dtype in _HALVES
        if documents_bt is not None and (long or at_once):
            lengths = document_lengths(documents_bt)
            if len(lengths) == len(documents_bt):
                return cls()
            bounds = torch.tensor((0, *accumulate(lengths)), dtype=torch.int32) if at_once else None
            return cls(documents=lengths, bounds=None if bounds is None else bounds.to(device))
        # Measured on CPU, forward and backward at T = 256: explicit blocks beat the fused kernel in bf16 and in fp32.
        if documents_bt is None and (long or device.type != "cpu"):
            return cls()
        hidden = torch.ones(length, length, dtype=torch.bool, device=device).triu(1)
        if documents_bt is not None:
            number_bt = document_starts(documents_bt).cumsum(1)
            hidden = (hidden | (number_bt[:, :, None] != number_bt[:, None, :])).unsqueeze(1)
        return cls(torch.zeros(hidden.shape, dtype=dtype, device=device).masked_fill_(hidden, float("-inf")))


def document_starts(documents_bt: Tensor) -> Tensor:
    """Return whether each token is the first of its document: of a run of equal ids in one row."""
    return F.pad(documents_bt[:, 1:] != documents_bt[:, :-1], (1, 0), value=True)


def document_lengths(documents_bt: Tensor) -> tuple[int, ...]:
    first: list[int] = document_starts(documents_bt).flatten().nonzero().squeeze(1).tolist()
    return tuple(end - begin for begin, end in pairwise((*first, documents_bt.numel())))


def attend(q_bhtd: Tensor, k_bgtd: Tensor, v_bgtv: Tensor, mask: Mask, scale: float) -> Tensor:
    """Return softmax(q k^T * scale) v, each query over the keys that the mask lets it see: [B, heads, T, V]."""
    if mask.documents is not None and mask.bounds is not None and q_bhtd.shape[-1] <= _WIDEST:
        return _attend_at_once(q_bhtd, k_bgtd, v_bgtv, mask.bounds, max(mask.documents), scale)
    if mask.documents is not None:
        return _attend_by_document(q_bhtd, k_bgtd, v_bgtv, mask.documents, scale)
    if mask.bias is not None and q_bhtd.is_cpu:
        return _attend_in_blocks(q_bhtd, k_bgtd, v_bgtv, mask.bias, scale)
    return _attend_fused(q_bhtd, k_bgtd, v_bgtv, mask.bias, scale)


def _attend_in_blocks(q_bhtd: Tensor, k_bgtd: Tensor, v_bgtv: Tensor, bias: Tensor, scale: float) -> Tensor:
    q_bgntd = (q_bhtd * scale).unflatten(1, (k_bgtd.shape[1], -1))
    k_t, v, bias = k_bgtd.contiguous().mT.unsqueeze(2), v_bgtv.contiguous().unsqueeze(2), bias.unsqueeze(-3)
    blocks, start = [], 0
    for queries in q_bgntd.split(QUERY_BLOCK, dim=3):
        end = start + queries.shape[3]
        # The gradient of a slice is a zero-filled copy of the full tensor, so the last block is not sliced.
        last = end == q_bgntd.shape[3]
        scores = (queries @ (k_t if last else k_t[..., :end])).add_(bias[..., start:end, :end])
        blocks.append(scores.softmax(-1) @ (v if last else v[..., :end, :]))
        start = end
    return (blocks[0] if len(blocks) == 1 else torch.cat(blocks, dim=3)).flatten(1, 2)


def _attend_fused(q_bhtd: Tensor, k_bgtd: Tensor, v_bgtv: Tensor, bias: Tensor | None, scale: float) -> Tensor:
    q, k, v = _of_one_width(q_bhtd, k_bgtd, v_bgtv)
    shared = q.shape[1] // k.shape[1]
    if bias is not None and shared > 1:
        # On GPUs no fused kernel takes both a mask and keys that heads share.
        k, v, shared = k.repeat_interleave(shared, 1), v.repeat_interleave(shared, 1), 1
    y = F.scaled_dot_product_attention(
        q, k, v, attn_mask=bias, is_causal=bias is None, scale=scale, enable_gqa=shared > 1
    )
    return y[..., : v_bgtv.shape[-1]]


def _attend_by_document(
    q_bhtd: Tensor, k_bgtd: Tensor, v_bgtv: Tensor, documents: tuple[int, ...], scale: float
) -> Tensor:
    """Attend in each document alone, which also saves the scores between documents."""
    # `split`, because its gradient joins the parts; a slice's gradient would fill a tensor of the whole length.
    flat = (x.transpose(1, 2).flatten(0, 1).split(documents) for x in _of_one_width(q_bhtd, k_bgtd, v_bgtv))
    mixed = []
    for part in zip(*flat, strict=True):
        q, k, v = (x_thd.transpose(0, 1).unsqueeze(0) for x_thd in part)
        mixed.append(_attend_fused(q, k, v, None, scale).squeeze(0).transpose(0, 1))
    y_bhtv: Tensor = torch.cat(mixed).unflatten(0, (len(q_bhtd), -1)).transpose(1, 2)
    return y_bhtv[..., : v_bgtv.shape[-1]]


def _attend_at_once(
    q_bhtd: Tensor, k_bgtd: Tensor, v_bgtv: Tensor, bounds: Tensor, longest: int, scale: float
) -> Tensor:
    """Attend in all documents with one call of a kernel that only GPUs have."""
    varlen_attn, shares_keys = _varlen()
    q, k, v = _of_one_width(q_bhtd, k_bgtd, v_bgtv)
    shared: dict[str, bool] = {}
    if q.shape[1] != k.shape[1]:
        shared = {"enable_gqa": True} if shares_keys else {}
        if not shares_keys:
            k, v = (x.repeat_interleave(q.shape[1] // k.shape[1], 1) for x in (k, v))
    q, k, v = (x.transpose(1, 2).flatten(0, 1) for x in (q, k, v))
    y = varlen_attn(q, k, v, bounds, bounds, longest, longest, scale=scale, window_size=(-1, 0), **shared)
    y_bhtv: Tensor = y.unflatten(0, (len(q_bhtd), -1)).transpose(1, 2)
    return y_bhtv[..., : v_bgtv.shape[-1]]


@functools.cache
def _varlen() -> tuple[Callable[..., Tensor], bool]:
    """Return torch's kernel, and whether it takes keys that heads share; torch 2.11's does not say so."""
    from torch.nn.attention.varlen import varlen_attn  # here, because it takes a second

    return cast(Callable[..., Tensor], varlen_attn), "enable_gqa" in inspect.signature(varlen_attn).parameters


def _of_one_width(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Pad the last axes with zeros to one width, which the kernels that do not store the scores require. The padding
    does not change the result."""
    width = max(q.shape[-1], v.shape[-1])
    q, k, v = (x if x.shape[-1] == width else F.pad(x, (0, width - x.shape[-1])) for x in (q, k, v))
    return q, k, v
