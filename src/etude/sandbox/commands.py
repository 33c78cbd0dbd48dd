"""How a command starts in a box: the default environment, under the image's own, and the equivalent shell line."""

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


def shell_line(command: list[str] | str, cwd: str | None, env: dict[str, str] | None) -> str:
    """The shell line that would run this command again."""
    line = command if isinstance(command, str) else shlex.join(command)
    if env:
        words = [f"{name}={value}" for name, value in env.items()]
        line = shlex.join(["env", *words, *(["/bin/sh", "-c", command] if isinstance(command, str) else command)])
    return f"cd {shlex.quote(cwd)} && {line}" if cwd else line
