"""Programs and whole test files as an ordinary user: run by root, what boxes promise must hold for both.

They run in a process of their own, with an interpreter that others may run, wherever this repository lies.
"""

from __future__ import annotations

import functools
import os
import shutil
import site
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

for_root = pytest.mark.skipif(os.geteuid() != 0, reason="this is run by an ordinary user already")
_NOBODY = 65534
_AS_NOBODY = ["setpriv", f"--reuid={_NOBODY}", f"--regid={_NOBODY}", "--clear-groups"]
_SOURCE = Path(__file__).parents[2]
# The second start counts: setpriv's own still has root's rights to find the program.
_TWICE = "import os, sys; os.execv(sys.executable, [sys.executable, '-c', 'import ctypes'])"
_BIND = """
while [ "$1" != -- ]; do mount --bind "$1" "$2" || exit 1; shift 2; done
shift; exec "$@"
"""
"""Shows files and folders elsewhere, to what is run alone."""
_LENT = {"subuid": 300_000, "subgid": 500_000}
"""Files of /etc, and where the ids begin that a host lends to a user for containers."""


def pytest_as_nobody(
    *suites: str, options: list[str] | None = None, timeout: float = 280, lend_ids: bool = False, count: int = 65_536
) -> None:
    """Runs test files of this folder; fails with what they said."""
    names = [f"tests/sandbox/{suite}" for suite in suites]
    quiet = ["-x", "--tb=short", "-p", "no:cacheprovider"]
    words = ["-m", "pytest", *quiet, *(options or [])]
    result = run_as_nobody(words, names, timeout=timeout, lend_ids=lend_ids, count=count)
    assert result.returncode == 0, result.stdout[-3000:] + result.stderr[-2000:]
    assert " passed" in result.stdout


def run_as_nobody(
    words: list[str],
    files: list[str],
    *,
    timeout: float,
    lend_ids: bool = False,
    count: int = 65_536,
    stderr: int | None = subprocess.PIPE,
) -> subprocess.CompletedProcess[str]:
    """Runs Python with these words, then the names of files of this repository, in an empty folder of its own.

    `lend_ids`: as on a host where the user may have containers with more ids than one, `count` of them. `stderr`: None
    shows it at once."""
    python = _interpreter()
    if python is None:
        pytest.skip("no interpreter of this version that an ordinary user may run")
    folder = Path(tempfile.mkdtemp(prefix="etude-nobody-", dir=os.environ.get("PYTEST_DEBUG_TEMPROOT", "/tmp")))
    try:
        os.chown(folder, _NOBODY, _NOBODY)
        shown, source, packages = _within_reach(folder)
        if lend_ids:
            for name, first in _LENT.items():
                (folder / name).write_text(f"nobody:{first}:{count}\n")
                shown.append((folder / name, Path("/etc", name)))
        result = subprocess.run(
            [*_showing(shown), *_AS_NOBODY, python, *words, *(str(source / name) for name in files)],
            env={
                "PATH": "/usr/bin:/bin",
                "HOME": str(folder),
                "TMPDIR": str(folder),
                "PYTEST_DEBUG_TEMPROOT": str(folder),
                "PYTHONPATH": ":".join(map(str, (source / "src", source, *packages))),
                "PYTHONDONTWRITEBYTECODE": "1",
            },
            cwd=folder,
            stdout=subprocess.PIPE,
            stderr=stderr,
            text=True,
            check=False,
            timeout=timeout,
        )
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return result


def _within_reach(folder: Path) -> tuple[list[tuple[Path, Path]], Path, list[Path]]:
    """What must be shown elsewhere, where nobody may read it; and where the repository and the packages are then."""
    packages = [Path(name) for name in site.getsitepackages() if Path(name).is_dir()]
    if all(_may_run(["ls", str(path)]) for path in (_SOURCE, *packages)):
        return [], _SOURCE, packages
    shown = {folder / "source": _SOURCE, **{folder / f"packages{n}": path for n, path in enumerate(packages)}}
    for place in shown:
        place.mkdir()
    return [(path, place) for place, path in shown.items()], folder / "source", list(shown)[1:]


def _showing(shown: list[tuple[Path, Path]]) -> list[str]:
    """The command before the command: what lies at a first path is seen at the second one too."""
    places = [str(path) for pair in shown for path in pair]
    return ["unshare", "--mount", "sh", "-c", _BIND, "bind", *places, "--"] if shown else []


@functools.cache
def _interpreter() -> str | None:
    """One of this version that others may run: this one may lie in root's home."""
    elsewhere = shutil.which(f"python3.{sys.version_info.minor}", path="/usr/bin:/usr/local/bin")
    return next((name for name in (sys.executable, elsewhere) if name and _may_run([name, "-c", _TWICE])), None)


def _may_run(command: list[str]) -> bool:
    return subprocess.run([*_AS_NOBODY, *command], capture_output=True, check=False).returncode == 0
