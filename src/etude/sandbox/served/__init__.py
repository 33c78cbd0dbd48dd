"""Code for the process that owns boxes whose pid 1 is this project's init, in whatever way the boxes are isolated.

The embedded and the OCI backend build on this package, and do not depend on each other.
"""
