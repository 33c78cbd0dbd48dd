"""What all tests share: no property has a deadline, nor need its examples be made quickly, since a busy machine says
nothing about it, and assertions in what tests share, the contract suites above all, explain themselves like those of
the tests."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, settings

settings.register_profile("any machine", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("any machine")
pytest.register_assert_rewrite("tests.contract", "tests.sandbox")
