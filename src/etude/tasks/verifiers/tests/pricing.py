"""Computes how likely code that solves nothing passes a suite by guessing what the suite keeps out of its box.

Everything that stays in the box counts as known: the rewritten suite, the workspace, the instruction, and what the
unsolved code (the workspace before the agent's change) answers. Gradings may show a test in several versions, of which
all but one expect an altered literal. For that test alone, this literal counts as unknown.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from etude.tasks.verifiers.tests.chances import PART, Ways, chance_of_all
from etude.tasks.verifiers.tests.guessing import answers_of, askers_of, ways_of
from etude.tasks.verifiers.tests.known_text import KnownText
from etude.tasks.verifiers.tests.pool import AlterableTest, Pool
from etude.tasks.verifiers.tests.rewriting import compose, copy_of, rewritten_literal
from etude.tasks.verifiers.tests.site import Edit, Site
from etude.tasks.verifiers.tests.suite import Suite
from etude.tasks.verifiers.tests.visible_answers import computed_values
from etude.tasks.verifiers.tests.withholding import ReportingRewrite

Missed = tuple[Site, object, tuple[object, ...]]
"""(assertion, its expected value, what is reported instead): a value withheld from the box that the unsolved code (the
workspace before the agent's change) does not report."""
TestPath = tuple[str, tuple[str, ...]]
"""The file of a test function, and its path in it."""
_MOST_COMPUTED = 1 << 20
"""Number of bytes of a workspace up to which constant expressions are evaluated."""
EXCEPTIONS = {"ValueError": 0.5, "TypeError": 0.5}
OTHER_EXCEPTION = 0.125
"""Chances of guessing which exception is expected, if no visible text names it."""
_JAVASCRIPT = (".js", ".mjs", ".cjs")
_ARITHMETIC = re.compile(rb"(?<![\w.])[1-9]\d{0,15}(?:\s{0,9}[-+*/%]\s{0,9}[1-9]\d{0,15}){1,9}(?![\w.])")
_NUMBER = re.compile(r"\d+(?:\.\d+)?")
_PART = re.compile(_NUMBER.pattern + r"|[^\W\d_]+")


@dataclass(frozen=True, slots=True)
class Unsolved:
    """What the unsolved code (the workspace before the agent's change) reports in one test function."""

    missed: tuple[Missed, ...] = ()
    answers: Mapping[Site, Sequence[object]] = field(default_factory=dict)
    """All values that the unsolved code reports in the test, by the assertion that compares them."""


def all_missed(item: AlterableTest) -> Unsolved:
    return Unsolved(tuple((site, value, ()) for site in item.withheld for value in site.values))


def priced(suite: Suite, pool: Pool, unsolved: Mapping[TestPath, Unsolved], shown: Mapping[str, bytes]) -> Pool:
    """Return the pool with the probabilities of guessing what its tests expect. A test that must fail before the fix
    (`decides`) can be protected by withheld values or by altered copies. It keeps only the protection that is harder to
    guess. `shown` are the files that an agent sees, besides the suite, by path; those that tell most come first."""
    reported = [str(text) for one in unsolved.values() for texts in one.answers.values() for text in texts]
    outside = KnownText((text.encode("utf-8", "replace") for text in reported), KnownText(_shown_texts(shown)))
    pool = _priced(suite, pool, unsolved, outside)
    chosen = tuple(map(_protected_in_one_way, pool.alterable))
    return pool if chosen == pool.alterable else _priced(suite, replace(pool, alterable=chosen), unsolved, outside)


def _protected_in_one_way(item: AlterableTest) -> AlterableTest:
    if not (item.decides and item.withheld and item.alterations):
        return item
    return replace(item, withheld=()) if item.is_altered else replace(item, alterations=())


def _priced(suite: Suite, pool: Pool, unsolved: Mapping[TestPath, Unsolved], outside: KnownText) -> Pool:
    known = KnownText(visible_texts(suite, pool), outside)
    literals = {
        item: _literal(item) for item in pool.alterable if item.decides and item.alterations and not item.withheld
    }
    known_with_literals = KnownText(literals.values(), known)
    found, held = [], list[Ways]()
    for item in pool.alterable:
        shown = known_with_literals
        if item in literals:
            shown = KnownText([text for other, text in literals.items() if other is not item], known)
        answers = unsolved[item.file, item.function.path]
        ways = [_ways(pool, item, missed, shown) for missed in answers.missed if missed[0] in item.withheld]
        tell = _ways_to_tell(item, answers, shown) if item.decides and item.alterations else {"known": 1.0}
        found.append(replace(item, chance=chance_of_all(ways), ways_to_tell=tell))
        if item.decides and not found[-1].is_altered:
            held += [way for way in ways if "known" not in way]
    return replace(pool, alterable=tuple(found), held=tuple(held))


def visible_texts(suite: Suite, pool: Pool) -> Iterator[bytes]:
    """Yield the text of each of the suite's files, without what gradings withhold or alter, and then the values of the
    constant expressions in that text."""
    for file, data in {**suite.files, **pool.sources}.items():
        items = [item for item in pool.alterable if item.file == file]
        try:
            text = without_withheld(file, data, items) if items else data
        except ValueError:  # Not all of these tests can be rewritten at once.
            text = data
        yield text
        yield _computed(file, text)


def _shown_texts(files: Mapping[str, bytes]) -> Iterator[bytes]:
    """Yield the texts of a workspace, and the values of the constant expressions in its code."""
    left = _MOST_COMPUTED
    for file, data in files.items():
        yield data
        left -= len(data)
        if left > 0:
            yield _computed(file, data)


def _computed(file: str, source: bytes) -> bytes:
    if file.endswith(_JAVASCRIPT):
        source = b"\n".join(found[0].replace(b"\n", b" ") for found in _ARITHMETIC.finditer(source))
    elif not file.endswith(".py"):
        return b""
    return "\n".join(map(repr, computed_values(source))).encode("utf-8", "replace")


def without_withheld(file: str, source: bytes, items: Iterable[AlterableTest]) -> bytes:
    """Return a test file as gradings show it. Removed is what gradings withhold in the file's test functions `items`,
    and the literal that altered copies of a function change, if it `decides`. Raises ValueError if they cannot all be
    rewritten."""
    groups, outside = {}, list[Edit]()
    for item in items:
        # A test that only guards may be drawn in several versions, and then shows its values.
        withheld = item.withheld if item.decides or not item.alterations else ()
        rewrite = ReportingRewrite(source, item.function, dict(_keys(withheld)), "_reported")
        edits = rewrite.edits_inside
        outside += rewrite.edits_outside
        if item.decides and item.alterations:
            start, end = item.alterations[0][0]
            inside = any(first <= start and end <= last for (first, last), _ in edits)
            edits += [] if inside else [((start, end), b" None ")]
        groups[item.function] = [copy_of(source, item.function, item.function.path[-1], edits)]
    return compose(file, source, groups, outside)


def _keys(sites: Sequence[Site]) -> Iterator[tuple[str, Site]]:
    # Keys without digits, which would count as known numbers.
    return (("k" * (place + 1), site) for place, site in enumerate(sites))


def _ways(pool: Pool, item: AlterableTest, missed: Missed, known: KnownText) -> Ways:
    site, value, texts = missed
    if repr(value) in site.given:
        return {"known": 1.0}
    compared = pool.sources[item.file][slice(*site.compared)]
    return ways_of(value, answers_of(texts), known, askers_of(compared, value))


def _literal(item: AlterableTest) -> bytes:
    return rewritten_literal(item.function, item.alterations[0][0])[1]


def _ways_to_tell(item: AlterableTest, unsolved: Unsolved, known: KnownText) -> Ways:
    """Return the ways to tell a test from its altered copies: the ways to guess the exception, number or word that the
    copies change in one expected literal. Whoever guesses sees the rest of the literal."""
    site = next(site for site in item.function.sites if site.literal == item.alterations[0][0])
    if site.exception:
        name = site.exception
        return {"known": 1.0} if known.knows_word(name) else {f"raises {name}": EXCEPTIONS.get(name, OTHER_EXCEPTION)}
    part = _different(_literal(item).decode(), item.alterations[0][1].decode())
    if part.title() in ("True", "False"):
        value: object = part.title() == "True"
    elif known.knows_word(part):
        return {"known": 1.0}
    elif part[:1].isdecimal():
        value = float(part) if "." in part else int(part)
    else:
        return {"a word": PART}  # Who recognises one word among misspelt ones recognises all.
    answers = [str(text) for text in unsolved.answers.get(site, ())]
    numbers = {number for text in answers for number in _NUMBER.findall(text)}
    return ways_of(value, answers_of([*answers, *sorted(numbers)]), known)


def _different(text: str, other: str) -> str:
    """Return the number or word of `text` in which it differs from `other`."""
    pairs = list(zip(text, other, strict=False))
    start = next((place for place, (one, two) in enumerate(pairs) if one != two), len(pairs))
    parts = (found[0] for found in _PART.finditer(text) if found.end() > start)
    return next(parts, text)
