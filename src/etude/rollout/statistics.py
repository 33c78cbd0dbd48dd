"""Scores with intervals: the task is the unit that is drawn at random, so tasks are what the bootstrap resamples.

Samples of one task are no independent evidence about other tasks; an interval over samples would be too narrow. Nor are
the tasks of one seed about other seeds. A seed decides a whole lineage: weights, order, and its tasks, so tasks lie
within seeds, also where two seeds name them alike. Over several seeds the bootstrap draws seeds, then tasks in each.
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


def over_seeds(values: Sequence[Sequence[float]], seed: int = 0) -> Estimate | None:
    """Per seed one value per task (scores, or differences of paired ones); each seed weighs the same. None without any.

    Seeds that are drawn from so few spread less than seeds do: their part of the spread is stretched by
    sqrt(n / (n - 1)). With three seeds that differ as much as their tasks alone would let them, or less, the interval
    holds the truth at least as often as it says; where seeds differ much more, less often. One seed alone knows nothing
    of others: its interval is over its tasks."""
    seeds = [np.asarray(tasks, np.float64) for tasks in values if len(tasks)]
    if len(seeds) < 2:
        return estimate(seeds[0], seed) if seeds else None
    rng = np.random.default_rng(seed)
    means = np.array([tasks.mean() for tasks in seeds])
    drawn = rng.integers(0, len(seeds), (RESAMPLES, len(seeds)))
    around = np.empty(drawn.shape)
    for place, tasks in enumerate(seeds):
        here = drawn == place
        around[here] = tasks[rng.integers(0, len(tasks), (here.sum(), len(tasks)))].mean(axis=1) - means[place]
    stretch = np.sqrt(len(seeds) / (len(seeds) - 1))
    centre = means.mean()
    replicates = centre + stretch * (means[drawn] - centre).mean(axis=1) + around.mean(axis=1)
    low, high = np.quantile(replicates, [0.025, 0.975])
    return Estimate(float(centre), float(low), float(high), sum(map(len, seeds)))


def paired(before: Mapping[str, float], after: Mapping[str, float], seed: int = 0) -> Paired | None:
    """Scores by task; tasks that only one side has are left out. None when there is no common task."""
    common = sorted(before.keys() & after.keys())
    differences = np.array([after[task] - before[task] for task in common])
    found = estimate(differences, seed)
    if found is None:
        return None
    better, worse = int((differences > 1e-9).sum()), int((differences < -1e-9).sum())
    return Paired(found, better, worse, len(common) - better - worse)


_T95 = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262)
"""Two-sided 95 % quantiles of Student's t for 1, 2, ... degrees of freedom."""


def across_seeds(values: Sequence[float]) -> Estimate | None:
    """Of figures that each seed has one of, a loss or a time: their mean and Student's 95 % interval, which with three
    seeds is wide because three seeds tell little. None with fewer than two."""
    if len(values) < 2:
        return None
    array = np.asarray(values, np.float64)
    freedom = len(array) - 1
    quantile = _T95[freedom - 1] if freedom <= len(_T95) else 1.96
    half = quantile * array.std(ddof=1) / np.sqrt(len(array))
    return Estimate(float(array.mean()), float(array.mean() - half), float(array.mean() + half), len(array))
