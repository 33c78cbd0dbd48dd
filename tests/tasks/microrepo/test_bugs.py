from __future__ import annotations

import random

import pytest

from etude.tasks.microrepo import FAMILIES, KINDS, Family, mutations
from etude.tasks.microrepo.function import draw_function, draw_inputs, outcomes
from etude.tasks.microrepo.repository import families_offering


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
def test_every_mutation_is_one_line_that_still_parses(family: Family) -> None:
    for seed in range(5):
        rng = random.Random(seed)
        function = draw_function(family, rng)
        lines = function.source.split("\n")
        found = mutations(function.source, function.groups, rng)
        assert len({m.kind for m in found}) >= 3
        for mutation in found:
            assert mutation.kind in KINDS
            assert mutation.text != lines[mutation.line]
            indent = len(lines[mutation.line]) - len(lines[mutation.line].lstrip())
            assert mutation.text[:indent].isspace()
            compile(mutation.apply(function.source), "mutant", "exec")


def test_each_kind_is_offered_by_several_families() -> None:
    assert len(FAMILIES) >= 20
    assert len({family.name for family in FAMILIES}) == len(FAMILIES)
    for kind in KINDS:
        assert len(families_offering(kind)) >= 5, kind


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
def test_inputs_are_distinct_and_an_honest_function_has_a_value_for_each(family: Family) -> None:
    function = draw_function(family, random.Random(1))
    inputs = draw_inputs(function, random.Random(2), 24)
    assert len({repr(arguments) for arguments in inputs}) == len(inputs) >= 12
    assert all(outcome.value is not None for outcome in outcomes(function.source, function.name, inputs))
