"""The quick cases of this folder as an ordinary user with one id: no cheat succeeds there either."""

from __future__ import annotations

from tests.tasks.ordinary_user import as_ordinary_user, passes

SUITES = ["test_cheats.py", "test_attempts.py", "test_verb.py"]


@as_ordinary_user
def test_cheats_in_boxes_of_an_ordinary_user() -> None:
    chosen = "quick_environment or unittest or test_attempts or test_verb"
    passes(*(f"cheats/{name}" for name in SUITES), options=("-m", "not soak", "-k", chosen))
