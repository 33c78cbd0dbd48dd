"""The OCI backend: boxes in a Docker or podman engine, with our own init as their first process.

The engine builds the walls; what runs within is the same as in the embedded backend."""

from etude.sandbox.oci.backend import OciSandboxes

__all__ = ["OciSandboxes"]
