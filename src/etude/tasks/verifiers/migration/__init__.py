"""The verifier of migrations: `type = "migration"`.

The agent's source must no longer use the old interface, and the hidden suite must pass in a box where only the new
interface exists.
"""

from etude.tasks.verifiers.migration.old_interface import OldInterface, copied_functions, old_interface_uses
from etude.tasks.verifiers.migration.verifier import MigrationVerifier, old_interface_file

__all__ = ["MigrationVerifier", "OldInterface", "copied_functions", "old_interface_file", "old_interface_uses"]
