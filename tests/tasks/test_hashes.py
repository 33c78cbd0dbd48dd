from __future__ import annotations

from etude.tasks import function_hashes
from etude.tasks.hashes import fingerprints


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
