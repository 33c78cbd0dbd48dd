from __future__ import annotations

import os

import pytest

from etude.sandbox.overload import OVERLOAD, host_overloaded


@pytest.mark.parametrize(("per_core", "overloaded"), [(0.0, False), (OVERLOAD, False), (OVERLOAD + 0.1, True)])
def test_load_is_judged_per_core(monkeypatch: pytest.MonkeyPatch, per_core: float, overloaded: bool) -> None:
    # The last minute alone: what was an hour ago kept no command waiting.
    monkeypatch.setattr(os, "getloadavg", lambda: (per_core * 4, 1e3 * (not overloaded), 1e3 * (not overloaded)))
    monkeypatch.setattr(os, "cpu_count", lambda: 4)
    assert host_overloaded() is overloaded
