"""Cgroups: limits of a whole box, enforced by the kernel, on hosts where cgroups are usable.

Whether they are usable is found by trying. Version 1 needs root; version 2 needs root or delegation to the user.
Cgroups that dead processes have left are removed by the next call of `Cgroups.find`.
"""

from etude.sandbox.embedded.cgroups.boxes import BoxCgroup, Cgroups
from etude.sandbox.embedded.cgroups.files import BUFFERS_PART, CPU, MEMORY, PIDS, Hierarchy
from etude.sandbox.embedded.cgroups.finding import find_hierarchies

__all__ = ["BUFFERS_PART", "CPU", "MEMORY", "PIDS", "BoxCgroup", "Cgroups", "Hierarchy", "find_hierarchies"]
