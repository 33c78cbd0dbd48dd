"""Runs a repository's own linters and separates new problems from those that existed before the agent's changes.

Linters are described by data files (`linters/*.toml`); `Lints.lint` runs those that the workspace configures.
"""

from etude.harness.lints.compare import unmatched
from etude.harness.lints.diagnostic import Diagnostic
from etude.harness.lints.linter import Linter, builtin_linters, parse_linter
from etude.harness.lints.run import Lints, Report

__all__ = ["Diagnostic", "Linter", "Lints", "Report", "builtin_linters", "parse_linter", "unmatched"]
