"""The verifiers of SWE-bench instances: a hidden suite that comes as a patch (`type = "swebench"`), or, where none of
our runners can run the tests, the instance's own script and its log (`type = "eval-script"`, open)."""

from etude.tasks.verifiers.swebench.hidden import TEST_PATCH, WIDE
from etude.tasks.verifiers.swebench.ids import dotted, is_cut, is_open, resolved, stands_for
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
    "is_cut",
    "is_open",
    "resolved",
    "stands_for",
]
