"""Boxes whose pid 1 is our init, whatever isolates them: how their owner talks to it.

The embedded and the OCI backend build on this, and know nothing of each other."""
