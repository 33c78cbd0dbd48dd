"""Scores with bootstrap intervals. The bootstrap resamples tasks, not samples; with several seeds it resamples the
seeds first.

Several samples of one task are not independent evidence about other tasks, so an interval over samples would be too
narrow. The same holds for the tasks of one seed: a seed determines a whole lineage (weights, data order and tasks), so
tasks are nested in seeds, even if two seeds give tasks the same name.
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
    """A mean with its 95 % interval. `tasks` is the number of values: tasks, or seeds from `across_seeds`."""

    mean: float
    low: float
    high: float
    tasks: int


@dataclass(frozen=True, slots=True)
class Paired:
    """The mean difference (after minus before), and how many tasks got better, got worse or stayed equal."""

    difference: Estimate
    better: int
    worse: int
    equal: int


def pass_at_k(samples: int, passed: int, k: int) -> float:
    """Return the unbiased estimate of the probability that at least one of k samples passes."""
    if not 0 <= passed <= samples or not 1 <= k <= samples:
        raise ValueError(
            f"pass@{k}: expected 0 <= passed <= samples and 1 <= k <= samples, found {passed} passed of {samples}"
        )
    return 1.0 - comb(samples - passed, k) / comb(samples, k)


def estimate(values: Sequence[float] | NDArray[np.float64], seed: int = 0) -> Estimate | None:
    """Return the mean and the bootstrap interval of `values`, which has one value per task. Return None
    if it is empty."""
    array = np.asarray(values, np.float64)
    if not len(array):
        return None
    draws = np.random.default_rng(seed).integers(0, len(array), (RESAMPLES, len(array)))
    low, high = np.quantile(array[draws].mean(axis=1), [0.025, 0.975])
    return Estimate(float(array.mean()), float(low), float(high), len(array))


def over_seeds(values: Sequence[Sequence[float]], seed: int = 0) -> Estimate | None:
    """Return the mean and the nested bootstrap interval (over seeds, then over the tasks of each). `values` has one
    list per seed, with one score or paired difference per task. Every seed has the same weight. Return None if there
    are no values.

    Resampling n seeds underestimates the variance between seeds, so that part is stretched by sqrt(n / (n - 1)). With
    three seeds, the true coverage of the 95 % interval depends on how much the seeds differ. It is at least 95 % if
    they differ no more than they would because of their tasks alone, and less if they differ much more. With one seed
    the interval is over its tasks only."""
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
    """Compare two mappings from task to score on the tasks that are in both. Return None if there is no such task."""
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
    """Return the mean and Student's t 95 % interval of one value per seed, such as a loss or a time. Return None for
    fewer than two values.

    With three seeds the interval is wide, since three values say little about the variance."""
    if len(values) < 2:
        return None
    array = np.asarray(values, np.float64)
    freedom = len(array) - 1
    quantile = _T95[freedom - 1] if freedom <= len(_T95) else 1.96
    half = quantile * array.std(ddof=1) / np.sqrt(len(array))
    return Estimate(float(array.mean()), float(array.mean() - half), float(array.mean() + half), len(array))
