"""Compares an engine's log-probs with the trainer's on the same ids, and judges the difference. It needs no torch.

An engine can compute with wrong weights or a wrong kernel without any error, so this is the only general check.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from etude.engine.protocol import FloatArray, IntArray

ROWS, PROMPT, SAMPLED = 4, 16, 48
"""A probe is so many sequences: a prompt of random ids, and ids that the engine sampled after it."""
TEMPERATURES = (1.0, 1.0, 0.7, 0.7)
"""At which each of them is sampled. Log-probs before temperature show in the last two."""


def prompts(vocab_size: int) -> IntArray:
    """Return the prompts of a probe [ROWS, PROMPT], always the same."""
    return np.random.default_rng(28).integers(0, vocab_size, (ROWS, PROMPT)).astype(np.int32)


@dataclass(frozen=True, slots=True)
class Comparison:
    """The difference of two engines' log-probs of the same ids, in nats."""

    mean: float
    """Mean absolute difference. Infinite if a log-prob is not a number."""
    p99: float
    largest: float
    k3: float
    """Estimate of the KL divergence of the engine's distribution from the trainer's: mean of exp(d) - 1 - d."""

    def __str__(self) -> str:
        return f"mean {self.mean:.4f}, p99 {self.p99:.4f}, largest {self.largest:.4f}, k3 {self.k3:.5f} nats"


def compare(trainer: FloatArray, engine: FloatArray) -> Comparison:
    if not (np.isfinite(trainer).all() and np.isfinite(engine).all()):
        return Comparison(*[float("inf")] * 4)
    difference = trainer.astype(np.float64).ravel() - engine.astype(np.float64).ravel()
    size = np.abs(difference)
    k3 = float(np.mean(np.expm1(difference) - difference))
    return Comparison(float(size.mean()), float(np.quantile(size, 0.99)), float(size.max()), k3)


@dataclass(frozen=True, slots=True)
class Bound:
    """The largest difference that is taken for rounding."""

    mean: float
    p99: float

    def refusal(self, found: Comparison) -> str | None:
        """Return why an engine is refused, or None."""
        if found.mean <= self.mean and found.p99 <= self.p99:
            return None
        return f"log-probs differ from the trainer's by {found}; the bound is mean {self.mean:g}, p99 {self.p99:g}"


BOUNDS = {"float32": Bound(0.002, 0.02), "bfloat16": Bound(0.08, 0.4)}
"""By compute dtype."""
