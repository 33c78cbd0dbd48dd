"""Scores with intervals: the task is the unit that is drawn at random, so tasks are what the bootstrap resamples.

Samples of one task are no independent evidence about other tasks; an interval over samples would be too narrow.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import comb

import numpy as np
from numpy.typing import NDArray

RESAMPLES = 2000


@dataclass(frozen=True, slots=True)
class Estimate:
    """A mean over tasks and its 95 % bootstrap interval."""

    mean: float
    low: float
    high: float
    tasks: int


@dataclass(frozen=True, slots=True)
class Paired:
    """Two evaluations of the same tasks: the mean of the differences, and on how many tasks which was better."""

    difference: Estimate
    better: int
    worse: int
    equal: int


def pass_at_k(samples: int, passed: int, k: int) -> float:
    """The unbiased estimate of the chance that at least one of k samples passes."""
    if not 0 <= passed <= samples or not 1 <= k <= samples:
        raise ValueError(f"pass@{k} of {passed} passed among {samples}")
    return 1.0 - comb(samples - passed, k) / comb(samples, k)


def estimate(values: Sequence[float] | NDArray[np.float64], seed: int = 0) -> Estimate | None:
    """None without any task."""
    array = np.asarray(values, np.float64)
    if not len(array):
        return None
    draws = np.random.default_rng(seed).integers(0, len(array), (RESAMPLES, len(array)))
    low, high = np.quantile(array[draws].mean(axis=1), [0.025, 0.975])
    return Estimate(float(array.mean()), float(low), float(high), len(array))


def paired(before: Mapping[str, float], after: Mapping[str, float], seed: int = 0) -> Paired | None:
    """Scores by task; tasks that only one side has are left out. None when there is no common task."""
    common = sorted(before.keys() & after.keys())
    differences = np.array([after[task] - before[task] for task in common])
    found = estimate(differences, seed)
    if found is None:
        return None
    better, worse = int((differences > 1e-9).sum()), int((differences < -1e-9).sum())
    return Paired(found, better, worse, len(common) - better - worse)
