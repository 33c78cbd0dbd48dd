"""Builds the segments of a trace while the rollout runs. Any number of segments grow at once, as where agents run side
by side.

Invariants: the recorded tokens are those that the engine was given and those that it sampled, in order; sampled tokens
have their log-prob and weight version. The chosen experts of an MoE model arrive late (the last sampled token has not
been fed to the network yet), so they are filled in by absolute position. The experts of a position are written once and
never replaced.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from etude.trace.trace import UNKNOWN_EXPERT, UNSAMPLED_VERSION, Break, BreakKind, Segment, SegmentKind


class TokenSink(Protocol):
    """Observer called after each step that a TraceBuilder records, for example `steps.StepsFile`."""

    def segment(self, number: int, parent: int | None, kind: SegmentKind, tokens: NDArray[np.int32]) -> None: ...

    def given(self, segment: int, tokens: NDArray[np.int32]) -> None: ...

    def broken(self, segment: int, found: Break) -> None: ...

    def sampled(
        self,
        segment: int,
        tokens: NDArray[np.int32],
        logprobs: NDArray[np.float32],
        versions: NDArray[np.int32],
        experts: NDArray[np.uint16] | None,
        experts_from: int,
    ) -> None: ...


class TraceBuilder:
    """Records a rollout's tokens in order: `start_segment` first, then `extend` and `sampled`, in the segment with the
    given id, or in the one that was started last."""

    def __init__(self, sink: TokenSink | None = None) -> None:
        self.sink = sink
        self._open: list[_OpenSegment] = []

    def start_segment(self, kind: SegmentKind, parent: int | None, prompt_ids: Sequence[int]) -> int:
        """Start a new context and return its segment id."""
        if parent is not None and not 0 <= parent < len(self._open):
            raise ValueError(f"segment {parent} cannot be a parent: there are {len(self._open)} segments")
        segment = _OpenSegment(len(self._open), parent, kind)
        segment.append_given(prompt_ids)
        self._open.append(segment)
        if self.sink is not None:
            self.sink.segment(segment.id, parent, kind, np.asarray(prompt_ids, np.int32))
        return segment.id

    def extend(self, ids: Sequence[int], *, segment: int | None = None) -> None:
        """Record tokens that the model was given, as opposed to sampled."""
        into = self._segment(segment)
        into.append_given(ids)
        if self.sink is not None:
            self.sink.given(into.id, np.asarray(ids, np.int32))

    def broken(self, kind: BreakKind, place: int, detail: str = "", *, segment: int | None = None) -> None:
        """Record that the tokens from position `place` of the segment on, which are recorded already, do not continue
        what was sampled before."""
        into = self._segment(segment)
        found = Break(kind, place, detail)
        into.add_break(found)
        if self.sink is not None:
            self.sink.broken(into.id, found)

    def sampled(
        self,
        tokens: NDArray[np.int32],
        logprobs: NDArray[np.float32],
        versions: NDArray[np.int32],
        *,
        experts: NDArray[np.uint16] | None = None,
        experts_from: int = 0,
        segment: int | None = None,
    ) -> None:
        """Record sampled tokens. `experts` has a row for each position of the segment from `experts_from` on."""
        into = self._segment(segment)
        into.append_sampled(tokens, logprobs, versions)
        if experts is not None:
            into.place_experts(experts, experts_from)
        if self.sink is not None:
            self.sink.sampled(into.id, tokens, logprobs, versions, experts, experts_from)

    @property
    def length(self) -> int:
        """Length of the segment that was started last."""
        return self._segment(None).length

    def segments(self) -> list[Segment]:
        """Return the segments recorded so far. The builder can continue afterwards."""
        return [segment.freeze() for segment in self._open]

    def _segment(self, number: int | None) -> _OpenSegment:
        if not self._open:
            raise ValueError("start_segment comes before anything else: the builder has no segment yet")
        if number is not None and not 0 <= number < len(self._open):
            raise ValueError(f"there is no segment {number}: there are {len(self._open)}")
        return self._open[-1 if number is None else number]


class _OpenSegment:
    def __init__(self, segment_id: int, parent: int | None, kind: SegmentKind) -> None:
        self.id, self.parent, self.kind = segment_id, parent, kind
        self.length = 0
        self._tokens: list[NDArray[np.int32]] = []
        self._sampled: list[NDArray[np.bool_]] = []
        self._logprobs: list[NDArray[np.float32]] = []
        self._versions: list[NDArray[np.int32]] = []
        self._experts: list[tuple[int, NDArray[np.uint16]]] = []
        self._breaks: list[Break] = []

    def append_given(self, ids: Sequence[int]) -> None:
        tokens = np.asarray(ids, np.int32)
        nothing = np.zeros(len(tokens), np.float32)
        self._append(
            tokens, np.zeros(len(tokens), np.bool_), nothing, np.full(len(tokens), UNSAMPLED_VERSION, np.int32)
        )

    def append_sampled(
        self, tokens: NDArray[np.int32], logprobs: NDArray[np.float32], versions: NDArray[np.int32]
    ) -> None:
        if not len(tokens) == len(logprobs) == len(versions):
            raise ValueError(
                f"expected as many log-probs and versions as tokens, found {len(tokens)} tokens, "
                f"{len(logprobs)} log-probs, {len(versions)} versions"
            )
        self._append(
            np.array(tokens, np.int32),
            np.ones(len(tokens), np.bool_),
            np.array(logprobs, np.float32),
            np.array(versions, np.int32),
        )

    def add_break(self, found: Break) -> None:
        if not 0 <= found.place <= self.length:
            raise ValueError(f"a break at position {found.place} of a segment of {self.length} tokens")
        self._breaks.append(found)

    def place_experts(self, experts: NDArray[np.uint16], start: int) -> None:
        if experts.ndim != 3 or start < 0 or start + len(experts) != self.length:
            raise ValueError(
                f"experts of shape {experts.shape} from position {start} do not end at {self.length}, "
                "the length of the segment"
            )
        if self._experts and self._experts[0][1].shape[1:] != experts.shape[1:]:
            raise ValueError(
                f"expected experts of (layers, top k) = {self._experts[0][1].shape[1:]} as before, "
                f"found {experts.shape[1:]}"
            )
        self._experts.append((start, np.array(experts, np.uint16)))

    def freeze(self) -> Segment:
        return Segment(
            id=self.id,
            parent=self.parent,
            kind=self.kind,
            tokens=np.concatenate(self._tokens),
            sampled=np.concatenate(self._sampled),
            logprobs=np.concatenate(self._logprobs),
            versions=np.concatenate(self._versions),
            experts=self._placed_experts(),
            breaks=tuple(sorted(self._breaks, key=lambda found: found.place)),
        )

    def _append(
        self,
        tokens: NDArray[np.int32],
        sampled: NDArray[np.bool_],
        logprobs: NDArray[np.float32],
        versions: NDArray[np.int32],
    ) -> None:
        self._tokens.append(tokens)
        self._sampled.append(sampled)
        self._logprobs.append(logprobs)
        self._versions.append(versions)
        self.length += len(tokens)

    def _placed_experts(self) -> NDArray[np.uint16] | None:
        if not self._experts:
            return None
        placed = np.full((self.length, *self._experts[0][1].shape[1:]), UNKNOWN_EXPERT, np.uint16)
        for start, rows in self._experts:
            target = placed[start : start + len(rows)]
            np.copyto(target, rows, where=target == UNKNOWN_EXPERT)
        return placed
