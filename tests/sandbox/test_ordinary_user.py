"""Run by root, what boxes promise must hold for an ordinary user too: suites again, as nobody, without subordinate ids
and with some, each in a process of its own."""

from __future__ import annotations

import json
from typing import Any

import pytest
from tests.contract.sandbox import CORE
from tests.needs import needs
from tests.sandbox.as_nobody import for_root, pytest_as_nobody, run_as_nobody

IMAGES = ("test_images_layers.py", "test_images_store.py", "test_images_importing.py", "test_registry.py")
IN_MEMORY, IN_FOLDERS = ["-k", "MemoryCells"], ["-k", "FolderCells"]
OF_CORE = ["-k", f"MemoryCells and ({' or '.join(CORE)})"]
BUT_TABLES, TABLES = ["-k", f"{OF_CORE[1]} and not kernel_table"], ["-k", "MemoryCells and kernel_table"]
FAST = ["-m", "not slow"]
EGRESS = ("test_egress_boxes.py", "test_egress_proxied.py")


def again(*suites: str, options: list[str] | None = None, marks: Any = pytest.mark.slow, timeout: float = 280) -> Any:
    marks = [marks, pytest.mark.timeout(timeout + 100)] if marks else []
    return pytest.param(suites, options or [], timeout, marks=marks, id=f"{suites[0]} {' '.join(options or [])[:20]}")


@for_root
@pytest.mark.parametrize(
    ("suites", "options", "timeout"),
    [
        again("test_contract.py", options=BUT_TABLES, marks=None),
        again("test_contract.py", options=TABLES),
        again("test_contract.py", options=IN_MEMORY, marks=pytest.mark.soak, timeout=800),
        again("test_contract.py", options=IN_FOLDERS, marks=pytest.mark.soak, timeout=800),
        # In one process, since each takes seconds to start.
        again("test_moving.py", "test_build.py", "test_try_build.py", *IMAGES, options=FAST, timeout=600),
        again("test_moving.py", marks=pytest.mark.soak),
        again(*EGRESS),
        again("test_memory.py", options=["-k", "hoard_ends or counts_once"]),
    ],
)
def test_it_holds_for_an_ordinary_user(suites: tuple[str, ...], options: list[str], timeout: float) -> None:
    pytest_as_nobody(*suites, options=options, timeout=timeout)


@for_root
@needs("newuidmap")
@pytest.mark.parametrize(
    ("suites", "options", "timeout"),
    [
        again("test_contract.py", options=OF_CORE),
        again("test_contract.py", options=IN_MEMORY, marks=pytest.mark.soak, timeout=800),
        again("test_contract.py", options=IN_FOLDERS, marks=pytest.mark.soak, timeout=800),
        again("test_embedded.py", marks=pytest.mark.soak, timeout=500),
        again("test_egress_boxes.py", marks=pytest.mark.soak),
        again("store_process_cases.py"),
        again("test_images_debootstrap.py", marks=pytest.mark.soak),
        again(*IMAGES, options=FAST, marks=pytest.mark.soak),
    ],
)
def test_it_holds_with_subordinate_ids(suites: tuple[str, ...], options: list[str], timeout: float) -> None:
    pytest_as_nobody(*suites, options=options, timeout=timeout, lend_ids=True)


@for_root
@needs("newuidmap")
def test_a_short_range_is_used_as_far_as_it_goes() -> None:
    pytest_as_nobody("few_ids_cases.py", lend_ids=True, count=5_000)


@for_root
@needs("newuidmap")
def test_without_a_way_to_newuidmap_the_next_mode_is_taken() -> None:
    """Set-uid programs have no effect under no_new_privs."""
    script = "from etude.sandbox.doctor import *; print(as_json(doctor()))"
    command = "import os, sys; os.execvp('setpriv', ['setpriv', '--no-new-privs', sys.executable, *sys.argv[1:]])"
    done = run_as_nobody(["-c", command, "-c", script], [], timeout=60, lend_ids=True)
    assert done.returncode == 0, done.stderr
    found = {finding["name"]: finding for finding in json.loads(done.stdout)}
    assert found["mode"]["held_by"] == "user"
    assert "no_new_privs" in found["users"]["knob"]
