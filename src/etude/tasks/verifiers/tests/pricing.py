"""Computes how likely code that solves nothing passes a suite by guessing what the suite keeps out of its box.

Everything that stays in the box counts as known: the rewritten suite, the workspace, the instruction, and what the
unsolved code answers. In a test that gradings may show in several versions, the value in which they differ counts as
unknown, and all else as known.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from etude.tasks.verifiers.tests.chances import Ways, chance_of_all
from etude.tasks.verifiers.tests.guessing import answers_of, ways_of
from etude.tasks.verifiers.tests.known_text import KnownText
from etude.tasks.verifiers.tests.pool import AlterableTest, Pool
from etude.tasks.verifiers.tests.rewriting import compose, copy_of
from etude.tasks.verifiers.tests.site import Edit, Site
from etude.tasks.verifiers.tests.suite import Suite
from etude.tasks.verifiers.tests.visible_answers import computed_values
from etude.tasks.verifiers.tests.withholding import ReportingRewrite

Missed = tuple[Site, object, tuple[object, ...]]
"""A withheld value that the unsolved code does not report, with its assertion and what that code reports instead."""
TestPath = tuple[str, tuple[str, ...]]
"""The file of a test function, and its path in it."""
_MOST_COMPUTED = 1 << 20
"""Number of bytes of a workspace up to which constant expressions are evaluated."""
EXCEPTION = 0.125
"""Chance of guessing which of a few usual exceptions is expected, if no visible text names it."""


@dataclass(frozen=True, slots=True)
class Unsolved:
    """What the unsolved code reports in one test."""

    missed: tuple[Missed, ...] = ()
    reported: tuple[object, ...] = ()


def all_missed(item: AlterableTest) -> Unsolved:
    return Unsolved(tuple((site, value, ()) for site in item.withheld for value in site.values))


def priced(suite: Suite, pool: Pool, unsolved: Mapping[TestPath, Unsolved], shown: Mapping[str, bytes]) -> Pool:
    """Return the pool with the probabilities of guessing what its tests expect. `shown` are the files that an agent
    sees, besides the suite, by path."""
    reported = [str(text).encode() for one in unsolved.values() for text in one.reported]
    known = KnownText([*visible_texts(suite, pool), *reported, *_shown_texts(shown)])
    found, held = [], []
    for item in pool.alterable:
        told = unsolved[item.file, item.function.path]
        ways = [_ways(missed, known) for missed in told.missed]
        found.append(replace(item, chance=chance_of_all(ways), told=_chance_to_tell(item, told, known)))
        if item.decides and not found[-1].is_altered:
            held += ways
    return replace(pool, alterable=tuple(found), chance=chance_of_all(held))


def visible_texts(suite: Suite, pool: Pool) -> Iterator[bytes]:
    """Yield the texts of the suite's files without what gradings withhold, and the values of constant expressions."""
    for file, data in {**suite.files, **pool.sources}.items():
        items = [item for item in pool.alterable if item.file == file]
        text = without_withheld(file, data, items) if items else data
        yield text
        if file.endswith(".py"):
            yield _computed(text)


def _shown_texts(files: Mapping[str, bytes]) -> Iterator[bytes]:
    """Yield the texts of a workspace, small files first, and the values of the constant expressions in its code."""
    left = _MOST_COMPUTED
    for file, data in sorted(files.items(), key=lambda item: len(item[1])):
        yield data
        left -= len(data)
        if left > 0 and file.endswith(".py"):
            yield _computed(data)


def _computed(source: bytes) -> bytes:
    return "\n".join(map(repr, computed_values(source))).encode("utf-8", "replace")


def without_withheld(file: str, source: bytes, items: Iterable[AlterableTest]) -> bytes:
    """Return a test file as gradings show it: without what is withheld from any of these tests of it."""
    groups, outside = {}, list[Edit]()
    for item in items:
        # Any test with alterations may be drawn in several versions, and then shows its values.
        if not item.alterations:
            rewrite = ReportingRewrite(source, item.function, dict(_keys(item.withheld)), "_told")
            edits = rewrite.edits_inside
            outside += rewrite.edits_outside
        else:
            edits = [(item.alterations[0][0], b"None")] if item.decides else []
        groups[item.function] = [copy_of(source, item.function, item.function.path[-1], edits)]
    return compose(file, source, groups, outside)


def _keys(sites: Sequence[Site]) -> Iterator[tuple[str, Site]]:
    # Keys without digits, which would count as known numbers.
    return (("k" * (place + 1), site) for place, site in enumerate(sites))


def _ways(missed: Missed, known: KnownText) -> Ways:
    site, value, texts = missed
    return {"known": 1.0} if repr(value) in site.given else ways_of(value, answers_of(texts), known)


def _chance_to_tell(item: AlterableTest, unsolved: Unsolved, known: KnownText) -> float:
    """Return the probability of guessing the value (or exception) in which a test's versions differ."""
    if not item.alterations:
        return 1.0
    site = next(site for site in item.function.sites if site.literal == item.alterations[0][0])
    if site.exception:
        return 1.0 if known.knows_word(site.exception) else EXCEPTION
    answers = [text for one, _, texts in unsolved.missed if one is site for text in texts]
    return chance_of_all([ways_of(site.value, answers_of(answers), known)])
