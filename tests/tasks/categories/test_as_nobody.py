"""The cases of this folder that run boxes, as an ordinary user with one id: right all the same, but not sealed."""

from __future__ import annotations

import pytest
from tests.tasks.ordinary_user import QUICK, as_ordinary_user, passes

CHEATS = ["test_mutation.py", "test_documentation.py", "test_refactor.py", "test_migration.py"]


@as_ordinary_user
def test_cheats_of_an_ordinary_user() -> None:
    passes(*(f"categories/{name}" for name in CHEATS), options=("-k", "cheats", *QUICK))


@pytest.mark.soak
@as_ordinary_user
def test_one_task_of_each_category() -> None:
    passes("categories/test_one_of_each.py", options=())
