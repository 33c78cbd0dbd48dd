"""Grep for large folders: an index selects the files that may match, and ripgrep searches only those.

The result always equals that of ripgrep alone on the folder's current files.
"""

from etude.harness.search.grep import Grep
from etude.harness.search.query import Pattern
from etude.harness.search.ripgrep import BadPattern, Found, NoRipgrep, Ripgrep, Scope, SearchFailed

__all__ = ["BadPattern", "Found", "Grep", "NoRipgrep", "Pattern", "Ripgrep", "Scope", "SearchFailed"]
