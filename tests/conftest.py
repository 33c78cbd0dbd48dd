"""What all tests share: no property has a deadline, since a busy machine says nothing about it, and assertions in what
tests share, the contract suites above all, explain themselves like those of the tests."""

from __future__ import annotations

import pytest
from hypothesis import settings

settings.register_profile("any machine", deadline=None)
settings.load_profile("any machine")
pytest.register_assert_rewrite("tests.contract", "tests.sandbox")
