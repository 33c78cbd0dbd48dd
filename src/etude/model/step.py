"""The plan of one forward pass with the cache: rows of any length, laid out as one flat list of tokens.

Everything done per token (projections, norms, experts) runs once over the whole list. Only attention needs rows: each
row is cut into pieces of equal width, and pieces of similar context length form a part, whose attention is one call. So
decoding rows and new prompts share a pass with little padding.

A plan is made on the CPU, which knows all lengths, and goes to the cache's device in one copy.

Invariants: a row's tokens are adjacent; only its last piece is padded; the entries of padding go to the cache's spare
slot and are never read. The number of pieces and the context window of a part are rounded up so that few shapes occur:
the first matmul of a shape costs several times as much as later ones.

In `invariant` mode, where no row's result may depend on the other rows, `Step.plan_tight` makes a list without padding,
and pieces.py cuts it into pieces.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from etude.model.errors import CacheOverrun
from etude.model.pieces import Pieces, attend_pieces
from etude.model.transfer import to_device

NARROW, WIDE = 2, 8
"""Tokens per narrow and per wide piece. Narrow pieces are for decoding sequences, which feed one token and perhaps a
draft; if most sequences feed a single token, narrow pieces have one token too."""
PIECES_STEP = 8
"""Multiple to which the number of narrow pieces in a pass is rounded up, and that of wide ones. A smaller number stays
as it is."""
WINDOW_STEP = 64
"""Multiple to which a part's context window, the cached positions read per piece, is rounded up."""
CHUNK = 64
"""Number of tokens, padding included, in a group of adjacent pieces that share one context window. Smaller groups would
save less attention than their additional calls cost."""
NUMBERS_AT_ONCE = 1 << 23
"""Maximum number of numbers that a part gathers from the cache, which bounds memory, unless one piece needs more."""
NUMBERS_AT_ONCE_ON_GPU = 1 << 28
"""The same on a GPU, where each part's calls take as long as the work of a small part."""


class PlannedCache(Protocol):
    """The attributes of Cache (cache.py) that planning a `Step` needs."""

    slots: int
    context: int
    heads: int
    entries: Tensor

    def scratch(self, pieces: int, window: int) -> Tensor: ...


@dataclass(frozen=True, slots=True)
class Part:
    """Adjacent pieces of a pass's sequences, equal in width and context window. Their attention is computed in one
    call."""

    first: int
    """Index of the part's first token in the step's list; its other tokens follow."""
    width: int
    """Tokens per piece, padding included."""
    slots_p: Tensor
    """The cache slot of each piece's sequence."""
    bias_xns: Tensor
    """Mask to add to the scores, [pieces * groups, tokens * heads of a group, window]: 0 where a token may attend, else
    -inf."""
    scratch_pgsw: Tensor
    """Buffer for the entries that this part's pieces attend to, [pieces, groups, window, width], copied from the cache.
    All layers and steps reuse its memory."""

    @property
    def end(self) -> int:
        return self.first + self.slots_p.numel() * self.width


@dataclass(frozen=True, slots=True)
class Step:
    """The plan of one pass: row b feeds lengths_b[b] tokens to cache slot slots_b[b], from position starts_b[b] on."""

    cache: PlannedCache
    rows_t: Tensor
    """The row (sequence) of each token in the pass's list of tokens; arbitrary for padding. As all fields but the four
    last ones, it is on the CPU."""
    positions_t: Tensor
    real_t: Tensor
    """Whether each entry of the pass's list is a real token; False for padding."""
    first_b: Tensor
    """Index of each row's first token in the pass's list of tokens; the row's other tokens follow it."""
    rotated_t: Tensor
    """The positions on the cache's device."""
    places_tg: Tensor
    """Flat index, within a layer of the cache, of each token's entry in each group."""
    parts: tuple[Part, ...]
    """The parts into which the pass's list of tokens is divided, each with one attention call. Empty in a
    batch-invariant plan, which has `pieces` instead."""
    pieces: Pieces | None = None
    """The pieces in which a batch-invariant plan computes attention; else None."""

    @classmethod
    def plan(cls, cache: PlannedCache, slots_b: Tensor, starts_b: Tensor, lengths_b: Tensor) -> Step:
        """Plan a pass with padding: the list's shapes are rounded up, so that few different matmul shapes occur."""
        ends_b = starts_b + lengths_b
        _require_room(cache, ends_b)
        first_b = torch.zeros_like(starts_b)
        narrow = 1 if 2 * int((lengths_b <= 1).sum()) > len(lengths_b) else NARROW
        narrow_b = lengths_b <= narrow
        calls: list[_Call] = []
        tokens: list[tuple[Tensor, Tensor, Tensor]] = []
        first = 0
        for width, chosen_b in ((narrow, narrow_b), (WIDE, ~narrow_b)):
            rows = chosen_b.nonzero().squeeze(1)
            if not rows.numel():
                continue
            rows = rows[ends_b[rows].argsort(stable=True)]
            row_p, number_p = rows, torch.zeros_like(rows)
            if width == WIDE:
                pieces_r = (lengths_b[rows] + width - 1) // width
                row_p = rows.repeat_interleave(pieces_r)
                before_r = pieces_r.cumsum(0) - pieces_r
                number_p = torch.arange(row_p.numel()) - before_r.repeat_interleave(pieces_r)
                first_b[rows] = first + before_r * width
            else:
                first_b[rows] = torch.arange(first, first + rows.numel() * width, width)
            missing = -row_p.numel() % PIECES_STEP if row_p.numel() > PIECES_STEP else 0
            if missing:
                row_p, number_p = F.pad(row_p, (0, missing)), F.pad(number_p, (0, missing), value=-1)
            positions_pn = (starts_b[row_p] + number_p * width)[:, None] + torch.arange(width)
            real_pn = (positions_pn < ends_b[row_p, None]) & (number_p >= 0)[:, None]
            positions_pn = positions_pn.clamp(min=0)
            tokens.append((row_p.repeat_interleave(width), positions_pn.flatten(), real_pn.flatten()))
            slots_p = torch.where(number_p >= 0, slots_b[row_p], cache.slots)
            ends_p = torch.where(number_p >= 0, ends_b[row_p], 0)
            calls += _calls(cache, first, width, slots_p, ends_p)
            first += positions_pn.numel()
        rows_t, positions_t, real_t = (torch.cat(column) for column in zip(*tokens, strict=True))
        slots_t = torch.where(real_t, slots_b[rows_t], cache.slots)
        places_tg = _first_entries(cache, slots_t) + torch.where(real_t, positions_t, 0)[:, None]
        planned = [positions_t, places_tg, *(call.slots_p for call in calls)]
        rotated_t, places_tg, *slots = to_device(planned, cache.entries.device)
        parts = tuple(call.part(cache, rotated_t, slots_p) for call, slots_p in zip(calls, slots, strict=True))
        return cls(cache, rows_t, positions_t, real_t, first_b, rotated_t, places_tg, parts)

    @classmethod
    def plan_tight(cls, cache: PlannedCache, slots_b: Tensor, starts_b: Tensor, lengths_b: Tensor) -> Step:
        """Plan a batch-invariant pass, in which no sequence's result depends on the others, without padding."""
        _require_room(cache, starts_b + lengths_b)
        first_b = lengths_b.cumsum(0) - lengths_b
        rows_t = torch.arange(len(lengths_b)).repeat_interleave(lengths_b)
        positions_t = torch.arange(len(rows_t)) + (starts_b - first_b)[rows_t]
        base_bg, device = _first_entries(cache, slots_b), cache.entries.device
        pieces = Pieces.cut(starts_b, lengths_b, base_bg.T, cache.heads).to(device)
        real_t = torch.ones_like(rows_t, dtype=torch.bool)
        rotated_t, places_tg = to_device([positions_t, base_bg[rows_t] + positions_t[:, None]], device)
        return cls(cache, rows_t, positions_t, real_t, first_b, rotated_t, places_tg, (), pieces)

    def of(self, layer: int) -> LayerStep:
        return LayerStep(self, self.cache.entries[layer])


def _first_entries(cache: PlannedCache, slots_r: Tensor) -> Tensor:
    """Return, for each of the slots and each group, the flat index of position 0 within a layer: [slots, groups]."""
    groups = cache.entries.shape[2]
    return (slots_r[:, None] * groups + torch.arange(groups)) * cache.context


def _require_room(cache: PlannedCache, ends_b: Tensor) -> None:
    needed = int(ends_b.max())
    if needed > cache.context:
        raise CacheOverrun(f"position {needed - 1} does not fit a cache of {cache.context} positions")


@dataclass(frozen=True, slots=True)
class _Call:
    """A part while it is planned, on the CPU."""

    first: int
    width: int
    slots_p: Tensor
    window: int
    """Number of cached positions that each piece reads."""

    def part(self, cache: PlannedCache, positions_t: Tensor, slots_p: Tensor) -> Part:
        """Return the part on the cache's device, given the positions of all tokens and its slots there."""
        pieces, groups = len(slots_p), cache.entries.shape[2]
        positions_pn = positions_t[self.first : self.first + pieces * self.width].view(pieces, self.width)
        hidden_pns = torch.arange(self.window, device=slots_p.device) > positions_pn[:, :, None]
        bias_pns = torch.zeros(hidden_pns.shape, dtype=cache.entries.dtype, device=slots_p.device)
        bias_pns.masked_fill_(hidden_pns, float("-inf"))
        bias_xns = bias_pns[:, None, :, None].expand(-1, groups, -1, cache.heads, -1).flatten(2, 3).flatten(0, 1)
        return Part(self.first, self.width, slots_p, bias_xns, cache.scratch(pieces, self.window))


def _calls(cache: PlannedCache, first: int, width: int, slots_p: Tensor, ends_p: Tensor) -> Iterator[_Call]:
    """Divide pieces of equal width, which begin at index `first` of the list, into parts. `ends_p` holds the position
    at which each piece's sequence ends; these ascend, but padding pieces (end 0) come last.

    A new part begins where the rounded context window grows, or where a part would exceed NUMBERS_AT_ONCE.
    """
    groups, _, numbers = cache.entries.shape[2:]
    pieces, chunk = ends_p.numel(), CHUNK // width
    longest = F.pad(ends_p, (0, -pieces % chunk)).view(-1, chunk).amax(1).clamp(min=1)
    windows = (min(cache.context, -(-end // WINDOW_STEP) * WINDOW_STEP) for end in longest.tolist())
    begin = 0
    for window, alike in groupby(windows):
        end = min(pieces, begin + len(list(alike)) * chunk)
        most = NUMBERS_AT_ONCE if cache.entries.is_cpu else NUMBERS_AT_ONCE_ON_GPU
        at_once = max(1, most // (groups * window * numbers))
        for start in range(begin, end, at_once):
            yield _Call(first + start * width, width, slots_p[start : min(end, start + at_once)], window)
        begin = end


@dataclass(frozen=True, slots=True)
class LayerStep:
    """A `Step` applied to one layer of the cache."""

    step: Step
    entries: Tensor
    """The layer's entries, [slots + 1, groups, context, width]."""

    def attend(self, q_thd: Tensor, entries_tgw: Tensor, scale: float, values_from: int = 0) -> Tensor:
        """Write the tokens' own entries to the cache, then return each query's attention-weighted sum over the values
        of its sequence: [T, heads, V].

        An entry's key is its first numbers, as many as a query has; its value is the numbers from `values_from` on.
        """
        entries_fw = self.entries.view(-1, self.entries.shape[-1])
        entries_fw.index_copy_(0, self.step.places_tg.flatten(), entries_tgw.flatten(0, 1))
        if self.step.pieces is not None:
            return attend_pieces(q_thd, entries_fw, self.step.pieces, scale, values_from)
        mixed = [self._attend_part(q_thd[part.first : part.end], part, scale, values_from) for part in self.step.parts]
        return mixed[0] if len(mixed) == 1 else torch.cat(mixed)

    def _attend_part(self, q_thd: Tensor, part: Part, scale: float, values_from: int) -> Tensor:
        groups, (_, heads, width) = self.entries.shape[1], q_thd.shape
        q_pgnhd = q_thd.view(len(part.slots_p), part.width, groups, -1, width).transpose(1, 2)
        entries_xsw = self._read(part).flatten(0, 1)
        keys_xds = entries_xsw[..., :width].transpose(1, 2)
        scores_xns = torch.baddbmm(part.bias_xns, q_pgnhd.flatten(2, 3).flatten(0, 1), keys_xds, alpha=scale)
        mixed_xnv = torch.bmm(scores_xns.softmax(-1), entries_xsw[..., values_from:])
        mixed_pgnhv = mixed_xnv.view(*q_pgnhd.shape[:4], -1)
        return mixed_pgnhv.transpose(1, 2).reshape(len(q_thd), heads, -1)

    def _read(self, part: Part) -> Tensor:
        """Gather the entries that a part attends to, [pieces, groups, window, width], valid until the next call.

        They are copied even where a view would suffice, because matmuls on the strided view cost more.
        """
        live = self.entries[:, :, : part.scratch_pgsw.shape[2]]
        return torch.index_select(live, 0, part.slots_p, out=part.scratch_pgsw)
