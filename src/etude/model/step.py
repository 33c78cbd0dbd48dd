"""The plan of one forward pass with the latent cache: rows of any length, laid out as one flat list of tokens.

Everything done per token (projections, norms, experts) runs once over the whole list. Only attention needs rows: each
row is cut into pieces of equal width, and pieces of similar context length form a part, whose attention is one call. So
decoding rows and new prompts share a pass with little padding.

Invariants: a row's tokens are adjacent; only its last piece is padded; the latents of padding go to the cache's spare
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
LATENTS_AT_ONCE = 1 << 17
"""Maximum number of latents that a part gathers from the cache, which bounds memory, unless one piece needs more."""


class Cache(Protocol):
    """The attributes of LatentCache (cache.py) that planning a `Step` needs."""

    slots: int
    context: int
    heads: int
    latents: Tensor

    @property
    def spare(self) -> int: ...

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
    bias_pns: Tensor
    """Mask to add to the scores, [pieces, tokens * heads, window]: 0 where a token may attend, else -inf."""
    scratch_pws: Tensor
    """Buffer for the latents that this part's pieces attend to, copied from the cache. All layers and steps reuse its
    memory."""

    @property
    def end(self) -> int:
        return self.first + self.slots_p.numel() * self.width


@dataclass(frozen=True, slots=True)
class Step:
    """The plan of one pass: row b feeds lengths_b[b] tokens to cache slot slots_b[b], from position starts_b[b] on."""

    cache: Cache
    rows_t: Tensor
    """The row (sequence) of each token in the pass's list of tokens; arbitrary for padding."""
    positions_t: Tensor
    real_t: Tensor
    """Whether each entry of the pass's list is a real token; False for padding."""
    places_t: Tensor
    """Flat index, within a layer of the cache, of each token's latent."""
    first_b: Tensor
    """Index of each row's first token in the pass's list of tokens; the row's other tokens follow it."""
    parts: tuple[Part, ...]
    """The parts into which the pass's list of tokens is divided, each with one attention call. Empty in a
    batch-invariant plan, which has `pieces` instead."""
    pieces: Pieces | None = None
    """The pieces in which a batch-invariant plan computes attention; else None."""

    @classmethod
    def plan(cls, cache: Cache, slots_b: Tensor, starts_b: Tensor, lengths_b: Tensor) -> Step:
        """Plan a pass with padding: the list's shapes are rounded up, so that few different matmul shapes occur."""
        ends_b = starts_b + lengths_b
        _require_room(cache, ends_b)
        first_b = torch.zeros_like(starts_b)
        narrow = 1 if 2 * int((lengths_b <= 1).sum()) > len(lengths_b) else NARROW
        narrow_b = lengths_b <= narrow
        parts: list[Part] = []
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
                number_p = torch.arange(row_p.numel(), device=rows.device) - before_r.repeat_interleave(pieces_r)
                first_b[rows] = first + before_r * width
            else:
                first_b[rows] = torch.arange(first, first + rows.numel() * width, width, device=rows.device)
            missing = -row_p.numel() % PIECES_STEP if row_p.numel() > PIECES_STEP else 0
            if missing:
                row_p, number_p = F.pad(row_p, (0, missing)), F.pad(number_p, (0, missing), value=-1)
            positions_pn = (starts_b[row_p] + number_p * width)[:, None] + torch.arange(width, device=rows.device)
            real_pn = (positions_pn < ends_b[row_p, None]) & (number_p >= 0)[:, None]
            positions_pn = positions_pn.clamp(min=0)
            tokens.append((row_p.repeat_interleave(width), positions_pn.flatten(), real_pn.flatten()))
            slots_p = torch.where(number_p >= 0, slots_b[row_p], cache.slots)
            ends_p = torch.where(number_p >= 0, ends_b[row_p], 0)
            parts += _parts(cache, first, slots_p, positions_pn, ends_p)
            first += positions_pn.numel()
        rows_t, positions_t, real_t = (torch.cat(column) for column in zip(*tokens, strict=True))
        places_t = torch.where(real_t, slots_b[rows_t] * cache.context + positions_t, cache.spare)
        return cls(cache, rows_t, positions_t, real_t, places_t, first_b, tuple(parts))

    @classmethod
    def plan_tight(cls, cache: Cache, slots_b: Tensor, starts_b: Tensor, lengths_b: Tensor) -> Step:
        """Plan a batch-invariant pass, in which no sequence's result depends on the others, without padding."""
        _require_room(cache, starts_b + lengths_b)
        first_b = lengths_b.cumsum(0) - lengths_b
        rows_t = torch.arange(len(lengths_b), device=lengths_b.device).repeat_interleave(lengths_b)
        positions_t = torch.arange(len(rows_t), device=lengths_b.device) + (starts_b - first_b)[rows_t]
        base_b = slots_b * cache.context
        pieces = Pieces.cut(first_b, starts_b, lengths_b, base_b, cache.heads)
        real_t = torch.ones_like(rows_t, dtype=torch.bool)
        return cls(cache, rows_t, positions_t, real_t, base_b[rows_t] + positions_t, first_b, (), pieces)

    def of(self, layer: int) -> LayerStep:
        return LayerStep(self, self.cache.latents[layer])


def _require_room(cache: Cache, ends_b: Tensor) -> None:
    needed = int(ends_b.max())
    if needed > cache.context:
        raise CacheOverrun(f"position {needed - 1} does not fit a cache of {cache.context} positions")


def _parts(cache: Cache, first: int, slots_p: Tensor, positions_pn: Tensor, ends_p: Tensor) -> Iterator[Part]:
    """Divide pieces of equal width, which begin at index `first` of the list, into parts. `ends_p` holds the position
    at which each piece's sequence ends; these ascend, but padding pieces (end 0) come last.

    A new part begins where the rounded context window grows, or where a part would exceed LATENTS_AT_ONCE.
    """
    width = positions_pn.shape[1]
    pieces, chunk = ends_p.numel(), CHUNK // width
    longest = F.pad(ends_p, (0, -pieces % chunk)).view(-1, chunk).amax(1).clamp(min=1)
    windows = (min(cache.context, -(-end // WINDOW_STEP) * WINDOW_STEP) for end in longest.tolist())
    begin = 0
    for window, alike in groupby(windows):
        end, at_once = min(pieces, begin + len(list(alike)) * chunk), max(1, LATENTS_AT_ONCE // window)
        for start in range(begin, end, at_once):
            stop = min(end, start + at_once)
            hidden_pns = torch.arange(window, device=slots_p.device) > positions_pn[start:stop, :, None]
            bias_pns = torch.zeros(hidden_pns.shape, dtype=cache.latents.dtype, device=slots_p.device)
            bias_pns.masked_fill_(hidden_pns, float("-inf"))
            bias_pns = bias_pns.unsqueeze(2).expand(-1, -1, cache.heads, -1).flatten(1, 2)
            scratch = cache.scratch(stop - start, window)
            yield Part(first + start * width, width, slots_p[start:stop], bias_pns, scratch)
        begin = end


@dataclass(frozen=True, slots=True)
class LayerStep:
    """A `Step` applied to one layer of the cache."""

    step: Step
    latents: Tensor
    """The layer's latents, [slots + 1, context, latent width]."""

    def write(self, latent_tw: Tensor) -> None:
        self.latents.view(-1, latent_tw.shape[-1]).index_copy_(0, self.step.places_t, latent_tw)

    def attend(self, q_thw: Tensor, scale: float) -> Tensor:
        """Return each query's attention-weighted sum over the latents of its sequence, [T, heads, latent width]."""
        if self.step.pieces is not None:
            return attend_pieces(q_thw, self.latents.flatten(0, 1), self.step.pieces, scale)
        mixed = []
        for part in self.step.parts:
            q_pnw, keys_psw = q_thw[part.first : part.end].view(len(part.slots_p), -1, q_thw.shape[-1]), self.read(part)
            scores_pns = torch.baddbmm(part.bias_pns, q_pnw, keys_psw.transpose(1, 2), alpha=scale)
            mixed.append(torch.bmm(scores_pns.softmax(-1), keys_psw).view(-1, *q_thw.shape[1:]))
        return mixed[0] if len(mixed) == 1 else torch.cat(mixed)

    def read(self, part: Part) -> Tensor:
        """Gather the latents that a part attends to: [pieces, window, latent width], valid until the next call.

        The latents are copied even where a view would suffice, because matmuls on the strided view cost more.
        """
        live = self.latents[:, : part.scratch_pws.shape[1]]
        return torch.index_select(live, 0, part.slots_p, out=part.scratch_pws)
