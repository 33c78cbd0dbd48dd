"""An environment with a repository whose history contains the solution."""

from __future__ import annotations

import os
import subprocess
import tempfile
from dataclasses import replace
from pathlib import Path

from .micro import Micro


def history_environment() -> Micro:
    """An environment whose repository holds the solution in every place where history can hide."""
    micro = Micro.read("unittest-spans")
    return replace(micro, name="unittest-history", history=_past(micro))


def _past(micro: Micro) -> dict[str, bytes]:
    """A repository with the fix on a branch, in the reflog, in the stash, in a pack, and in an unreferenced loose
    object."""
    with tempfile.TemporaryDirectory(prefix="etude-past-") as place:
        folder, before = Path(place), micro.before[micro.target]
        path = folder / micro.target
        path.parent.mkdir()
        (folder / "spans/__init__.py").touch()

        def git(*arguments: str) -> None:
            who = {f"GIT_{role}_{key}": "a@b.example" for role in ("AUTHOR", "COMMITTER") for key in ("NAME", "EMAIL")}
            quiet = {"GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_SYSTEM": os.devnull, "HOME": place}
            dates = {"GIT_AUTHOR_DATE": "1700000000 +0000", "GIT_COMMITTER_DATE": "1700000000 +0000"}
            environment = {"PATH": os.environ["PATH"], **who, **quiet, **dates}
            subprocess.run(["git", *arguments], cwd=place, check=True, capture_output=True, env=environment)

        def commit(text: str, words: str) -> None:
            path.write_text(text, encoding="utf-8")
            git("add", ".")
            git("commit", "-q", "-m", words)

        git("init", "-q", "-b", "main")
        commit(before, "spans")
        commit(micro.right, "count both ends")
        git("branch", "fixed")
        git("gc", "-q")
        git("reset", "-q", "--hard", "HEAD~1")
        path.write_text(micro.other, encoding="utf-8")
        git("stash", "-q")
        path.write_text(f"{micro.right}\n# loose\n", encoding="utf-8")
        git("hash-object", "-w", micro.target)
        path.write_text(before, encoding="utf-8")
        inner = folder / ".git"
        files = [file for file in sorted(inner.rglob("*")) if file.is_file() and file.suffix != ".sample"]
        return {str(file.relative_to(folder)): file.read_bytes() for file in files}
