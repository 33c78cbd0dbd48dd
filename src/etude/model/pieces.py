"""Batch-invariant attention: a token's result depends only on the tokens before it in its own sequence.

The tokens of a row (one sequence) are cut into pieces of a few queries. The row's keys are cut into chunks of `KEYS`,
counted from position 0. A pair is a piece together with one chunk; every chunk up to the piece's last token makes such
a pair. Each matmul computes a fixed number of pairs (tiles.py explains why). Each pair has its own softmax; the
softmaxes of a piece are combined from the first chunk to the last. A chunk that is masked for a query adds exact zeros
to the query's result. So the result depends neither on the other queries of the piece nor on the longest row of the
batch.

An engine's keys are in the latent cache, a trainer's in the forward pass itself. Both use this code, so that both
compute the same bits.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor

from etude.model.attend import Mask, attend, document_lengths
from etude.model.tiles import product

QUERY_ROWS = 16
"""Maximum number of tokens times heads in a piece (a group of a sequence's tokens that is computed together). With more
heads, a piece is one token. The number is small, because a decoding sequence feeds only one or two tokens, and large
pieces would mostly compute padding."""
KEYS = 64
"""Number of keys per chunk. Chunks are the parts into which the keys of a sequence are cut."""
PAIRS = 128
"""Number of pairs that one matmul computes. A pair is a piece (a few queries) together with one chunk of its keys."""
UNSEEN = -1e30
"""Stands for the maximum score of a query over a chunk that is wholly masked for it. It is not -inf, because -inf minus
-inf would be NaN."""


@dataclass(frozen=True, slots=True)
class Pieces:
    """How a batch is cut for attention: into pieces of a few queries, chunks of keys, and pairs of a piece and a chunk.
    Axes: p pieces, q queries of a piece, c chunks, n pairs, s keys of a chunk, t tokens."""

    tokens_pq: Tensor
    """Index of the token that is query q of piece p; 0 for the unused queries of an incomplete piece."""
    places_t: Tensor
    """For each token, its index in `tokens_pq` when that is flattened. It picks the token's result from the results of
    all pieces."""
    piece_n: Tensor
    """For each (piece, chunk) pair, the piece's index. At the end are padding pairs, which fill up the last matmul:
    they have piece 0, and `pairs_pc` does not hold them."""
    keys_ns: Tensor
    """For each (piece, chunk) pair, the indices of the chunk's keys in the flat list of all latents."""
    hidden_nqs: Tensor
    """For each (piece, chunk) pair: whether query q of the piece must not see key s of the chunk."""
    pairs_pc: Tensor
    """Index, on axis n, of the pair of piece p and chunk c. If the piece ends before the chunk, there is no such pair,
    and the entry is the number of all pairs."""

    @classmethod
    def cut(cls, first_r: Tensor, starts_r: Tensor, lengths_r: Tensor, base_r: Tensor, heads: int) -> Pieces:
        """Cut the rows (sequences) of a token list into pieces.

        Row r has lengths_r[r] tokens, from index first_r[r] of the list and position starts_r[r] of its sequence on.
        base_r[r] is the index of the sequence's first latent in the flat list of all latents.
        """
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
            tokens_pq=tokens_pq,
            places_t=real_pq.flatten().nonzero().squeeze(1),
            piece_n=piece_n,
            # After a row's end the latents may be NaN, and NaN times a weight of zero is NaN: clamp to the last key.
            keys_ns=base_r[row_n, None] + key_ns.minimum(last_n[:, None]),
            hidden_nqs=key_ns[:, None, :] > positions_pq[piece_n, :, None],
            pairs_pc=torch.where(chunk_c < chunks_p[:, None], begin_p + chunk_c, len(piece_n)),
        )


@dataclass(frozen=True, slots=True)
class Packed:
    """Attention context of a batch-invariant pass without a cache: packed documents [B, T], one row per document."""

    pieces: Pieces
    shape: tuple[int, int]
    """Rows and tokens per row of the batch."""
    mask: Mask
    """What the same batch attends to in ordinary attention, which the backward pass differentiates."""

    @classmethod
    def of(cls, mask: Mask, documents_bt: Tensor, heads: int) -> Packed:
        """Build the attention context from the document id of each token."""
        lengths_r = torch.tensor(document_lengths(documents_bt), device=documents_bt.device)
        first_r = lengths_r.cumsum(0) - lengths_r
        pieces = Pieces.cut(first_r, torch.zeros_like(first_r), lengths_r, first_r, heads)
        return cls(pieces, (documents_bt.shape[0], documents_bt.shape[1]), mask)

    def attend(self, q_thw: Tensor, latents_tw: Tensor, scale: float) -> Tensor:
        return cast(Tensor, _AttendPacked.apply(q_thw, latents_tw, self, scale))


def attend_pieces(q_thw: Tensor, latents_fw: Tensor, pieces: Pieces, scale: float) -> Tensor:
    """Return each query's attention-weighted sum over its sequence's latents, batch-invariantly. `latents_fw` is the
    flat list of all sequences' latents."""
    (count, queries), (_, heads, width) = pieces.tokens_pq.shape, q_thw.shape
    rows, pairs = queries * heads, len(pieces.piece_n)
    q_pmw = q_thw.index_select(0, pieces.tokens_pq.flatten()).view(count, rows, width)
    # One extra entry that is all zeros: `pairs_pc` names it where a piece ends before a chunk.
    mixed_nmw = q_thw.new_zeros(pairs + 1, rows, width)
    peak_nm = q_thw.new_full((pairs + 1, rows), UNSEEN, dtype=torch.float32)
    total_nm = torch.zeros_like(peak_nm)
    for begin in range(0, pairs, PAIRS):
        at = slice(begin, begin + PAIRS)
        keys_nsw = latents_fw.index_select(0, pieces.keys_ns[at].flatten()).view(PAIRS, KEYS, width)
        scores = product(q_pmw.index_select(0, pieces.piece_n[at]), keys_nsw.mT).to(torch.float32).mul_(scale)
        scores.view(PAIRS, queries, heads, KEYS).masked_fill_(pieces.hidden_nqs[at].unsqueeze(2), float("-inf"))
        peak = torch.amax(scores, -1).clamp_(min=UNSEEN)
        weights = scores.sub_(peak.unsqueeze(-1)).exp_()
        peak_nm[at], total_nm[at] = peak, weights.sum(-1)
        mixed_nmw[at] = product(weights.to(q_thw.dtype), keys_nsw)
    peak_pcm = peak_nm[pieces.pairs_pc]
    share_pcm = (peak_pcm - peak_pcm.amax(1, keepdim=True)).exp_()
    total_pm = torch.zeros_like(share_pcm[:, 0])
    mixed_pmw = total_pm.new_zeros(count, rows, width)
    for chunk in range(pieces.pairs_pc.shape[1]):
        pair_p, share_pm = pieces.pairs_pc[:, chunk], share_pcm[:, chunk]
        total_pm += share_pm * total_nm[pair_p]
        mixed_pmw += share_pm.unsqueeze(-1) * mixed_nmw[pair_p]
    mixed = (mixed_pmw / total_pm.unsqueeze(-1)).to(q_thw.dtype).view(count * queries, heads, width)
    return mixed.index_select(0, pieces.places_t)


class _AttendPacked(torch.autograd.Function):
    """Attention whose forward pass is batch-invariant (`attend_pieces`). Its backward pass is not: it recomputes and
    differentiates ordinary attention (attend.py)."""

    @staticmethod
    def forward(ctx: Any, q_thw: Tensor, latents_tw: Tensor, packed: Packed, scale: float) -> Tensor:
        ctx.save_for_backward(q_thw, latents_tw)
        ctx.packed, ctx.scale = packed, scale
        return attend_pieces(q_thw, latents_tw, packed.pieces, scale)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, None, None]:
        q_thw, latents_tw = (tensor.detach().requires_grad_() for tensor in ctx.saved_tensors)
        packed: Packed = ctx.packed
        with torch.enable_grad():
            q_bhtw = q_thw.unflatten(0, packed.shape).transpose(1, 2)
            latents_bgtw = latents_tw.unflatten(0, packed.shape).unsqueeze(1)
            y_bhtw = attend(q_bhtw, latents_bgtw, latents_bgtw, packed.mask, ctx.scale)
            y_thw = y_bhtw.transpose(1, 2).flatten(0, 1)
        dq, dlatents = torch.autograd.grad(y_thw, (q_thw, latents_tw), grads[0])
        return dq, dlatents, None, None


def _repeated(count_r: Tensor) -> tuple[Tensor, Tensor]:
    """Return two lists of equal length: the row indices, each r repeated count_r[r] times, and for each entry its
    number (from 0) among the entries of its row."""
    row_p = torch.arange(len(count_r), device=count_r.device).repeat_interleave(count_r)
    before_r = count_r.cumsum(0) - count_r
    return row_p, torch.arange(len(row_p), device=count_r.device) - before_r[row_p]
