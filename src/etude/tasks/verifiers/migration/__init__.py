"""The verifier of migrations: `type = "migration"`.

The source must no longer use the old interface, and the hidden suite must pass where only the new interface exists.
"""

from etude.tasks.verifiers.migration.old_interface import Old, copied_functions, leftovers
from etude.tasks.verifiers.migration.verifier import MigrationVerifier, old_file

__all__ = ["MigrationVerifier", "Old", "copied_functions", "leftovers", "old_file"]
