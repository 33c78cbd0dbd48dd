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
    """Name of the function that the rewritten test calls to report a value. The test runner defines it as a global
    function (in Python, a builtin)."""

    @property
    def edits_inside(self) -> list[Edit]:
        """The edits that this rewrite makes in the test function itself: assertions report values, and expected values
        are removed."""
        return [report_edit(self.source, site, self.keeper, key) for key, site in self.sites.items()] + [
            edit for edit in _blanks(self.sites.values()) if _is_within(edit, self.function)
        ]

    @property
    def edits_outside(self) -> list[Edit]:
        """The edits that this rewrite makes in the file outside the test function. They remove text that reveals
        expected values."""
        return [edit for edit in _blanks(self.sites.values()) if not _is_within(edit, self.function)]

    def id_in_box(self, ids: Ids, test: str) -> str:
        """Return the id that a test of the rewritten function has in the box. `test` is the id that it has without the
        rewrite."""
        for site in self.sites.values():
            if site.renamed and (row := site.row_of(ids.row(test))) is not None:
                return f"{ids.address(test)}[{row_name(row)}]"
        return test

    def withheld(self, ids: Ids, test: str) -> tuple[Withheld, ...]:
        """Return the comparisons that are made outside the box for one test of the rewritten function. `test` is the
        task's own id of this test."""
        return tuple(Withheld(key, _values(site, ids, test)) for key, site in self.sites.items())


def with_matching_rows(function: TestFunction, tests: Collection[str], ids: Ids) -> TestFunction:
    """Return the function without those assertions of a parametrised test whose table rows cannot be matched to
    `tests`, the ids of the function's tests. The rows match if each id names exactly one row, and no two ids name the
    same row. An assertion is also omitted if its expected value can be withheld from the box only together with that of
    an omitted one."""
    row_ids = [ids.row(test) for test in tests]

    def fits(site: Site) -> bool:
        rows = [site.row_of(name) for name in row_ids]
        return not site.rows or (None not in rows and len(set(rows)) == len(rows))

    kept = [site for site in function.sites if fits(site)]
    return replace(function, sites=tuple(consistent_sites(kept, function.sites)))


def without_outside_edits(function: TestFunction) -> TestFunction:
    """Return the function without the assertions whose expected values can be withheld from the box only by edits
    outside the function. An assertion is also omitted if its value can be withheld only together with that of an
    omitted one."""
    kept = [site for site in function.sites if not edits_outside(site, function)]
    return replace(function, sites=tuple(consistent_sites(kept, function.sites)))


def consistent_sites(kept: Iterable[Site], every: Iterable[Site]) -> list[Site]:
    """Return the assertions in `kept` whose expected values can be withheld together. All other assertions in `every`
    stay in the test unchanged. Withholding a value may also remove text outside its assertion. If an assertion that
    stays needs this text, the value cannot be withheld, and its assertion is left out."""
    kept, every = list(kept), list(every)
    needed = {edit for site in every if site not in kept for edit in site.blanks}
    left = [site for site in kept if needed.isdisjoint(site.blanks)]
    return left if len(left) == len(kept) else consistent_sites(left, every)


def edits_outside(site: Site, function: TestFunction) -> bool:
    """Return whether the file must be edited outside the test function to withhold an assertion's expected value from
    the box."""
    return not all(_is_within(edit, function) for edit in site.blanks)


def _values(site: Site, ids: Ids, test: str) -> tuple[object, ...]:
    row = site.row_of(ids.row(test))
    return site.values if row is None else (site.values[row],)


def _blanks(sites: Iterable[Site]) -> set[Edit]:
    return {edit for site in sites for edit in site.blanks}


def _is_within(edit: Edit, function: TestFunction) -> bool:
    return function.span[0] <= edit[0][0] and edit[0][1] <= function.span[1]
