"""The ids that boxes have for themselves, in a row: what the trees of a store belong to."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class IdRange:
    first: int
    """The number of the boxes' user 0 for those who write trees."""
    count: int = 65_536
    subordinate: tuple[int, int] | None = None
    """The host's numbers of the boxes' user 0 and group 0, where `first` is a number within a user namespace of the
    caller's subordinate ids: trees are then written by a keeper in such a namespace. None: `first` is the host's."""

    @property
    def name(self) -> str:
        """By the host's numbers: of the folder of trees that belong to these ids, and to no others."""
        users, groups = self.subordinate or (self.first, self.first)
        return str(users) if users == groups else f"{users}-{groups}"
