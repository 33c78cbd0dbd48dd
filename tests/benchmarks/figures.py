"""Figures of runs that never were, in the form that each claim measures: for tests of what is concluded from rows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from _reciprocal import BITS, KINDS


def outcomes(rate: float, seed: int, tasks: int = 24) -> dict[str, dict[str, Any]]:
    rng = np.random.default_rng([seed, int(100 * rate)])
    return {
        f"t{task:03d}": {
            "samples": 16,
            "passed": int(rng.binomial(16, rng.beta(4 * rate, 4 * (1 - rate)))),
            "greedy": int(rng.random() < rate),
            "turns": float(rng.integers(3, 9)),
            "cell": "both_seen" if task % 2 else "both_unseen",
        }
        for task in range(tasks)
    }


def spine(arm: str, seed: int) -> dict[str, Any]:
    seconds = {"sft": 30.0, arm: 400.0}
    per_solved = {"turns_per_solved": 5.0, "tokens_per_solved": 50.0}
    spent = {"turns_spent_per_solved": 15.0, "tokens_spent_per_solved": 200.0}
    ends = {"first_edit": 0.5, "claimed_but_failed": 0.05, "tokens_per_solved": 80.0, "tokens_spent_per_solved": 120.0}
    behaviour = {"first_edit": 0.3, "truncated": 0.1, "claimed_but_failed": 0.2, **per_solved, **spent}
    curve = [[step, 0.1 + 0.01 * step] for step in (1, 2, 3)]
    names = ("entropy", "clipped_share", "mismatch_p99", "staleness", "masked_share", "truncated", "claimed_but_failed")
    return {
        "one_edit": {"before": outcomes(0.2, seed), "after": outcomes(0.5, seed)} if seed > 1 else {},
        "seconds": seconds,
        "learning_seconds": 380.0 if arm == "rl" else None,
        "sft_held_out": [[40, 0.11], [80, 0.09], [120, 0.085]],
        "valid_calls": 0.98,
        "before": outcomes(0.3, seed),
        "after": outcomes(0.6 if arm == "rl" else 0.4, seed),
        "behaviour": {"sft": behaviour, arm: behaviour | ends},
        "dev": [[0, 0.3, 0.5, 16], [20, 0.5, 0.6, 16]] if arm == "rl" else [],
        "curves": {name: curve if arm == "rl" else [] for name in names},
    }


def plateau(arm: str, seed: int) -> dict[str, Any]:
    """Twice as long has a lower loss, and does not solve more."""
    loss = 0.1 if arm == "recipe" else 0.09
    solved = {"before": outcomes(0.3, seed + len(arm)), "after": outcomes(0.6, seed + len(arm))}
    return {"loss": loss, "held_out": [[40, 0.3], [80, loss]], **solved}


def long_phase(arm: str, seed: int) -> dict[str, Any]:
    losses = {"before": 2.0} if arm == "with" else {"plain": 2.0, "rescaled": 1.6}
    return {"late_loss": (1.2 if arm == "with" else 1.6) + 0.01 * seed, **losses}


def mtp(arm: str, seed: int) -> dict[str, Any]:
    rates = {slots: {"with": 1500.0 + seed - 10 * int(slots), "without": 1200.0} for slots in ("1", "8", "64")}
    return {"tokens_per_second": rates, "accepted_per_draft": {"1": 0.85, "8": 0.87, "64": 0.88 - 0.03 * (seed == 1)}}


def replay(arm: str, seed: int) -> dict[str, Any]:
    probes = [[10, 0.04, 0.01, 0.012 + 0.001 * seed], [20, 0.05, 0.01, 0.012]]
    return {"probes": probes, "mismatch_p99": 0.02, "dev": outcomes(0.5, seed)}


def trust(arm: str, seed: int) -> dict[str, Any]:
    """By difference rewards are the same, and fewer tokens are beyond the region."""
    clipped = 0.01 if arm == "ratio" else 0.002 * seed
    values = {"reward": 0.5, "clipped_share": clipped, "mismatch_p99": 0.3}
    curves = {name: [[step, value] for step in range(1, 49)] for name, value in values.items()}
    return {"curves": curves, "dev": outcomes(0.6, seed + len(arm))}


def swaps(arm: str, seed: int) -> dict[str, Any]:
    pace = (10.0 if arm == "in flight" else 15.0) + seed
    reward = [0.1 + 0.05 * step for step in range(12)]
    return {"seconds": [pace * step for step in range(1, 13)], "reward": reward, "staleness": 1.0}


def before_and_after(arm: str, seed: int) -> dict[str, Any]:
    return {"before": outcomes(0.3, seed), "after": outcomes(0.5, seed + len(arm))}


def summaries(arm: str, seed: int) -> dict[str, Any]:
    found = before_and_after("on and off" if arm == "on" else arm, seed)
    lengths = {task: 200.0 + 50 * (place % 3 == 0) for place, task in enumerate(found["after"])}
    return {**found, "tokens": lengths} if arm == "whole window" else found


def budgets(arm: str, seed: int) -> dict[str, Any]:
    steps = {"quarter": 450, "half": 900, "whole": 1800}[arm]
    loss = 3.0 - (0.3 + 0.001 * (seed - 2)) * np.log2(steps / 450)
    return {"steps": steps, "loss": loss, "reward": 1.2 - 0.3 * loss + 0.01 * seed, "dev": outcomes(0.4, seed)}


def precision_leak(arm: str, seed: int) -> dict[str, Any]:
    keys = [f"{way}_{figure}" for way in ("future", "batch") for figure in ("mean", "max", "share")]
    none = dict.fromkeys(keys, 0.0)
    leaks = dict.fromkeys(keys, 0.1 + 0.01 * seed)
    return {**dict.fromkeys(("bf16", "nvfp4", "mxfp8", "fp8_block"), none), "nvfp4_tensor": leaks}


def precision_pretraining(arm: str, seed: int) -> dict[str, Any]:
    loss = 1.0 + 0.02 * seed + {"bf16": 0.0, "mxfp8": 0.001 * seed, "nvfp4": 0.03}[arm]
    curve = [[step, 5.0 / step + loss] for step in range(5, 200, 5)]
    return {"loss": loss, "seconds": 200.0, "curve": curve, "ended": None}


def precision_rl(arm: str, seed: int) -> dict[str, Any]:
    """NVFP4 per tensor comes apart with one seed."""
    far = {"mxfp8": 1.2, "nvfp4": 2.0, "nvfp4_tensor": 6.0, "reciprocal": 2.0, "reciprocal10": 3.0}.get(arm, 1.0)
    ended = {"step": 40, "why": "the gradient is not finite"} if (arm, seed) == ("nvfp4_tensor", 2) else None
    names = ("reward", "solved", "mismatch_mean", "mismatch_p99", "mismatch_k3", "entropy", "grad_norm")
    steps = range(1, (ended["step"] if ended else 100) + 1)
    shares = {kind: {str(bits): 1 / bits for bits in BITS} for kind in KINDS}
    return {
        "curves": {name: [[step, far * (0.1 + 0.001 * step)] for step in steps] for name in names},
        "probes": [[step, 0.02 * far, 0.01 * far, 0.01 * far] for step in steps if step % 10 == 1],
        "dev": None if ended else outcomes(0.6 if arm != "nvfp4_tensor" else 0.4, seed),
        "ended": ended,
        "seconds": 500.0,
        "changed": shares if arm == "reciprocal" else None,
    }


FIGURES: dict[str, Callable[[str, int], dict[str, Any]]] = {
    "spine": spine,
    "plateau": plateau,
    "long_phase": long_phase,
    "mtp": mtp,
    "replay": replay,
    "trust": trust,
    "swaps": swaps,
    "summaries": summaries,
    "length_cost": before_and_after,
    "budgets": budgets,
    "precision_leak": precision_leak,
    "precision_pretraining": precision_pretraining,
    "precision_rl": precision_rl,
}
