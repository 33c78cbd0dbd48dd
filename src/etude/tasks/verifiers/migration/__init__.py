"""Migrations: `type = "migration"`.

The old interface is gone from the source, and the hidden suite passes on the new one where the old one is absent."""

from etude.tasks.verifiers.migration.old import Old, copied_functions, leftovers
from etude.tasks.verifiers.migration.verifier import FILE, MigrationVerifier, old_file

__all__ = ["FILE", "MigrationVerifier", "Old", "copied_functions", "leftovers", "old_file"]
