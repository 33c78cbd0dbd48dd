"""The embedded backend: boxes on plain Linux, without a daemon, Docker or root.

A zygote process makes the boxes. The code that runs in the zygote and in the boxes is in `inside`.
"""

from etude.sandbox.embedded.backend import EmbeddedSandboxes
from etude.sandbox.embedded.temporary import forget_store, store_in, temporary_store

__all__ = ["EmbeddedSandboxes", "forget_store", "store_in", "temporary_store"]
