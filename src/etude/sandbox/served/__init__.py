"""The owner's side of boxes whose pid 1 is our init, whatever isolates them.

The embedded and the OCI backend build on this package, and do not depend on each other.
"""
