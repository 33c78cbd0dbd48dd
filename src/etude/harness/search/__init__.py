"""Grep for large folders: an index picks the files that may match, and ripgrep itself searches them.

The result is always what ripgrep finds in the folder as it is at that moment.
"""

from etude.harness.search.grep import Grep
from etude.harness.search.query import Pattern
from etude.harness.search.ripgrep import BadPattern, Found, Match, NoRipgrep, Ripgrep, Scope, SearchFailed

__all__ = ["BadPattern", "Found", "Grep", "Match", "NoRipgrep", "Pattern", "Ripgrep", "Scope", "SearchFailed"]
