"""Lints: the problems that a repository's own linters report, new ones told apart from those that were there before.

Linters are data (`linters/*.toml`); `Lints.look` runs those that a workspace's files are configured for.
"""

from etude.harness.lints.compare import unmatched
from etude.harness.lints.diagnostic import Diagnostic
from etude.harness.lints.linter import Linter, builtin_linters, parse_linter
from etude.harness.lints.run import Lints, Report

__all__ = ["Diagnostic", "Linter", "Lints", "Report", "builtin_linters", "parse_linter", "unmatched"]
