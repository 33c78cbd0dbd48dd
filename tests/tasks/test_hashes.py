from __future__ import annotations

import random

from etude.tasks import Split, function_hashes
from etude.tasks.hashes import fingerprints
from etude.tasks.sources.microrepo import families_of
from etude.tasks.sources.microrepo.bugs import mutations
from etude.tasks.sources.microrepo.documents import make_document
from etude.tasks.sources.microrepo.function import draw_function


def test_names_numbers_and_docstrings_do_not_matter_but_operators_do() -> None:
    one = "def f(a, b):\n    'text'\n    return a + b * 2\n"
    same = "def g(x, y):\n    # other\n    return x + y * 7\n"
    other = "def g(x, y):\n    return x - y * 7\n"
    assert function_hashes(one) == function_hashes(same) != function_hashes(other)
    assert function_hashes("def f(a, b):\n    return a") != function_hashes("def f(a, b):\n    return b")
    assert function_hashes("not python :") == set()


def test_an_instance_keeps_the_numbers_and_nothing_more() -> None:
    def instance(source: str) -> str:
        (found,) = fingerprints(source)
        return found.instance

    one = instance("def f(a, b):\n    'text'\n    return a + b * 2\n")
    assert instance("def g(x, y):\n    return x + y * 2  # other\n") == one
    assert instance("def g(x, y):\n    return x + y * 7\n") != one
    assert instance("def f(a, b):\n    return a - b * 2\n") != one
    assert instance("def f(a):\n    return a[1] + 2") != instance("def f(a):\n    return a[2] + 1")
    assert instance("def f(a):\n    return a == 'x'") == instance("def f(a):\n    return a == 'y'")
    assert instance("def f(a):\n    return True") != instance("def f(a):\n    return False")


def hashes_of(split: Split) -> set[str]:
    """Of every function of the split's families, sound or with any bug."""
    found: set[str] = set()
    for family in families_of(split):
        for seed in range(12):
            rng = random.Random(seed)
            function = draw_function(family, rng)
            found |= function_hashes(function.source)
            for mutation in mutations(function.source, function.groups, rng):
                found |= function_hashes(mutation.apply(function.source))
    return found


def test_no_function_of_one_split_is_one_of_another() -> None:
    train, dev, test = (hashes_of(split) for split in Split)
    assert not train & dev
    assert not train & test
    assert not dev & test
    documents = set()
    for index in range(300):
        document = make_document(3, index)
        if document.kind == "module":
            documents |= function_hashes(document.text)
    assert documents
    assert documents <= train
