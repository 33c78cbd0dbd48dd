"""What trains and what tests never draw the same: by instance where the family is shared, else by shape."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest

from etude.tasks import Split
from etude.tasks.hashes import Fingerprint, fingerprints
from etude.tasks.overlap import code_in
from etude.tasks.sources.microrepo import FAMILIES, KINDS, SEEN_KINDS, Family, Pool, mutations, pool_of
from etude.tasks.sources.microrepo.documents import make_document
from etude.tasks.sources.microrepo.function import draw_function
from etude.tasks.sources.microrepo.pools import normal_form, side_of
from etude.tasks.sources.microrepo.repository import draw_repository

Drawn = list[tuple[Split, str, Fingerprint]]


@pytest.fixture(scope="module")
def drawn() -> Drawn:
    """Functions of all families, sound and with every bug, with different names and numbers."""
    drawn = ((family.split, source) for seed in range(3) for family in FAMILIES for source in variants(family, seed))
    return [(split, source, *fingerprints(source)) for split, source in drawn]


def variants(family: Family, seed: int) -> Iterator[str]:
    rng = random.Random(seed)
    function = draw_function(family, rng)
    yield function.source
    for mutation in mutations(function.source, function.groups, rng):
        yield mutation.apply(function.source)


def test_no_function_of_one_split_is_one_of_another(drawn: Drawn) -> None:
    train, dev, test = ({one.shape for mine, _, one in drawn if mine is split} for split in Split)
    assert not train & dev
    assert not train & test
    assert not dev & test


def test_the_text_tells_instances_apart_as_the_syntax_tree_does(drawn: Drawn) -> None:
    by_tree: dict[str, str] = {}
    by_text: dict[str, str] = {}
    for _, source, found in drawn:
        text = normal_form(source)
        assert by_tree.setdefault(found.instance, text) == text
        assert by_text.setdefault(text, found.instance) == found.instance
    assert len(by_tree) > 5000
    grades = "def rate(age):\n    if age >= 9:\n        return 'warm'\n    return 'cold'"
    others = grades.replace("warm", "good").replace("cold", "bad").replace("age", "size").replace("rate", "grade")
    assert normal_form(grades) == normal_form(others) != normal_form(grades.replace("9", "8"))


def held(pool: Pool, seed: int, kinds: tuple[str, ...]) -> set[Fingerprint]:
    """Every function of a repository, damaged and repaired."""
    repository = draw_repository(pool, random.Random(seed), kinds)
    texts = {*repository.files().values(), *(module.text for module in repository.modules)}
    return {one for text in texts for one in fingerprints(text)}


def test_what_hundreds_of_train_repositories_and_documents_hold_is_new_to_the_test() -> None:
    learnt = {one for seed in range(120) for one in held(pool_of(Split.TRAIN), seed, SEEN_KINDS)}
    for index in range(200):
        learnt |= {one for code in code_in(make_document(7, index).text) for one in fingerprints(code)}
    shapes, instances = {one.shape for one in learnt}, {one.instance for one in learnt}
    assert len(instances) > 500
    for split in (Split.DEV, Split.TEST):
        shared = {one for seed in range(50) for one in held(pool_of(split), seed, KINDS)}
        assert not instances & {one.instance for one in shared}
        assert shapes & {one.shape for one in shared}, "their families are the same"
        own = {one for seed in range(50) for one in held(pool_of(split, family_seen=False), seed, KINDS)}
        assert not shapes & {one.shape for one in own}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("split", list(Split))
def test_a_pool_has_every_kind_on_its_side_sound_and_damaged(split: Split, kind: str) -> None:
    repository = draw_repository(pool_of(split), random.Random(5), [kind])
    damage = repository.damage
    function = damage.function.source
    lines = function.split("\n")
    lines[lines.index(damage.right)] = damage.wrong
    assert side_of(function) is side_of("\n".join(lines)) is split
    assert damage.kind == kind
