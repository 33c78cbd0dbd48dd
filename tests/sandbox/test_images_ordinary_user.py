"""Run by root, the images' suites must hold for an ordinary user too: again, as nobody, in a process of their own."""

from __future__ import annotations

import pytest
from tests.sandbox.as_nobody import for_root, pytest_as_nobody

SUITES = ("test_images_layers.py", "test_images_store.py", "test_images_importing.py", "test_registry.py")


@pytest.mark.slow
@for_root
def test_images_for_an_ordinary_user() -> None:
    pytest_as_nobody(*SUITES, options=["-m", "not slow"])
