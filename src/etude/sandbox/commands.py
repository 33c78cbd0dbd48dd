"""Command helpers that all backends share: the default environment, and the shell line that repeats a command."""

from __future__ import annotations

import shlex

from etude.sandbox.images.host_base import PATH

ENVIRONMENT = {
    "PATH": PATH,
    "LANG": "C.UTF-8",
    "TZ": "UTC",
    "PYTHONHASHSEED": "0",
    "PYTHONDONTWRITEBYTECODE": "1",
    "PAGER": "cat",
}
"""Environment variables of every command. Variables that the image sets override them."""


def shell_line(command: list[str] | str, cwd: str | None, env: dict[str, str] | None) -> str:
    """Return a shell line that runs this command again, in the same folder and environment."""
    line = command if isinstance(command, str) else shlex.join(command)
    if env:
        words = [f"{name}={value}" for name, value in env.items()]
        line = shlex.join(["env", *words, *(["/bin/sh", "-c", command] if isinstance(command, str) else command)])
    return f"cd {shlex.quote(cwd)} && {line}" if cwd else line
