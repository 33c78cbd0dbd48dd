"""Batch-invariant attention: a token's result depends only on the tokens before it in its own sequence.

An entry is what a token leaves behind for later tokens in one group of heads: its key and its value, which may share
numbers (cache.py). Each group of a sequence is a row of its own, because it has its own entries.

The tokens of a row are cut into pieces of a few queries. The row's entries are cut into chunks of `KEYS`, counted from
position 0. A pair is a piece together with one chunk; every chunk up to the piece's last token makes such a pair. Each
matmul computes a fixed number of pairs (tiles.py explains why). Each pair has its own softmax; the softmaxes of a piece
are combined from the first chunk to the last. A chunk that is masked for a query adds exact zeros to the query's
result. So the result depends neither on the other queries of the piece nor on the longest row of the batch.

An engine's entries are in the cache, a trainer's in the forward pass itself. Both use this code, so that both compute
the same bits.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, cast

import torch
from torch import Tensor

from etude.model.attend import Mask, attend, document_lengths
from etude.model.tiles import product

QUERY_ROWS = 16
"""Maximum number of tokens times heads of a group in a piece (a few of a row's tokens that are computed together). With
more heads, a piece is one token. The number is small, because a decoding sequence feeds only one or two tokens, and
large pieces would mostly compute padding."""
KEYS = 64
"""Number of entries per chunk. Chunks are the parts into which the entries of a row are cut."""
PAIRS = 128
"""Number of pairs that one matmul computes. A pair is a piece (a few queries) together with one chunk of its keys."""
UNSEEN = -1e30
"""Stands for the maximum score of a query over a chunk that is wholly masked for it. It is not -inf, because -inf minus
-inf would be NaN."""


@dataclass(frozen=True, slots=True)
class Pieces:
    """How a batch is cut for attention: into pieces of a few queries, chunks of keys, and pairs of a piece and a chunk.
    Axes: p pieces, q queries of a piece, c chunks, n pairs, s keys of a chunk, x groups times tokens (the tokens of all
    rows, one group after the other)."""

    groups: int
    """Number of groups of heads that have entries of their own."""
    tokens_pq: Tensor
    """Index, on axis x, of the token that is query q of piece p; 0 for the unused queries of an incomplete piece."""
    places_x: Tensor
    """For each token of each group, its index in `tokens_pq` when that is flattened. It picks the token's result from
    the results of all pieces."""
    piece_n: Tensor
    """For each (piece, chunk) pair, the piece's index. At the end are padding pairs, which fill up the last matmul:
    they have piece 0, and `pairs_pc` does not hold them."""
    keys_ns: Tensor
    """For each (piece, chunk) pair, the indices of the chunk's entries in the flat list of all entries."""
    hidden_nqs: Tensor
    """For each (piece, chunk) pair: whether query q of the piece must not see key s of the chunk."""
    pairs_pc: Tensor
    """Index, on axis n, of the pair of piece p and chunk c. If the piece ends before the chunk, there is no such pair,
    and the entry is the number of all pairs."""

    @classmethod
    def cut(cls, starts_b: Tensor, lengths_b: Tensor, base_gb: Tensor, heads: int) -> Pieces:
        """Cut a list of tokens into pieces: sequence after sequence, with `heads` queries per token and group.

        Sequence b has lengths_b[b] tokens in the list, from its position starts_b[b] on. base_gb[g, b] is the index of
        its first entry in group g in the flat list of all entries.
        """
        groups = len(base_gb)
        starts_r, lengths_r, base_r = starts_b.repeat(groups), lengths_b.repeat(groups), base_gb.flatten()
        first_r = lengths_r.cumsum(0) - lengths_r
        device, queries = first_r.device, max(1, QUERY_ROWS // heads)
        query, key = torch.arange(queries, device=device), torch.arange(KEYS, device=device)
        row_p, number_p = _repeated((lengths_r + (queries - 1)) // queries)
        turn_pq = number_p[:, None] * queries + query
        real_pq = turn_pq < lengths_r[row_p, None]
        tokens_pq = torch.where(real_pq, first_r[row_p, None] + turn_pq, 0)
        positions_pq = starts_r[row_p, None] + turn_pq
        chunks_p = (positions_pq * real_pq).amax(1) // KEYS + 1
        piece_n, chunk_n = _repeated(chunks_p)
        pairs = len(piece_n)
        piece_n, chunk_n = (torch.cat((part, part.new_zeros(-pairs % PAIRS))) for part in (piece_n, chunk_n))
        key_ns = chunk_n[:, None] * KEYS + key
        row_n = row_p[piece_n]
        last_n = (starts_r + lengths_r - 1)[row_n]
        chunk_c = torch.arange(int(chunks_p.max()) if len(chunks_p) else 0, device=device)
        begin_p = (chunks_p.cumsum(0) - chunks_p)[:, None]
        return cls(
            groups=groups,
            tokens_pq=tokens_pq,
            places_x=real_pq.flatten().nonzero().squeeze(1),
            piece_n=piece_n,
            # After a row's end the entries may be NaN, and NaN times a weight of zero is NaN: clamp to the last key.
            keys_ns=base_r[row_n, None] + key_ns.minimum(last_n[:, None]),
            hidden_nqs=key_ns[:, None, :] > positions_pq[piece_n, :, None],
            pairs_pc=torch.where(chunk_c < chunks_p[:, None], begin_p + chunk_c, len(piece_n)),
        )

    def to(self, device: torch.device) -> Pieces:
        tensors = (getattr(self, field.name).to(device) for field in fields(self)[1:])
        return Pieces(self.groups, *tensors)


@dataclass(frozen=True, slots=True)
class Packed:
    """Attention context of a batch-invariant pass without a cache: packed documents [B, T], one row per document."""

    pieces: Pieces
    shape: tuple[int, int]
    """Rows and tokens per row of the batch."""
    mask: Mask
    """What the same batch attends to in ordinary attention, which the backward pass differentiates."""

    @classmethod
    def of(cls, mask: Mask, documents_bt: Tensor, groups: int, heads: int) -> Packed:
        """Build the attention context from the document id of each token, for `groups` groups of `heads` heads."""
        device = documents_bt.device
        lengths_r = torch.tensor(document_lengths(documents_bt), device=device)
        base_gr = lengths_r.cumsum(0) - lengths_r + documents_bt.numel() * torch.arange(groups, device=device)[:, None]
        pieces = Pieces.cut(torch.zeros_like(lengths_r), lengths_r, base_gr, heads)
        return cls(pieces, (documents_bt.shape[0], documents_bt.shape[1]), mask)

    def attend(self, q_thd: Tensor, entries_tgw: Tensor, scale: float, values_from: int = 0) -> Tensor:
        """Return each query's weighted sum over the values of its document, as LayerStep.attend does (step.py)."""
        return cast(Tensor, _AttendPacked.apply(q_thd, entries_tgw, self, scale, values_from))


def attend_pieces(q_thd: Tensor, entries_fw: Tensor, pieces: Pieces, scale: float, values_from: int) -> Tensor:
    """Return each query's attention-weighted sum over the values of its row, batch-invariantly: [T, heads, V].
    `entries_fw` is the flat list of all entries: keys begin at their first number, values at `values_from`."""
    groups, (count, queries) = pieces.groups, pieces.tokens_pq.shape
    q_xhd = q_thd.unflatten(1, (groups, -1)).transpose(0, 1).flatten(0, 1)
    (_, heads, width), values = q_xhd.shape, entries_fw.shape[1] - values_from
    rows, pairs = queries * heads, len(pieces.piece_n)
    q_pmd = q_xhd.index_select(0, pieces.tokens_pq.flatten()).view(count, rows, width)
    # One extra entry that is all zeros: `pairs_pc` names it where a piece ends before a chunk.
    mixed_nmv = q_xhd.new_zeros(pairs + 1, rows, values)
    peak_nm = q_xhd.new_full((pairs + 1, rows), UNSEEN, dtype=torch.float32)
    total_nm = torch.zeros_like(peak_nm)
    for begin in range(0, pairs, PAIRS):
        at = slice(begin, begin + PAIRS)
        entries_nsw = entries_fw.index_select(0, pieces.keys_ns[at].flatten()).view(PAIRS, KEYS, -1)
        keys_nds, values_nsv = entries_nsw[..., :width].mT, entries_nsw[..., values_from:]
        scores = product(q_pmd.index_select(0, pieces.piece_n[at]), keys_nds).to(torch.float32).mul_(scale)
        scores.view(PAIRS, queries, heads, KEYS).masked_fill_(pieces.hidden_nqs[at].unsqueeze(2), float("-inf"))
        peak = torch.amax(scores, -1).clamp_(min=UNSEEN)
        weights = scores.sub_(peak.unsqueeze(-1)).exp_()
        peak_nm[at], total_nm[at] = peak, weights.sum(-1)
        mixed_nmv[at] = product(weights.to(q_xhd.dtype), values_nsv)
    peak_pcm = peak_nm[pieces.pairs_pc]
    share_pcm = (peak_pcm - peak_pcm.amax(1, keepdim=True)).exp_()
    total_pm = torch.zeros_like(share_pcm[:, 0])
    mixed_pmv = total_pm.new_zeros(count, rows, values)
    for chunk in range(pieces.pairs_pc.shape[1]):
        pair_p, share_pm = pieces.pairs_pc[:, chunk], share_pcm[:, chunk]
        total_pm += share_pm * total_nm[pair_p]
        mixed_pmv += share_pm.unsqueeze(-1) * mixed_nmv[pair_p]
    mixed = (mixed_pmv / total_pm.unsqueeze(-1)).to(q_xhd.dtype).view(count * queries, heads, values)
    mixed_gthv = mixed.index_select(0, pieces.places_x).view(groups, len(q_thd), heads, values)
    return mixed_gthv.transpose(0, 1).flatten(1, 2)


class _AttendPacked(torch.autograd.Function):
    """Attention whose forward pass is batch-invariant (`attend_pieces`). Its backward pass is not: it recomputes and
    differentiates ordinary attention (attend.py)."""

    @staticmethod
    def forward(ctx: Any, q_thd: Tensor, entries_tgw: Tensor, packed: Packed, scale: float, values_from: int) -> Tensor:
        ctx.save_for_backward(q_thd, entries_tgw)
        ctx.packed, ctx.scale, ctx.values_from = packed, scale, values_from
        return attend_pieces(q_thd, entries_tgw.transpose(0, 1).flatten(0, 1), packed.pieces, scale, values_from)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, None, None, None]:
        q_thd, entries_tgw = (tensor.detach().requires_grad_() for tensor in ctx.saved_tensors)
        packed: Packed = ctx.packed
        with torch.enable_grad():
            q_bhtd, entries_bgtw = (x.unflatten(0, packed.shape).transpose(1, 2) for x in (q_thd, entries_tgw))
            keys, values = entries_bgtw[..., : q_thd.shape[-1]], entries_bgtw[..., ctx.values_from :]
            y_thv = attend(q_bhtd, keys, values, packed.mask, ctx.scale).transpose(1, 2).flatten(0, 1)
        dq, dentries = torch.autograd.grad(y_thv, (q_thd, entries_tgw), grads[0])
        return dq, dentries, None, None, None


def _repeated(count_r: Tensor) -> tuple[Tensor, Tensor]:
    """Return two lists of equal length: the row indices, each r repeated count_r[r] times, and for each entry its
    number (from 0) among the entries of its row."""
    row_p = torch.arange(len(count_r), device=count_r.device).repeat_interleave(count_r)
    before_r = count_r.cumsum(0) - count_r
    return row_p, torch.arange(len(row_p), device=count_r.device) - before_r[row_p]
