"""The OCI backend: boxes are containers of a Docker or podman engine, with our own init as their first process.

The engine isolates them; what runs inside is the same as in the embedded backend."""

from etude.sandbox.oci.backend import OciSandboxes

__all__ = ["OciSandboxes"]
