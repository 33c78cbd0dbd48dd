"""The decode loop's state of all cache rows, held in arrays, so that no Python object is created per token or row.

The arrays are numpy, on the CPU; each step copies what the network needs to its device.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from etude.engine.protocol import (
    UNKNOWN_EXPERT,
    ExpertArray,
    FloatArray,
    GenerateRequest,
    Generation,
    IntArray,
    StopReason,
    Usage,
)

Ints = NDArray[np.int64]
Flags = NDArray[np.bool_]
SEED_MASK = (1 << 64) - 1


class Rows:
    def __init__(self, rows: int, context: int, moe_layers: int, top_k: int, vocab_size: int) -> None:
        self.context = context
        # One column more than the context: an accepted draft may record one token too many, which is then cut off.
        self.tokens: Ints = np.zeros((rows, context + 1), np.int64)
        self.logprobs = np.zeros((rows, context + 1), np.float32)
        self.versions = np.zeros((rows, context + 1), np.int32)
        self.experts: ExpertArray = np.full((rows, context, moe_layers, top_k), UNKNOWN_EXPERT, np.uint16)
        self.prompt: Ints = np.zeros(rows, np.int64)
        """Number of prompt tokens of each row's request."""
        self.position: Ints = np.zeros(rows, np.int64)
        """Position of each row's pending token: its last token, which has not been fed to the network yet."""
        self.filled: Ints = np.zeros(rows, np.int64)
        """Number of leading positions of each row whose entries are cached. The next step feeds the tokens after
        them."""
        self.limit: Ints = np.zeros(rows, np.int64)
        """Number of tokens, prompt included, at which each row's request ends."""
        self.seeds = np.zeros(rows, np.uint64)
        self.temperatures = np.ones(rows, np.float32)
        self.top_ps = np.ones(rows, np.float32)
        self.drafted: Ints = np.zeros(rows, np.int64)
        self.accepted: Ints = np.zeros(rows, np.int64)
        self._stop_class: Ints = np.zeros(rows, np.int64)
        self._stop_classes: dict[tuple[int, ...], int] = {}
        self._stops = np.zeros((0, vocab_size), np.bool_)

    def begin(self, row: int, request: GenerateRequest, filled: int) -> None:
        """Set up a row for a request. The first `filled` positions of its prompt are cached in the row."""
        length, sampling = request.prompt.size, request.sampling
        self.tokens[row, :length] = request.prompt
        self.prompt[row] = length
        self.position[row] = length - 1
        self.filled[row] = filled
        self.limit[row] = min(length + sampling.max_tokens, self.context)
        self.seeds[row] = sampling.seed & SEED_MASK
        self.temperatures[row] = sampling.temperature
        self.top_ps[row] = sampling.top_p
        self.drafted[row] = self.accepted[row] = 0
        self._stop_class[row] = self._class_of(sampling.stop)

    def stops(self, rows_b: Ints, tokens_b: Ints) -> NDArray[np.bool_]:
        """Return for each row of `rows_b` whether its token in `tokens_b` is a stop id of its request."""
        found: NDArray[np.bool_] = self._stops[self._stop_class[rows_b], tokens_b]
        return found

    def record(self, rows_b: Ints, positions_b: Ints, tokens_b: Ints, logprobs_b: np.ndarray, version: int) -> None:
        self.tokens[rows_b, positions_b] = tokens_b
        self.logprobs[rows_b, positions_b] = logprobs_b
        self.versions[rows_b, positions_b] = version

    def sampled_since(self, row: int, start: int) -> tuple[IntArray, FloatArray, IntArray]:
        """Return tokens, log-probs and versions that the row's request sampled, from its token `start` on."""
        part = slice(int(self.prompt[row]) + start, int(self.position[row]) + 1)
        return (
            self.tokens[row, part].astype(np.int32),
            self.logprobs[row, part].copy(),
            self.versions[row, part].copy(),
        )

    def generation(self, row: int, request: GenerateRequest, stop: StopReason, usage: Usage) -> Generation:
        end = int(self.position[row]) + 1
        usage.drafted, usage.accepted = int(self.drafted[row]), int(self.accepted[row])
        experts: ExpertArray | None = None
        if self.experts.shape[2]:
            experts = self.experts[row, request.experts_from : end].copy()
            experts[-1:] = UNKNOWN_EXPERT
        tokens, logprobs, versions = self.sampled_since(row, 0)
        return Generation(
            id=request.id,
            tokens=tokens,
            logprobs=logprobs,
            versions=versions,
            stop=stop,
            experts=experts,
            experts_from=request.experts_from,
            usage=usage,
        )

    def empty_generation(self, request: GenerateRequest, usage: Usage) -> Generation:
        """Return the answer to a request that was aborted before it began."""
        _, _, layers, top_k = self.experts.shape
        missing = max(0, request.prompt.size - request.experts_from)
        return Generation(
            id=request.id,
            tokens=np.zeros(0, np.int32),
            logprobs=np.zeros(0, np.float32),
            versions=np.zeros(0, np.int32),
            stop=StopReason.ABORTED,
            experts=np.full((missing, layers, top_k), UNKNOWN_EXPERT, np.uint16) if layers else None,
            experts_from=request.experts_from,
            usage=usage,
        )

    def _class_of(self, stop: tuple[int, ...]) -> int:
        """Return the index of these stop ids in `_stops`, a table with one row of booleans per tuple of stop ids. The
        table grows as needed, but stays small, because most requests have the same stop ids."""
        known = self._stop_classes.get(stop)
        if known is None:
            known = self._stop_classes[stop] = len(self._stop_classes)
            row = np.zeros((1, self._stops.shape[1]), np.bool_)
            row[0, list(stop)] = True
            self._stops = np.concatenate((self._stops, row))
        return known
