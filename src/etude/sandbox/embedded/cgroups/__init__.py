"""Cgroups, where they are available: limits of a whole box, enforced by the kernel.

Whether cgroups are usable is found by trying: version 1 as root; version 2 as root or where it is delegated to a user.
Cgroups of dead owners are removed by the next call of `Cgroups.find`.
"""

from etude.sandbox.embedded.cgroups.boxes import BoxCgroup, Cgroups
from etude.sandbox.embedded.cgroups.files import CPU, MEMORY, PIDS, Hierarchy
from etude.sandbox.embedded.cgroups.finding import find_hierarchies

__all__ = ["CPU", "MEMORY", "PIDS", "BoxCgroup", "Cgroups", "Hierarchy", "find_hierarchies"]
