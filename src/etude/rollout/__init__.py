"""Rollouts: run an agent on a task in a box, record its trace and grade the result. Evaluations run many rollouts.

An infrastructure error is never counted as a failure of the model.
"""

from etude.rollout.box_limit import GatedSandboxes
from etude.rollout.demonstrate import Demonstrations, TooFewDemonstrations, demonstrate, oracle
from etude.rollout.evaluate import Evaluation, evaluate
from etude.rollout.job import RolloutJob, RolloutResult
from etude.rollout.results import Sample, read_samples
from etude.rollout.rollout import run_rollout
from etude.rollout.setup import RolloutSetup, Subject, TaskCache, open_setup, subject_of
from etude.rollout.statistics import Estimate, Paired, across_seeds, estimate, over_seeds, paired, pass_at_k
from etude.rollout.summary import Summary, scores, summarise
from etude.rollout.worker import RolloutWorker, WorkerStats

__all__ = [
    "Demonstrations",
    "Estimate",
    "Evaluation",
    "GatedSandboxes",
    "Paired",
    "RolloutJob",
    "RolloutResult",
    "RolloutSetup",
    "RolloutWorker",
    "Sample",
    "Subject",
    "Summary",
    "TaskCache",
    "TooFewDemonstrations",
    "WorkerStats",
    "across_seeds",
    "demonstrate",
    "estimate",
    "evaluate",
    "open_setup",
    "oracle",
    "over_seeds",
    "paired",
    "pass_at_k",
    "read_samples",
    "run_rollout",
    "scores",
    "subject_of",
    "summarise",
]
