"""Packs traces into rows for SFT: tokens that the agent sampled have loss weight 1; prompts and tool output have weight
`other_token_loss`.

Each segment of a trace (a conversation's token ids) is one document and is never re-tokenised. Short segments share a
row without attending to each other. A segment longer than a row continues in another row, after half a row of its
preceding tokens as context, so that every sampled token is trained exactly once and with context.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from etude.corpus.errors import CorpusError
from etude.corpus.mix import RowStream
from etude.trace.trace import SegmentKind, Trace

_SPLIT = "train"


class TraceRows:
    """Demonstrations as row streams read them: one document per trace segment."""

    def __init__(self, traces: Sequence[Trace], *, other_token_loss: float) -> None:
        self._tokens: list[NDArray[np.int64]] = []
        self._weights: list[NDArray[np.float32]] = []
        for trace in traces:
            if trace.split != _SPLIT:
                raise CorpusError(
                    f"demonstration {trace.id} is of split {trace.split!r}: only {_SPLIT!r} may be learnt"
                )
            for segment in (each for each in trace.segments if each.kind is not SegmentKind.ASIDE):
                self._tokens.append(segment.tokens.astype(np.int64))
                self._weights.append(np.where(segment.sampled, 1.0, other_token_loss).astype(np.float32))
        self.lengths = np.array([len(tokens) for tokens in self._tokens], dtype=np.int64)

    def stream(self, name: str, *, length: int, seed: int) -> RowStream:
        return RowStream(
            name,
            np.arange(len(self.lengths)),
            self.lengths,
            self._tokens.__getitem__,
            length=length,
            seed=seed,
            weights_of=self._weights.__getitem__,
            overlap=length // 2,
        )


def hold_out(traces: Sequence[Trace], share: float) -> tuple[list[Trace], list[Trace]]:
    """Split traces into (train, held out) by a hash of the task id, so that all traces of a task fall on one side.

    About `share` of the tasks are held out. If the hash selects none of several tasks, the one with the smallest hash
    is held out; a single task stays in train.
    """
    points = {trace.task: _point(trace.task) for trace in traces}
    held = {task for task, point in points.items() if point < share}
    if not held and len(points) > 1:
        held = {min(points, key=points.__getitem__)}
    return [t for t in traces if t.task not in held], [t for t in traces if t.task in held]


def _point(task: str) -> float:
    return int.from_bytes(hashlib.sha256(f"etude-demonstration/1:{task}".encode()).digest()[:8], "big") / 2**64
