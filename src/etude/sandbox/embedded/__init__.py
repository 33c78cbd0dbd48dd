"""The embedded backend: plain Linux, without daemon, Docker or root.

A zygote holds the boxes; what runs within one is in `inside`."""

from etude.sandbox.embedded.backend import EmbeddedSandboxes
from etude.sandbox.embedded.temporary import forget_store, store_in, temporary_store

__all__ = ["EmbeddedSandboxes", "forget_store", "store_in", "temporary_store"]
