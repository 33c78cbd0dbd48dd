"""The range of consecutive user and group ids that boxes use. The files of a store's trees belong to these ids."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class IdRange:
    first: int
    """The id of the boxes' user 0, as the process that writes the boxes' files sees it: in that process's user
    namespace if `subordinate` is set, else on the host."""
    count: int = 65_536
    subordinate: tuple[int, int] | None = None
    """(user id, group id) that the boxes' user 0 and group 0 have on the host, if the range consists of subordinate ids
    of this process's user. Files of such ids are written by a process in a user namespace, and `first` is an id in that
    namespace. If this is None, `first` is an id on the host."""
    spare: int = 0
    """Number of unused ranges of the same length that follow this one. A box may get one of them as its own ids."""

    @property
    def name(self) -> str:
        """Name of the folder for trees of this range: user 0's id on the host, with group 0's if it differs."""
        users, groups = self.subordinate or (self.first, self.first)
        return str(users) if users == groups else f"{users}-{groups}"
