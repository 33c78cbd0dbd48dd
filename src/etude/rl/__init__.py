"""Reinforcement learning: reward, advantage, loss, the reconciler, the run.

Rewards are defined here, as named terms computed from a Trace and a Verdict.
"""

from etude.rl.advantage import group_advantages
from etude.rl.cores import Reading, read_cores
from etude.rl.crew import Crew, dismiss, gather_crew
from etude.rl.reconciler import Plan, Reconciler
from etude.rl.reward import Reward, length_cost, score
from etude.rl.run import RlRun, evaluated_steps

__all__ = [
    "Crew",
    "Plan",
    "Reading",
    "Reconciler",
    "Reward",
    "RlRun",
    "dismiss",
    "evaluated_steps",
    "gather_crew",
    "group_advantages",
    "length_cost",
    "read_cores",
    "score",
]
