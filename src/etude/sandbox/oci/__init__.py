"""The OCI backend: boxes are containers of a Docker or podman engine, with this project's own init as their pid 1.

The engine isolates the containers. What runs inside them is the same as in the embedded backend.
"""

from etude.sandbox.oci.backend import OciSandboxes

__all__ = ["OciSandboxes"]
