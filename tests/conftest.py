"""Assertions in what tests share, the contract suites above all, explain themselves like those of the tests."""

from __future__ import annotations

import pytest

pytest.register_assert_rewrite("tests.contract", "tests.sandbox")
