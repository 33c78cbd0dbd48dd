"""The range of consecutive user and group ids that boxes use. The files of a store's trees belong to these ids."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class IdRange:
    """A range of consecutive ids for the users and groups of boxes."""

    first: int
    """The id of the boxes' user 0, as seen by the process that writes the trees."""
    count: int = 65_536
    subordinate: tuple[int, int] | None = None
    """The host's ids of the boxes' user 0 and group 0, if the range consists of the caller's subordinate ids. In that
    case, the store process writes the trees in a user namespace of these ids, and `first` is an id in that namespace.
    None: `first` is the host's id."""

    @property
    def name(self) -> str:
        """Name of the folder for trees that belong to this range, made from the host's ids."""
        users, groups = self.subordinate or (self.first, self.first)
        return str(users) if users == groups else f"{users}-{groups}"
