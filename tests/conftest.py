"""What all tests share: no property has a deadline, nor need its examples be made quickly, since a busy machine says
nothing about it; that of a slow test ends only what hangs; and assertions in what tests share, the contract suites
above all, explain themselves like those of the tests. Kernels in Triton are interpreted, and torch has one thread where
nobody asks for more, as there is a test on every core; those that ask for two do not spin while they wait for one
another. All of it must be said before anything imports them.

Temporary files are kept in memory where there is enough: tests make and remove some hundred thousand, which takes a
disk minutes."""

from __future__ import annotations

import gc
import os
import shutil
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from tests.needs import ON_GPU

os.environ["TRITON_INTERPRET"] = "1"
os.environ["OMP_NUM_THREADS"] = "1"
os.environ["GOMP_SPINCOUNT"] = "2000"
IN_MEMORY, ROOM_BYTES = "/dev/shm", 8 << 30
if os.access(IN_MEMORY, os.W_OK) and shutil.disk_usage(IN_MEMORY).free >= ROOM_BYTES:
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", IN_MEMORY)
settings.register_profile("any machine", max_examples=50, deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("any machine")
pytest.register_assert_rewrite("tests.contract", "tests.sandbox")

SLOW_SECONDS = 1800
FIRST = (
    *("tests/tasks/test_ordinary_user.py", "tests/sandbox/test_cgroup_v2.py", "tests/survival/test_rl.py"),
    *("tests/cli/test_whole_run.py", "tests/tasks/cheats/test_cheats.py"),
)
"""Files that take minutes begin first: one that begins last keeps a single worker busy while the others have ended."""
GARBAGE = (20_000, 20, 20)
"""Thresholds of the three generations; Python's own are 700, 10 and 10."""


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Before `-m` chooses: contracts' cases beyond their core, what soak implies, how long a slow test may hang, and
    the order."""
    for item in items:
        case = getattr(item, "cls", None)
        mark = getattr(case, "beyond_core", None)
        if mark is not None and not any(part in item.name for part in case.core):  # type: ignore[union-attr]
            item.add_marker(mark)
        if item.get_closest_marker("soak"):
            item.add_marker(pytest.mark.slow)
        if item.get_closest_marker("slow") and not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(SLOW_SECONDS))
    items.sort(key=lambda item: not item.nodeid.startswith(FIRST))


def pytest_collection() -> None:
    gc.disable()


def pytest_collection_finish() -> None:
    """Exempt what collection made, hundreds of thousands of objects, from garbage collection, and look for garbage in
    larger portions: else it takes a twentieth of the tests' time."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(*GARBAGE)
    gc.enable()


@pytest.fixture(
    params=[
        "pretended",
        pytest.param("real", marks=ON_GPU),
    ]
)
def with_cuda(request: pytest.FixtureRequest) -> Callable[[], AbstractContextManager[Counter[str]]]:
    """A context in which there is a CUDA device: a pretended one and, where a machine has one, in a second test the
    real one. It yields the counts of operations for which the CPU waits; a real device counts none."""
    if request.param == "real":
        return lambda: nullcontext(Counter())
    from tests.pretended_cuda import pretended_cuda

    return pretended_cuda


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Why tests were skipped, each reason once."""
    reasons = Counter(
        str(report.longrepr[2]).removeprefix("Skipped: ") for report in terminalreporter.stats.get("skipped", ())
    )
    for reason, count in reasons.most_common():
        terminalreporter.write_line(f"skipped {count}: {reason}")


@pytest.fixture(scope="session", autouse=True)
def one_look_at_the_host() -> Iterator[None]:
    """The command lists the host's 100,000 files once, for a second; tests make environments anew by the hundred.

    Where no test of the session has loaded them, neither does this: what an ordinary user runs has little to load."""
    environments = sys.modules.get("etude.tasks.environment.environments")
    if environments is None:
        yield
        return
    from etude.tasks.seal import base_scan

    seen: dict[object, base_scan.Base] = {}

    async def looked(sandboxes: Any) -> base_scan.Base:
        key = (type(sandboxes), base_scan._SHOWN, base_scan._FORMAT)
        if key not in seen:
            seen[key] = await base_scan.list_base(sandboxes)
        return seen[key]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(environments, "list_base", looked)
        yield


@pytest.fixture
def short_of_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """The host seems to have forty processes for each core, all the time: of a second, a command that never sleeps is
    given 25 ms (`tests/sandbox/hosts.py` has one that takes it)."""
    monkeypatch.setattr("etude.sandbox.cpu_share._load_per_core", lambda: 40.0)
    monkeypatch.setattr("etude.sandbox.cpu_share._waited", time.monotonic)


@pytest.fixture
def with_time_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    """The host seems idle, however busy it is."""
    monkeypatch.setattr("etude.sandbox.cpu_share._load_per_core", lambda: 0.0)
