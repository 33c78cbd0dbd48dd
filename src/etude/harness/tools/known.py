"""What an agent must have seen before it changes a file. Where a profile has no words for it, the call is refused."""

from __future__ import annotations

from etude.harness.toolbox import Toolbox, ToolProblem


def require_known(toolbox: Toolbox, path: str, data: bytes) -> None:
    """The file is what the agent believes it to be."""
    if not toolbox.knows(path, data):
        raise ToolProblem(toolbox.say("stale", path=path))
