"""How instances of SWE-bench are graded: by a hidden suite that comes as a patch (`type = "swebench"`), or, where no
runner of ours can run their tests, by their own script and its log (`type = "eval-script"`, open)."""

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
