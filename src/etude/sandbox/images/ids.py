"""The contiguous range of ids that boxes have; a store's trees belong to these ids."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class IdRange:
    first: int
    """The id of the boxes' user 0, as seen by whoever writes trees."""
    count: int = 65_536
    subordinate: tuple[int, int] | None = None
    """The host's ids of the boxes' user 0 and group 0, if `first` is an id in a user namespace of the caller's
    subordinate ids. Trees are then written by a keeper in such a namespace. None: `first` is the host's id."""

    @property
    def name(self) -> str:
        """Name of the folder with the trees of this range, and of no other; made from the host's ids."""
        users, groups = self.subordinate or (self.first, self.first)
        return str(users) if users == groups else f"{users}-{groups}"
