from __future__ import annotations

import random

from etude.tasks import Split
from etude.tasks.sources.microrepo import FAMILIES, KINDS, mutations
from etude.tasks.sources.microrepo.function import draw_function, draw_inputs, outcomes
from etude.tasks.sources.microrepo.repository import kinds_of


def test_every_mutation_is_one_line_that_still_parses() -> None:
    for seed, family in enumerate(FAMILIES):
        rng = random.Random(seed)
        function = draw_function(family, rng)
        lines = function.source.split("\n")
        found = mutations(function.source, function.groups, rng)
        assert len({m.kind for m in found}) >= 3, family.name
        for mutation in found:
            assert mutation.kind in KINDS
            assert mutation.text != lines[mutation.line]
            indent = len(lines[mutation.line]) - len(lines[mutation.line].lstrip())
            assert mutation.text[:indent].isspace()
            compile(mutation.apply(function.source), family.name, "exec")


def test_each_split_has_many_families_and_kin() -> None:
    for split, families, kin in ((Split.TRAIN, 150, 60), (Split.DEV, 20, 10), (Split.TEST, 40, 15)):
        found = [family for family in FAMILIES if family.split is split]
        assert len(found) >= families
        assert len({family.split_group for family in found}) >= kin


def test_each_kind_is_offered_by_several_families() -> None:
    assert len({family.name for family in FAMILIES}) == len(FAMILIES)
    for kind in KINDS:
        assert sum(kind in kinds_of(family) for family in FAMILIES) >= 5, kind


def test_inputs_are_distinct_and_an_honest_function_has_a_value_for_each() -> None:
    for family in FAMILIES:
        function = draw_function(family, random.Random(1))
        inputs = draw_inputs(function, random.Random(2), 24)
        assert len({repr(arguments) for arguments in inputs}) == len(inputs) >= 12, family.name
        assert all(outcome.value is not None for outcome in outcomes(function.source, function.name, inputs))
