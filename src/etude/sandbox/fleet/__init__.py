"""Many hosts as one sandbox backend: a sandbox host on each node, and a scheduler that places boxes on them.

This package imports nothing heavy. The hosts and the dispatcher run as services of whatever cluster is opened.
"""

from etude.sandbox.fleet.client import FleetSandboxes
from etude.sandbox.fleet.errors import FleetFull
from etude.sandbox.fleet.open_fleet import Fleet, open_fleet
from etude.sandbox.fleet.policy import Policy

__all__ = ["Fleet", "FleetFull", "FleetSandboxes", "Policy", "open_fleet"]
