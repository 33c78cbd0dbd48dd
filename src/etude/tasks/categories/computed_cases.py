"""Adds one test to the hidden suite of one of Étude's own tasks. The new test expects answers that are too many and too
odd to be guessed.

The test evaluates expressions of the failing tests with other numbers, and expects the answers of the solved code. It
includes cases that the bug does not affect. So code that solves nothing has to guess which of its answers are wrong,
and what is right instead.
"""

from __future__ import annotations

import ast
import builtins
import copy
import json
import random
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from etude.tasks.categories.tested_expressions import ASKED_FIRST, assigned, filled, free_names
from etude.tasks.categories.variants import run_variants
from etude.tasks.verifiers.language import module_name
from etude.tasks.verifiers.tests.chances import chance_of_all
from etude.tasks.verifiers.tests.guessing import askers_of, ways_of
from etude.tasks.verifiers.tests.known_text import KnownText
from etude.tasks.verifiers.tests.proving import GUESS

TEST = "ComputedTest.test_computed_cases"
_CASE = """

class ComputedTest(unittest.TestCase):
    def test_computed_cases(self):
        self.assertEqual(
            [
{asked}
            ],
            [
{answers}
            ],
        )
"""
_CANDIDATES = 100
"""Number of expressions that are made from those of the failing tests, as candidates for the new test's cases."""
_WRONG, _SAME = 8, 6
"""Maximum numbers of cases in the new test: of those that the unsolved code answers wrongly, and of those that it
answers rightly."""
_DRAWS = 20
_LONGEST = 300
_CPU_SECONDS = 0.05
_PATIENCE = 300.0
_DIGITS = re.compile(r"\d+")


@dataclass(frozen=True, slots=True)
class Case:
    asked: str
    right: str
    wrong: str | None
    """The unsolved code's answer; None if it gives none."""


def with_computed_cases(
    path: str,
    tests: Mapping[str, bytes],
    names: Collection[str],
    solved: Mapping[str, bytes],
    unsolved: Mapping[str, bytes] | None,
    alike: Sequence[Mapping[str, bytes]],
    rng: random.Random,
) -> bytes | None:
    """Return the test file `path` with the additional test `TEST`, or None if no cases are hard enough to guess.

    `names` are the test functions from which expressions are taken. `alike` are further solutions that must give the
    same answers. `unsolved` is the code that the agent starts from. It is None if that code answers rightly but must be
    changed, as in a refactoring.
    """
    asked = list(_asked(ast.parse(tests[path]), names))
    if not asked:
        return None
    drawn = (_varied(rng.choice(asked), rng, texts=unsolved is None) for _ in range(_CANDIDATES))
    candidates = list(dict.fromkeys(drawn))
    variants = [solved, *alike, *([unsolved] if unsolved is not None else [])]
    right, *others = _evaluated({**solved, **tests}, variants, path, candidates)
    wrong = others.pop() if unsolved is not None else None
    cases = [
        Case(one, text, wrong[at] if wrong is not None else None)
        for at, (one, text) in enumerate(zip(candidates, right or [], strict=False))
        if text is not None and _is_lasting(text) and all(other is not None and other[at] == text for other in others)
    ]
    texts = [*(unsolved or {}).values(), *tests.values()]
    chosen = _hard_to_guess(cases, texts, rng)
    if chosen is None:
        return None
    added = _CASE.format(asked=_lines(case.asked for case in chosen), answers=_lines(case.right for case in chosen))
    return tests[path] + added.encode()


def _lines(items: Iterable[str]) -> str:
    return "\n".join(f"                {item}," for item in items)


def _hard_to_guess(cases: Sequence[Case], texts: Sequence[bytes], rng: random.Random) -> list[Case] | None:
    # Either all answered by the unsolved code or none: one exception would hide how near its other answers are.
    for alike in ([one for one in cases if one.wrong is not None], [one for one in cases if one.wrong is None]):
        wrong = [case for case in alike if case.wrong != case.right]
        same = [case for case in alike if case.wrong == case.right]
        for _ in range(_DRAWS if wrong else 0):
            chosen = _unlike(wrong, _WRONG, rng) + _unlike(same, _SAME, rng)
            rng.shuffle(chosen)
            if _chance(chosen, texts) <= GUESS:
                return chosen
    return None


def _chance(cases: Sequence[Case], texts: Sequence[bytes]) -> float:
    """Return the probability of guessing all answers to these cases. It is the larger of two: that of guessing them as
    one list, as a grading prices them, and that of guessing each by itself, as if the questions showed which answers of
    the unsolved code are wrong."""
    asked = ", ".join(case.asked for case in cases).encode()
    wrong = [case.wrong for case in cases if case.wrong is not None]
    known = KnownText([*texts, asked, *(text.encode() for text in wrong)])
    right = [ast.literal_eval(case.right) for case in cases]
    unsolved = [[] if case.wrong is None else [ast.literal_eval(case.wrong)] for case in cases]
    whole = [[one for answers in unsolved for one in answers]] if wrong else []
    in_one = ways_of(right, whole, known, askers_of(b"[" + asked + b"]", right))
    apart = [ways_of(one, answers, known) for one, answers in zip(right, unsolved, strict=True)]
    return max(chance_of_all([in_one]), chance_of_all(apart))


def _unlike(cases: Sequence[Case], most: int, rng: random.Random) -> list[Case]:
    """Return up to `most` random cases, those with different answers first."""
    drawn = rng.sample(cases, len(cases))
    first = {case.right: case for case in drawn}
    rest = [case for case in drawn if first[case.right] is not case]
    return [*first.values(), *rest][:most]


# -- expressions


def _asked(tree: ast.Module, names: Collection[str]) -> Iterator[ast.expr]:
    """Yield the expressions that the named test functions compare, with variables replaced by their values. Each item
    of a compared list is yielded by itself. Expressions that call nothing are skipped."""
    known = {*vars(builtins), *_imported(tree)}
    constants = assigned(tree.body)
    for function in ast.walk(tree):
        if not isinstance(function, ast.FunctionDef) or function.name not in names:
            continue
        values = {**constants, **assigned(function.body)}
        for call in ast.walk(function):
            if isinstance(call, ast.Call) and getattr(call.func, "attr", "") in ASKED_FIRST and call.args:
                whole = filled(call.args[0], values)
                for part in whole.elts if isinstance(whole, ast.List) else [whole]:
                    if free_names(part) <= known and any(isinstance(node, ast.Call) for node in ast.walk(part)):
                        yield part


def _imported(tree: ast.Module) -> Iterator[str]:
    for node in tree.body:
        if isinstance(node, ast.Import | ast.ImportFrom):
            yield from (alias.asname or alias.name.partition(".")[0] for alias in node.names)


def _varied(asked: ast.expr, rng: random.Random, *, texts: bool) -> str:
    """Return a variant of an expression, as source text. Some of its numbers, also those in strings, become smaller.
    Outside strings, their order and equality are kept, so that the expression still makes sense. With `texts`, strings
    may change too: a character is left out, doubled or moved, or a string of one character becomes another string of
    the expression."""
    varied = copy.deepcopy(asked)
    constants = [node for node in ast.walk(varied) if isinstance(node, ast.Constant)]
    numbers = sorted({node.value for node in constants if type(node.value) is int and node.value > 1})
    words = [node.value for node in constants if isinstance(node.value, str)]
    smaller: dict[int, int] = {}
    above = 10**12
    for place, number in reversed(list(enumerate(numbers))):
        # Half of the numbers stay: they may be where a comparison begins to matter.
        stays = number < above and rng.random() < 0.5
        above = smaller[number] = number if stays else rng.randint(min(place + 2, number), min(number, above - 1))
    for node in constants:
        if type(node.value) is int:
            node.value = smaller.get(node.value, node.value)
        elif isinstance(node.value, str):
            node.value = _DIGITS.sub(lambda found: _smaller_digits(found[0], rng), node.value)
            if texts and rng.random() < 0.5:
                node.value = _misspelt(node.value, rng) if len(node.value) > 1 else rng.choice(words)
    return ast.unparse(varied)


def _smaller_digits(digits: str, rng: random.Random) -> str:
    number = int(digits)
    return (
        str(rng.randint(min(1, number), number)).zfill(len(digits)) if digits[0] == "0" else str(rng.randint(1, number))
    )


def _misspelt(text: str, rng: random.Random) -> str:
    at, to = rng.randrange(len(text)), rng.randrange(len(text))
    without = text[:at] + text[at + 1 :]
    return rng.choice((without, text[:at] + text[at] + text[at:], without[:to] + text[at] + without[to:]))


def _is_lasting(text: str) -> bool:
    """Return whether an answer's text is short, and the same however the answer was computed. Answers with floats,
    which depend on rounding, and answers that are not plain values do not qualify."""
    try:
        parts = list(ast.walk(ast.parse(text, mode="eval")))
    except SyntaxError:
        return False
    odd = any(isinstance(part, ast.Call) or type(getattr(part, "value", 0)) in (float, complex) for part in parts)
    return not odd and len(text) <= _LONGEST


def _evaluated(
    files: Mapping[str, bytes], variants: Sequence[Mapping[str, bytes]], path: str, expressions: Sequence[str]
) -> list[list[str | None] | None]:
    """Evaluate expressions in the namespace of the test file `path`, once for each variant of the files. Return for
    each variant the values as Python source, None for those that raise or have no such source. None instead of the
    list: the variant could not be loaded."""
    job = {
        "files": {name: data.decode() for name, data in files.items()},
        "variants": [{name: data.decode() for name, data in variant.items()} for variant in variants],
        "module": module_name(path),
        "expressions": list(expressions),
        "seconds": _CPU_SECONDS,
    }
    found: list[list[str | None] | None] = json.loads(run_variants(json.dumps(job).encode(), _PATIENCE))
    return found
