from __future__ import annotations

import ast
import itertools
import random

import pytest

from etude.tasks import Split, function_hashes, open_source, split_of
from etude.tasks.categories.libraries import NAMES, draw_library, public_functions
from etude.tasks.categories.trial import exit_codes
from etude.tasks.verifiers.documentation.claims import docstring_problems
from etude.tasks.verifiers.documentation.interface import public_of


def test_every_split_has_libraries_and_a_source_takes_them_in_turn(tmp_path) -> None:
    for split in Split:
        mine = [name for name in NAMES if split_of(name) is split]
        assert mine
        source = open_source("documentation")
        families = [source.make(split, index, 1, tmp_path)[0].family for index in range(len(mine))]
        assert families == mine


@pytest.mark.parametrize("name", NAMES)
def test_variants_differ_pass_their_tests_and_are_documented(name: str) -> None:
    seen = set()
    for seed in range(2):
        library = draw_library(name, random.Random(seed))
        seen.add(library.source)
        assert exit_codes(library, [library.source]) == [0]
        public = public_of(library.module, library.source)
        assert len(public) == len(public_functions(ast.parse(library.source))) >= 4
        for one in public:
            assert list(docstring_problems(one, frozenset())) == []
            assert ">>> " in one.docstring
    assert len(seen) > 1


def test_no_function_of_one_split_is_like_one_of_another() -> None:
    hashes: dict[Split, set[str]] = {split: set() for split in Split}
    for name in NAMES:
        hashes[split_of(name)] |= function_hashes(draw_library(name, random.Random(1), whole=True).source)
    for one, other in itertools.combinations(Split, 2):
        assert hashes[one].isdisjoint(hashes[other])
