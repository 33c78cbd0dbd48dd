"""The range of consecutive user and group ids that boxes use. The files of a store's trees belong to these ids."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class IdRange:
    """A range of consecutive ids for the users and groups of boxes."""

    first: int
    """The id of the boxes' user 0 in the user namespace of the process that writes the trees. See `subordinate`."""
    count: int = 65_536
    subordinate: tuple[int, int] | None = None
    """(user id, group id) on the host of the boxes' user 0 and group 0, if the range consists of the caller's
    subordinate ids. The store process then writes the trees in a user namespace, and `first` is an id in that
    namespace. If this is None, `first` is an id on the host."""

    @property
    def name(self) -> str:
        """Name of the folder for trees that belong to this range. It consists of the ids that the boxes' user 0 and
        group 0 have on the host, or of one number if these are equal."""
        users, groups = self.subordinate or (self.first, self.first)
        return str(users) if users == groups else f"{users}-{groups}"
