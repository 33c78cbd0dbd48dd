"""The prefix table, which holds the tokens of each row of the cache and finds the longest prefix that a new
prompt can reuse.

Invariant: in every row of the table, the entries of the first `filled` positions were computed from exactly the row's
tokens, by weights that requests of the row's namespace may read. Within a namespace rows are matched by content alone,
so conversations, groups of rollouts and forks need no special case.

Simplification: a prompt is compared with every row in one vectorised operation, instead of a search in a tree. With a
thousand rows of a thousand tokens this takes about half a millisecond per request.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from etude.engine.protocol import IntArray


@dataclass(frozen=True, slots=True)
class Match:
    row: int
    reused: int
    """Leading positions whose entries the prompt can reuse."""
    common: int
    """Leading tokens that row and prompt have in common."""


NO_MATCH = Match(row=-1, reused=0, common=0)


class PrefixTable:
    def __init__(self, rows: int, context: int, *, lookahead: int = 0) -> None:
        """`lookahead` is the number of later tokens on which a position's entries depend (1 with an MTP head)."""
        self._tokens: NDArray[np.int32] = np.zeros((rows, context), np.int32)
        self._known: NDArray[np.int64] = np.zeros(rows, np.int64)
        self._filled: NDArray[np.int64] = np.zeros(rows, np.int64)
        self._space: NDArray[np.int64] = np.zeros(rows, np.int64)
        self._lookahead = lookahead

    def begin(self, row: int, prompt: IntArray, space: int = 0) -> None:
        """Record the prompt of a request that begins in a row, and its namespace. The prompt's last position does not
        count as filled (reusable): the draft head's latent there depends on a token that is not known yet."""
        self._tokens[row, : prompt.size] = prompt
        self._known[row] = prompt.size
        self._filled[row] = prompt.size - 1
        self._space[row] = space

    def extend(self, row: int, sampled: IntArray) -> None:
        """Append sampled tokens. The last one, which was never fed to the network, does not count as filled."""
        start, end = int(self._known[row]), int(self._known[row]) + sampled.size
        self._tokens[row, start:end] = sampled
        self._known[row] = end
        self._filled[row] = end - 1

    def forget(self, row: int) -> None:
        self._known[row] = 0
        self._filled[row] = 0

    def filled(self, row: int) -> int:
        return int(self._filled[row])

    def longest(
        self,
        prompt: IntArray,
        *,
        unsettled: NDArray[np.bool_],
        worth: int,
        preferred: int | None = None,
        space: int = 0,
    ) -> Match:
        """Return the row of the namespace `space` with the longest reusable prefix, or NO_MATCH.

        The preferred row wins if the prompt begins with all its tokens, or in a tie. `unsettled` rows, whose entries
        are about to be computed, must save at least `worth` tokens more than any other. The last token of a prompt is
        never reused, because it has to be fed.
        """
        width = prompt.size
        if preferred is not None and self._space[preferred] != space:
            preferred = None
        if preferred is not None and not unsettled[preferred] and self._starts(preferred, prompt):
            known = int(self._known[preferred])
            return Match(preferred, min(known - self._lookahead, int(self._filled[preferred]), width - 1), known)
        different = self._tokens[:, :width] != prompt
        first = np.where(different.any(axis=1), different.argmax(axis=1), width)
        common = np.where(self._space == space, np.minimum(first, self._known), 0)
        reused = np.minimum(np.minimum(common - self._lookahead, self._filled), width - 1).clip(min=0)
        row = int(np.argmax(np.where(unsettled, reused - worth, reused)))
        if preferred is not None and not unsettled[preferred] and reused[preferred] == reused[row]:
            row = preferred
        if reused[row] == 0:
            return NO_MATCH
        return Match(row, int(reused[row]), int(common[row]))

    def _starts(self, row: int, prompt: IntArray) -> bool:
        known = int(self._known[row])
        return 1 < known <= prompt.size and bool((self._tokens[row, :known] == prompt[:known]).all())
