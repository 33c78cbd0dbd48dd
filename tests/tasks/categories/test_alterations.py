"""Damages and harmless alterations of source, and packages that tasks are drawn from."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from etude.tasks import Split, function_hashes, split_of
from etude.tasks.categories.alterations import Alteration, altered, apart, damages, harmless
from etude.tasks.categories.packages import NODE, PYTHON, kins, package_of, read_package
from etude.tasks.categories.variants import try_variants

SOURCE = b'''"""Text of 3."""


def first(a, b=2):
    """Is a < 4?"""
    if a < b and not a == 7:
        total = a - b
        total += 1
        return min(total, a % 3)
    return "%d" % a
'''


def texts(found: list[Alteration]) -> set[str]:
    return {altered({"a.py": SOURCE}, [one])["a.py"].decode().splitlines()[one.first - 1].strip() for one in found}


def test_damages_are_of_code_alone() -> None:
    found = texts(damages("a.py", SOURCE))
    assert {
        "if a <= b and not a == 7:",
        "if a < b or not a == 7:",
        "if a < b and a == 7:",
        "if a < b and not a == 8:",
        "total -= 1",
        "total = a + b",
        "return max(total, a % 3)",
        "return min(total, a // 3)",
    } <= found
    assert 'return "%d" // a' not in found
    assert all(one.first > 5 for one in damages("a.py", SOURCE))


def test_harmless_alterations_say_the_same() -> None:
    found = harmless("a.py", SOURCE)
    assert {"if b > a and not a == 7:", "if a < b and not 7 == a:", "total = a", 'result = "%d" % a'} <= texts(found)
    same: dict[str, Callable[[int, int], object]] = {}
    for a, b in itertools.product((-8, 2, 3, 7), repeat=2):
        exec(SOURCE, same)
        expected = same["first"](a, b)
        exec(altered({"a.py": SOURCE}, apart(found))["a.py"], same)
        assert same["first"](a, b) == expected


@given(st.randoms(use_true_random=False), st.integers(0, 3))
def test_alterations_apart_leave_lines_between_them(rng: random.Random, lines: int) -> None:
    found = damages("a.py", SOURCE)
    kept = apart(rng.sample(found, len(found)), lines)
    numbers = sorted(one.first for one in kept)
    assert all(high - low > lines for low, high in itertools.pairwise(numbers))
    assert all(any(abs(one.first - number) <= lines for number in numbers) for one in found)


def test_a_variant_that_never_ends_or_is_no_python_has_no_outcome() -> None:
    files = {
        "a.py": b"def f():\n    return 1\n",
        "tests/__init__.py": b"",
        "tests/test_a.py": b"import unittest\nimport a\n\n\nclass T(unittest.TestCase):\n"
        b"    def test_f(self):\n        self.assertEqual(a.f(), 1)\n\n    def test_g(self):\n        pass\n",
    }
    good, endless, broken, wrong, exits = try_variants(
        files,
        [
            {},
            {"a.py": b"def f():\n    while True:\n        pass\n"},
            {"a.py": b"def f(:\n"},
            {"a.py": b"def f():\n    return 2\n"},
            {"a.py": b"import os\n\n\ndef f():\n    os._exit(0)\n"},
        ],
    )
    assert (good.failed, wrong.failed) == ((), ("tests.test_a.T.test_f",))
    assert wrong.passed == ("tests.test_a.T.test_g",)
    assert (endless, broken, exits) == (None, None, None)


@pytest.mark.soak
def test_no_function_of_a_package_is_one_of_another_split() -> None:
    found: dict[Split, set[str]] = {split: set() for split in Split}
    for kin in kins(*PYTHON):
        package = package_of(kin)
        variants = [altered(package.files, [damage.alteration]) for damage in package.damages]
        for files in (package.files, *variants):
            found[split_of(kin)] |= {one for path in package.modules for one in function_hashes(files[path].decode())}
    assert all(found.values())
    assert not found[Split.TRAIN] & found[Split.DEV]
    assert not found[Split.TRAIN] & found[Split.TEST]
    assert not found[Split.DEV] & found[Split.TEST]


def test_alterations_of_node_packages_are_at_one_place_and_bugs_named_by_tests() -> None:
    for name in NODE:
        package = read_package(name)
        assert len(package.ids) >= 8
        assert all(set(damage.tests) < set(package.ids) for damage in package.damages)
        for one in (*package.harmless, *(damage.alteration for damage in package.damages)):
            assert altered(package.files, [one]) != dict(package.files)
