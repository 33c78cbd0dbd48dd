"""Asks git for the status of the user's folder and its recently changed files.

git runs on the host before the agent begins, because the agent's view of the folder has no version control. git only
reads here: it takes no lock, and runs neither hooks nor a file system monitor. Without git or a repository the results
are empty, without an error.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

MOST_RECENT = 10
_COMMITS = 20
_SECONDS = 10.0
_GIT = ("git", "--no-optional-locks", "-c", "core.fsmonitor=false", "-c", "core.quotepath=false")


async def git_status(folder: Path) -> list[str]:
    """Return the branch and the uncommitted changes, as lines of `git status --short --branch`."""
    return (await _said(folder, "status", "--short", "--branch", "--", ".")).splitlines()


async def recent_files(folder: Path) -> list[str]:
    """Return the existing files that the last commits changed, most recently changed first."""
    named = await _said(folder, "log", f"-{_COMMITS}", "--format=", "--name-only", "--relative", "-z", "--", ".")
    paths = dict.fromkeys(path.strip("\n") for path in named.split("\0"))
    return [path for path in paths if path and (folder / path).is_file()][:MOST_RECENT]


async def _said(folder: Path, *words: str) -> str:
    """Run git with these arguments and return its output; "" if it fails."""
    null, pipe = asyncio.subprocess.DEVNULL, asyncio.subprocess.PIPE
    try:
        git = await asyncio.create_subprocess_exec(*_GIT, *words, cwd=folder, stdin=null, stdout=pipe, stderr=null)
    except OSError:
        return ""
    try:
        async with asyncio.timeout(_SECONDS):
            output, _ = await git.communicate()
    except TimeoutError:
        return ""
    finally:
        if git.returncode is None:
            git.kill()
            await git.wait()
    return output.decode("utf-8", "replace") if git.returncode == 0 else ""
