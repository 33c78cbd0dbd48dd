"""The verifier of migrations from an old interface to a new one: `type = "migration"`."""

from etude.tasks.verifiers.migration.old_interface import OldInterface, copied_functions, old_interface_uses
from etude.tasks.verifiers.migration.verifier import MigrationVerifier, old_interface_file

__all__ = ["MigrationVerifier", "OldInterface", "copied_functions", "old_interface_file", "old_interface_uses"]
