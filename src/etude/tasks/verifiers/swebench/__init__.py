"""The verifiers of SWE-bench instances.

`type = "swebench"` runs the instance's hidden tests, which come as a patch, with one of Étude's test runners. `type =
"eval-script"` runs the instance's own script and judges its log. It is for instances with tests that none of Étude's
runners can run. Its verdicts are open: they could be forged.
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
