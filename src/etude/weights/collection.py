"""Which versions of a store can be deleted.

A version is needed if a reader may ask for it, and so are the versions that its deltas stand on, down to the anchor.
Whoever follows a store announces the version that it reads or holds, and reads the newest one by the chain of that
version, or from an anchor where its own is no longer in the chain.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping


def needed(bases: Mapping[int, int | None], keep: int, followed: Iterable[int], pinned: Collection[int]) -> set[int]:
    """Return the versions that must stay: the newest `keep` (at least one), those that followers announced, those
    that are pinned, and all that these stand on. `bases` has the base of every version, None for an anchor."""
    found: set[int] = set()
    for version in {*sorted(bases)[-max(keep, 1) :], *followed, *pinned}:
        at: int | None = version
        while at is not None and at in bases and at not in found:
            found.add(at)
            at = bases[at]
    return found
