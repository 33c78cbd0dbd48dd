"""What git knows of the user's folder: its status and the recently changed files.

Runs git on the host before the agent begins, since the agent's view of the folder has no version control. It only
reads: git takes no lock, and runs neither a hook nor a file system monitor. Where there is no git or no repository the
answers are empty, which is no error.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

MOST_RECENT = 10
_COMMITS = 20
_SECONDS = 10.0
_GIT = ("git", "--no-optional-locks", "-c", "core.fsmonitor=false", "-c", "core.quotepath=false")


async def state_of(folder: Path) -> list[str]:
    """The branch and the uncommitted changes, as `git status --short --branch` prints them."""
    return (await _said(folder, "status", "--short", "--branch", "--", ".")).splitlines()


async def recent_files(folder: Path) -> list[str]:
    """Files changed by the last commits that still exist, latest first."""
    named = await _said(folder, "log", f"-{_COMMITS}", "--format=", "--name-only", "--relative", "-z", "--", ".")
    paths = dict.fromkeys(path.strip("\n") for path in named.split("\0"))
    return [path for path in paths if path and (folder / path).is_file()][:MOST_RECENT]


async def _said(folder: Path, *words: str) -> str:
    nowhere, heard = asyncio.subprocess.DEVNULL, asyncio.subprocess.PIPE
    try:
        git = await asyncio.create_subprocess_exec(
            *_GIT, *words, cwd=folder, stdin=nowhere, stdout=heard, stderr=nowhere
        )
    except OSError:
        return ""
    try:
        async with asyncio.timeout(_SECONDS):
            said, _ = await git.communicate()
    except TimeoutError:
        return ""
    finally:
        if git.returncode is None:
            git.kill()
            await git.wait()
    return said.decode("utf-8", "replace") if git.returncode == 0 else ""
