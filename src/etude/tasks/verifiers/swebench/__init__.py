"""The verifiers of SWE-bench instances.

`type = "swebench"`: a hidden suite that comes as a patch, run by one of Étude's runners. `type = "eval-script"`: the
instance's own script, judged by its log. The second is for instances whose tests none of the runners can run, and its
verdicts are open.
"""

from etude.tasks.verifiers.swebench.hidden import TEST_PATCH, WIDE
from etude.tasks.verifiers.swebench.ids import dotted, is_ambiguous, is_cut, may_mean, runner_ids
from etude.tasks.verifiers.swebench.logs import PARSERS
from etude.tasks.verifiers.swebench.script import END, EVAL_SCRIPT, START, EvalScriptVerifier
from etude.tasks.verifiers.swebench.suite import SwebenchVerifier

__all__ = [
    "END",
    "EVAL_SCRIPT",
    "PARSERS",
    "START",
    "TEST_PATCH",
    "WIDE",
    "EvalScriptVerifier",
    "SwebenchVerifier",
    "dotted",
    "is_ambiguous",
    "is_cut",
    "may_mean",
    "runner_ids",
]
