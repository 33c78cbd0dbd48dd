"""The range of consecutive ids that boxes have. A store's trees belong to these ids."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class IdRange:
    """A range of consecutive ids for the users and groups of boxes."""

    first: int
    """The id of the boxes' user 0, as the process that writes trees sees it."""
    count: int = 65_536
    subordinate: tuple[int, int] | None = None
    """The host's ids of the boxes' user 0 and group 0, if the range consists of the caller's subordinate ids. `first`
    is then an id in a user namespace of these ids, in which the store process writes trees. None: `first` is the host's
    id."""

    @property
    def name(self) -> str:
        """Name of the folder with the trees of this range only, made from the host's ids."""
        users, groups = self.subordinate or (self.first, self.first)
        return str(users) if users == groups else f"{users}-{groups}"
