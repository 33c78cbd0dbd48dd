"""Rewrites a test function to report values instead of comparing them. The comparison is made outside the box."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace

from etude.tasks.verifiers.tests.exam import Withheld
from etude.tasks.verifiers.tests.expectations import TestFunction
from etude.tasks.verifiers.tests.ids import Ids
from etude.tasks.verifiers.tests.rewriting import report_edit
from etude.tasks.verifiers.tests.site import Edit, Site
from etude.tasks.verifiers.tests.tables import row_name


@dataclass(frozen=True, slots=True)
class ReportingRewrite:
    """A rewrite of one test function in which some assertions report their compared value instead of checking it."""

    source: bytes
    function: TestFunction
    sites: Mapping[str, Site]
    """Assertions to rewrite, by the key under which each reports its value."""
    keeper: str
    """Function that the rewritten test calls to report a value: a global (in Python, a builtin)."""

    @property
    def edits_inside(self) -> list[Edit]:
        """Edits in the test function: assertions report values, and expected values are removed."""
        return [report_edit(self.source, site, self.keeper, key) for key, site in self.sites.items()] + [
            edit for edit in _blanks(self.sites.values()) if _is_within(edit, self.function)
        ]

    @property
    def edits_outside(self) -> list[Edit]:
        """Edits in the file outside the test function, which remove text that reveals expected values."""
        return [edit for edit in _blanks(self.sites.values()) if not _is_within(edit, self.function)]

    def id_in_box(self, ids: Ids, test: str) -> str:
        """Return the id that a test has in the box, where its row may be renamed. `test` is its id without the
        rewrite."""
        for site in self.sites.values():
            if site.renamed and (row := site.row_of(ids.row(test))) is not None:
                return f"{ids.address(test)}[{row_name(row)}]"
        return test

    def withheld(self, ids: Ids, test: str) -> tuple[Withheld, ...]:
        """Return the comparisons that are made outside the box for one test. `test` is its id without the rewrite."""
        return tuple(Withheld(key, _values(site, ids, test)) for key, site in self.sites.items())


def with_matching_rows(function: TestFunction, tests: Collection[str], ids: Ids) -> TestFunction:
    """Return the function with some of its sites (assertions that expect a value) omitted. A site with a value for each
    row of a parametrised test stays only if each id in `tests` names exactly one row, and no two ids the same row.
    Sites that can be withheld only together with an omitted one are omitted too."""
    row_ids = [ids.row(test) for test in tests]

    def fits(site: Site) -> bool:
        rows = [site.row_of(name) for name in row_ids]
        return not site.rows or (None not in rows and len(set(rows)) == len(rows))

    kept = [site for site in function.sites if fits(site)]
    return replace(function, sites=tuple(consistent_sites(kept, function.sites)))


def without_outside_edits(function: TestFunction) -> TestFunction:
    """Return the function without the sites (assertions that expect a value) that can be withheld only by edits outside
    the function. Sites that can be withheld only together with an omitted one are omitted too."""
    kept = [site for site in function.sites if not edits_outside(site, function)]
    return replace(function, sites=tuple(consistent_sites(kept, function.sites)))


def consistent_sites(kept: Iterable[Site], every: Iterable[Site]) -> list[Site]:
    """Return the sites (assertions that expect a value) in `kept` whose values can be withheld while all other sites in
    `every` stay unchanged. Withholding a site's value may remove text outside the site. If a site that stays unchanged
    needs this text, the value is not withheld."""
    kept, every = list(kept), list(every)
    needed = {edit for site in every if site not in kept for edit in site.blanks}
    left = [site for site in kept if needed.isdisjoint(site.blanks)]
    return left if len(left) == len(kept) else consistent_sites(left, every)


def edits_outside(site: Site, function: TestFunction) -> bool:
    """Return whether withholding the expected value of `site`, an assertion of this test function, takes edits outside
    the function."""
    return not all(_is_within(edit, function) for edit in site.blanks)


def _values(site: Site, ids: Ids, test: str) -> tuple[object, ...]:
    row = site.row_of(ids.row(test))
    return site.values if row is None else (site.values[row],)


def _blanks(sites: Iterable[Site]) -> set[Edit]:
    return {edit for site in sites for edit in site.blanks}


def _is_within(edit: Edit, function: TestFunction) -> bool:
    return function.span[0] <= edit[0][0] and edit[0][1] <= function.span[1]
