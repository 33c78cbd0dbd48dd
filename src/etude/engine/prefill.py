"""Prompts into the cache: copies first, then the missing tails, grouped by similar length with bounded padding.

The last token of a prompt is not prefilled but fed by the first decode step, so that a prompt that is wholly in the
cache costs nothing here and no pass over a prompt has to compute logits.
"""

from __future__ import annotations

from collections import defaultdict

import numpy as np
import torch

from etude.engine.rows import Ints, Rows
from etude.engine.scheduler import Admission
from etude.model import LatentCache, Transformer

PADDING = 0.25
"""The largest share of a group's tokens that may be padding; a pass over a few tokens more is cheaper than another."""
SMALL = 16
"""Tails up to this length share a group whatever their padding."""
TOKENS_AT_ONCE = 8192


def group_by_length(lengths: list[int]) -> list[list[int]]:
    """Indices of `lengths` (all positive) in groups, longest first."""
    groups: list[list[int]] = []
    longest = total = 0
    for index in sorted(range(len(lengths)), key=lambda i: (-lengths[i], i)):
        length = lengths[index]
        if groups:
            padded = longest * (len(groups[-1]) + 1)
            waste = 1 - (total + length) / padded
            if padded <= TOKENS_AT_ONCE and (waste <= PADDING or longest <= SMALL):
                groups[-1].append(index)
                total += length
                continue
        groups.append([index])
        longest = total = length
    return groups


def carry_out(
    admissions: list[Admission], rows: Rows, model: Transformer, cache: LatentCache, *, drafting: bool
) -> int:
    """Makes the rows of all admissions ready to decode; returns the number of tokens that were prefilled."""
    prefilled = 0
    for wave in range(max(a.wave for a in admissions) + 1):
        members = [a for a in admissions if a.wave == wave]
        _copy(members, rows, cache)
        # With a draft head the hidden states of a prompt are needed up to the token before its last.
        tails = [a for a in members if a.request.prompt.size - 1 > a.reused]
        lengths = [a.request.prompt.size - 1 - a.reused for a in tails]
        for group in group_by_length(lengths):
            at = np.array([tails[i].row for i in group])
            starts = np.array([tails[i].reused for i in group])
            _feed(at, starts, np.array([lengths[i] for i in group]), rows, model, cache, drafting=drafting)
        prefilled += sum(lengths)
    return prefilled


def _copy(admissions: list[Admission], rows: Rows, cache: LatentCache) -> None:
    shared: dict[tuple[int, int], list[int]] = defaultdict(list)
    for admission in admissions:
        if admission.source != admission.row:
            shared[admission.source, admission.reused].append(admission.row)
    for (source, length), targets in shared.items():
        cache.copy_prefix(source, targets, length)
        rows.experts[targets, :length] = rows.experts[source, :length]


def _feed(
    at: Ints, starts: Ints, lengths: Ints, rows: Rows, model: Transformer, cache: LatentCache, *, drafting: bool
) -> None:
    width = int(lengths.max())
    offsets = np.arange(width)
    real_bn = offsets < lengths[:, None]
    positions_bn = np.minimum(starts[:, None] + offsets, cache.context - 1)
    tokens_bn = torch.from_numpy(rows.tokens[at[:, None], positions_bn])
    slots, begins, counts = torch.from_numpy(at), torch.from_numpy(starts), torch.from_numpy(lengths)
    window = int((starts + lengths).max())
    out = model.extend(tokens_bn, slots, begins, counts, cache, window=window, logits="none")
    if drafting:
        following_bn = torch.from_numpy(rows.tokens[at[:, None], positions_bn + 1])
        model.draft(out.hidden_bnh, following_bn, slots, begins, cache, lengths_b=counts, window=window)
    if rows.experts.shape[2]:
        owner_bn = np.broadcast_to(at[:, None], positions_bn.shape)
        experts = out.experts_bnlk.numpy().astype(np.uint16)
        rows.experts[owner_bn[real_bn], positions_bn[real_bn]] = experts[real_bn]
