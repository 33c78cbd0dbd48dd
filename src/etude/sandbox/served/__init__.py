"""Boxes whose pid 1 is our init, whoever has built their walls: how their owner speaks to it.

The embedded and the OCI backend stand on it and know nothing of each other."""
