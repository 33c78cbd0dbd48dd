"""Turns groups of rollouts into padded rows of tokens.

A row is one segment of a trace. Nothing is re-tokenised or guessed: token ids, masks of sampled tokens, log-probs,
versions and experts are taken from the trace. Every sampled token in any segment of a rollout gets the rollout's
advantage. This includes the summaries that the agent wrote when its context was full and the agents that it called, but
not calls beside the task (`SegmentKind.ASIDE`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from etude.tasks import Verdict
from etude.trace import UNKNOWN_EXPERT, Segment, Trace


@dataclass(frozen=True, slots=True)
class TrainingMember:
    trace: Trace
    verdict: Verdict


@dataclass(frozen=True, slots=True)
class TrainingGroup:
    """The rollouts of one prompt. A member is None if infrastructure failures used up all of its retries."""

    index: int
    admitted_version: int
    members: tuple[TrainingMember | None, ...]


@dataclass(frozen=True, slots=True)
class Row:
    tokens: NDArray[np.int32]
    sampled: NDArray[np.bool_]
    logprobs: NDArray[np.float32]
    versions: NDArray[np.int32]
    experts: NDArray[np.uint16] | None
    advantage: float


@dataclass(frozen=True, slots=True)
class RowBatch:
    """Rows padded to one length, with one advantage per row. Mask, log-prob and version at position t belong to token
    t, which the logits at position t - 1 predict."""

    tokens_bt: NDArray[np.int64]
    mask_bt: NDArray[np.bool_]
    logprobs_bt: NDArray[np.float32]
    versions_bt: NDArray[np.int32]
    advantages_b: NDArray[np.float32]
    experts_btlk: NDArray[np.uint16] | None
    rows: tuple[int, ...]
    """For each row of this batch, its index among the rows that `microbatches` was given."""


def trace_rows(trace: Trace, advantage: float) -> list[Row]:
    """Return a row per segment to train on, cut after the last sampled token: later tokens have no loss."""
    return [_row(segment, advantage) for segment in trace.segments if segment.trained]


def _row(segment: Segment, advantage: float) -> Row:
    end = int(np.flatnonzero(segment.sampled)[-1]) + 1
    experts = None if segment.experts is None else segment.experts[:end]
    return Row(
        segment.tokens[:end],
        segment.sampled[:end],
        segment.logprobs[:end],
        segment.versions[:end],
        experts,
        advantage,
    )


def microbatches(rows: Sequence[Row], budget: int) -> list[RowBatch]:
    """Batch rows of similar length, at most `budget` padded tokens per microbatch. A longer row gets a microbatch of
    its own.

    The result depends only on the rows: rows of equal length keep their order."""
    order = sorted(range(len(rows)), key=lambda index: (len(rows[index].tokens), index))
    batches: list[list[int]] = []
    for index in order:
        length = len(rows[index].tokens)
        if batches and length * (len(batches[-1]) + 1) <= budget:
            batches[-1].append(index)
        else:
            batches.append([index])
    return [_pad(rows, indices) for indices in batches]


def _pad(rows: Sequence[Row], indices: list[int]) -> RowBatch:
    width = max(len(rows[index].tokens) for index in indices)
    shape = (len(indices), width)
    tokens = np.zeros(shape, np.int64)
    mask = np.zeros(shape, np.bool_)
    logprobs = np.zeros(shape, np.float32)
    versions = np.full(shape, -1, np.int32)
    first = rows[indices[0]].experts
    experts = None if first is None else np.full((*shape, *first.shape[1:]), UNKNOWN_EXPERT, np.uint16)
    for place, index in enumerate(indices):
        row = rows[index]
        length = len(row.tokens)
        tokens[place, :length] = row.tokens
        mask[place, :length] = row.sampled
        logprobs[place, :length] = row.logprobs
        versions[place, :length] = row.versions
        if experts is not None and row.experts is not None:
            experts[place, :length] = row.experts
    mask[:, 0] = False  # nothing predicts the first token
    advantages = np.array([rows[index].advantage for index in indices], np.float32)
    return RowBatch(tokens, mask, logprobs, versions, advantages, experts, tuple(indices))
