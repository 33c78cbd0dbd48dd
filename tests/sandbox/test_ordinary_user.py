"""Run by root, the contract must hold for an ordinary user too: the suite again, as nobody, in a process of its own."""

from __future__ import annotations

import os
import shutil
import site
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

HERE = Path(__file__).parent
NOBODY = 65534
CORE = (
    "exit_codes or whole_tree or no_network or out_of_sight or no_rights or snapshot_and_fork or second_user"
    " or full_disk or concurrent"
)
AS_NOBODY = ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups"]
# The second start counts: setpriv's own still has root's rights to find the program.
TWICE = "import os, sys; os.execv(sys.executable, [sys.executable, '-c', 'import ctypes'])"


def interpreter() -> str | None:
    """One of this version that others may run: this one may lie in root's home."""
    elsewhere = shutil.which(f"python3.{sys.version_info.minor}", path="/usr/bin:/usr/local/bin")
    for name in (sys.executable, elsewhere):
        if name and subprocess.run([*AS_NOBODY, name, "-c", TWICE], capture_output=True, check=False).returncode == 0:
            return name
    return None


@pytest.mark.skipif(os.geteuid() != 0, reason="the suite runs as an ordinary user already")
def test_contract_holds_for_an_ordinary_user() -> None:
    python = interpreter()
    if python is None:
        pytest.skip("no interpreter of this version that an ordinary user may run")
    folder = Path(tempfile.mkdtemp(prefix="etude-nobody-", dir="/tmp"))
    try:
        os.chown(folder, NOBODY, NOBODY)
        source = HERE.parents[1]
        paths = [str(source / "src"), str(source), *site.getsitepackages()]
        options = ["-x", "--tb=short", "-p", "no:cacheprovider", f"--basetemp={folder}/t"]
        options += ["-k", f"MemoryCells and ({CORE})"]
        result = subprocess.run(
            [*AS_NOBODY, python, "-m", "pytest", *options, str(HERE / "test_contract.py")],
            env={
                "PATH": "/usr/bin:/bin",
                "HOME": str(folder),
                "PYTHONPATH": ":".join(paths),
                "PYTHONDONTWRITEBYTECODE": "1",
            },
            cwd=folder,
            capture_output=True,
            text=True,
            check=False,
            timeout=200,
        )
        assert result.returncode == 0, result.stdout[-3000:] + result.stderr[-2000:]
        assert " passed" in result.stdout
    finally:
        shutil.rmtree(folder, ignore_errors=True)
