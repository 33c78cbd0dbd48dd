"""The fleet: many hosts as one sandbox backend, with a sandbox host service on each node and a scheduler that places
boxes on them.

Importing this package imports nothing heavy. The hosts and the dispatcher, which runs the scheduler, are services of
the cluster on which the fleet is opened.
"""

from etude.sandbox.fleet.client import FleetSandboxes
from etude.sandbox.fleet.open_fleet import Fleet, open_fleet
from etude.sandbox.fleet.policy import Policy
from etude.sandbox.fleet.remote_errors import FleetFull

__all__ = ["Fleet", "FleetFull", "FleetSandboxes", "Policy", "open_fleet"]
