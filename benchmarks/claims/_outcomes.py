"""The outcome of an evaluation per task, in a form that a row can store, and scores computed from it."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from _arms import Arm
from _figures import interval, stated

from etude.journal import RunPaths
from etude.rollout import Estimate, Sample, across_seeds, over_seeds, pass_at_k, read_samples

Outcomes = Mapping[str, Mapping[str, Any]]
"""By task: number of samples, how many passed, whether the greedy one passed, mean turns of those passed, and cell."""
Score = Callable[[Mapping[str, Any]], float | None]
"""Score of one task's outcome; None if it has none."""


def outcomes(folder: Path) -> dict[str, dict[str, Any]]:
    by_task: dict[str, list[Sample]] = defaultdict(list)
    for sample in read_samples(folder / "results.jsonl"):
        if sample.valid:
            by_task[sample.task].append(sample)
    return {task: _outcome(samples) for task, samples in sorted(by_task.items())}


def _outcome(samples: list[Sample]) -> dict[str, Any]:
    drawn, greedy = [s for s in samples if not s.greedy], [s for s in samples if s.greedy]
    return {
        "samples": len(drawn),
        "passed": sum(s.passed for s in drawn),
        "greedy": int(greedy[0].passed) if greedy else None,
        "turns": _mean(s.turns for s in drawn if s.passed),
        "cell": getattr(samples[0], "cell", ""),
    }


def behaviour(folder: Path) -> dict[str, float]:
    """How the agent worked, as means over the samples at temperature 1."""
    samples = [s for s in read_samples(folder / "results.jsonl") if s.valid and not s.greedy]
    solved = [s for s in samples if s.passed]
    return {
        "first_edit": _mean(bool(s.first_edit) for s in samples),
        "truncated": _mean(s.stop.truncated for s in samples),
        "turns": _mean(s.turns for s in samples),
        "turns_per_solved": _mean(s.turns for s in solved),
        "tokens_per_solved": _mean(s.sampled_tokens for s in solved),
        # Cost per solved rollout, with that of the failed ones included.
        "turns_spent_per_solved": sum(s.turns for s in samples) / max(1, len(solved)),
        "tokens_spent_per_solved": sum(s.sampled_tokens for s in samples) / max(1, len(solved)),
        "claimed_but_failed": _mean(s.stop == "finished" and not s.passed for s in samples),
    }


def pass1(task: Mapping[str, Any]) -> float | None:
    return task["passed"] / task["samples"] if task["samples"] else None


def greedy(task: Mapping[str, Any]) -> float | None:
    return None if task["greedy"] is None else float(task["greedy"])


def turns(task: Mapping[str, Any]) -> float | None:
    """Mean turns of the task's solved rollouts."""
    return float(task["turns"]) if task["passed"] else None


def at(k: int) -> Score:
    """pass@k."""
    return lambda task: pass_at_k(task["samples"], task["passed"], k) if task["samples"] >= k else None


def mean(evaluations: Iterable[Outcomes], score: Score) -> Estimate | None:
    """Mean score over tasks; `evaluations` has one per seed."""
    return _over([_values(evaluation, score) for evaluation in evaluations])


def gain(pairs: Iterable[tuple[Outcomes, Outcomes]], score: Score) -> Estimate | None:
    """Mean of after minus before over the tasks that both have; one pair of evaluations per seed."""
    differences = []
    for before, after in pairs:
        scores = [(score(before[task]), score(after[task])) for task in sorted(before.keys() & after.keys())]
        differences.append([b - a for a, b in scores if a is not None and b is not None])
    return _over(differences)


def gains(name: str, pairs: Sequence[tuple[Outcomes, Outcomes]], score: Score) -> dict[str, Any]:
    """The gain with its bootstrap interval, each seed's own gain, and Student's interval over the seeds' gains.

    Student's makes no assumption about tasks, and with few seeds it is the wider one."""
    own = [found.mean for pair in pairs if (found := gain([pair], score))]
    return {
        **stated(name, gain(pairs, score)),
        f"{name}_by_seed": [round(one, 4) for one in own],
        f"{name}_student_ci": interval(across_seeds(own)),
    }


def only(evaluation: Outcomes, wanted: Iterable[str]) -> Outcomes:
    """The outcomes of the wanted tasks alone."""
    return {task: evaluation[task] for task in wanted if task in evaluation}


def before_and_after(paths: RunPaths, arm: Arm) -> dict[str, Any]:
    """`measure` of a claim that compares RL's first evaluation on dev with its last."""
    first, *_, last = on_dev(paths)
    return {"before": outcomes(first), "after": outcomes(last)}


def on_dev(paths: RunPaths) -> list[Path]:
    """Folders of RL's finished evaluations on dev, first to last."""
    return sorted(file.parent for file in (paths.root / "eval").glob("dev-step-*/summary.json"))


def _over(values: Sequence[Sequence[float]]) -> Estimate | None:
    """Estimate over seeds, from one value per task for each. With a single seed there is no interval, although its
    tasks would give one: a claim is about seeds."""
    found = over_seeds(values)
    if found is None or sum(map(bool, values)) > 1:
        return found
    return replace(found, low=math.nan, high=math.nan)


def _values(evaluation: Outcomes, score: Score) -> list[float]:
    return [value for _, task in sorted(evaluation.items()) if (value := score(task)) is not None]


def _mean(values: Iterable[float]) -> float:
    found = list(values)
    return round(float(np.mean(found)), 4) if found else 0.0
