"""Cgroups, where they can be had: limits of a whole box that the kernel itself holds.

Whether they can be had is found by trying: version 1 as root, version 2 as root or where it is handed on to a user.
What a dead owner left is removed by the next `find`.
"""

from etude.sandbox.embedded.cgroups.boxes import BoxCgroup, Cgroups
from etude.sandbox.embedded.cgroups.files import CPU, MEMORY, PIDS, Hierarchy
from etude.sandbox.embedded.cgroups.finding import find_hierarchies

__all__ = ["CPU", "MEMORY", "PIDS", "BoxCgroup", "Cgroups", "Hierarchy", "find_hierarchies"]
