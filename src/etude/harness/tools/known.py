"""Checks that the agent has seen the current contents of a file before it changes it."""

from __future__ import annotations

from etude.harness.toolbox import Toolbox, ToolProblem


def require_known(toolbox: Toolbox, path: str, data: bytes) -> None:
    """Raise ToolProblem unless the file still is what the agent saw."""
    if not toolbox.knows(path, data):
        raise ToolProblem(toolbox.say("stale", path=path))
