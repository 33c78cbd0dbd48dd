"""Rewrites a test function to report values instead of comparing them; the comparison is made outside the box."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace

from etude.tasks.verifiers.tests.exam import Withheld
from etude.tasks.verifiers.tests.expectations import TestFunction
from etude.tasks.verifiers.tests.ids import Ids
from etude.tasks.verifiers.tests.rewriting import telling
from etude.tasks.verifiers.tests.site import Edit, Site
from etude.tasks.verifiers.tests.tables import row_name


@dataclass(frozen=True, slots=True)
class Telling:
    source: bytes
    function: TestFunction
    sites: Mapping[str, Site]
    """The sites, by the key under which each reports its value."""
    keeper: str

    @property
    def within(self) -> list[Edit]:
        """Edits within the function's own lines."""
        return [telling(self.source, site, self.keeper, key) for key, site in self.sites.items()] + [
            edit for edit in _blanks(self.sites.values()) if _is_within(edit, self.function)
        ]

    @property
    def elsewhere(self) -> list[Edit]:
        return [edit for edit in _blanks(self.sites.values()) if not _is_within(edit, self.function)]

    def in_box(self, ids: Ids, test: str) -> str:
        """The id in the box of one of the function's tests."""
        for site in self.sites.values():
            if site.renamed and (row := site.row_of(ids.row(test))) is not None:
                return f"{ids.address(test)}[{row_name(row)}]"
        return test

    def withheld(self, ids: Ids, test: str) -> tuple[Withheld, ...]:
        return tuple(Withheld(key, _values(site, ids, test)) for key, site in self.sites.items())


def fitting(function: TestFunction, tests: Collection[str], ids: Ids) -> TestFunction:
    """The function without sites of a table whose rows do not match the ids of these tests."""
    called = [ids.row(test) for test in tests]

    def fits(site: Site) -> bool:
        rows = [site.row_of(name) for name in called]
        return not site.rows or (None not in rows and len(set(rows)) == len(rows))

    kept = [site for site in function.sites if fits(site)]
    return replace(function, sites=tuple(whole(kept, function.sites)))


def keeping_to_itself(function: TestFunction) -> TestFunction:
    """The function without sites that would edit the file outside the function."""
    kept = [site for site in function.sites if not elsewhere(site, function)]
    return replace(function, sites=tuple(whole(kept, function.sites)))


def whole(kept: Iterable[Site], every: Iterable[Site]) -> list[Site]:
    """Those of `kept` that blank nothing which a dropped site still needs."""
    kept, every = list(kept), list(every)
    needed = {edit for site in every if site not in kept for edit in site.blanks}
    left = [site for site in kept if needed.isdisjoint(site.blanks)]
    return left if len(left) == len(kept) else whole(left, every)


def elsewhere(site: Site, function: TestFunction) -> bool:
    """Whether a site's blanks lie outside the function."""
    return not all(_is_within(edit, function) for edit in site.blanks)


def _values(site: Site, ids: Ids, test: str) -> tuple[object, ...]:
    row = site.row_of(ids.row(test))
    return site.values if row is None else (site.values[row],)


def _blanks(sites: Iterable[Site]) -> set[Edit]:
    return {edit for site in sites for edit in site.blanks}


def _is_within(edit: Edit, function: TestFunction) -> bool:
    return function.span[0] <= edit[0][0] and edit[0][1] <= function.span[1]
