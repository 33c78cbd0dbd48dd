"""Finds the container engine to use: the configured one, or else one at an address where the clients of Docker and
podman look.

Invariant: an engine that the recipe or the environment names is either used or refused with a reason, never replaced by
another. Of the usual addresses, the user's own engine is tried before the system's, since using it requires fewer
rights.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

from etude.sandbox.contract import SandboxUnavailable
from etude.sandbox.oci.api import Engine

VARIABLES = ("DOCKER_HOST", "CONTAINER_HOST")
"""Environment variables in which Docker's and podman's clients look for an engine's address."""


def find_engine(named: str = "", environment: Mapping[str, str] = os.environ) -> Engine:
    """Open the engine at `named` (unix:///path/of.sock or tcp://host:port). If it is empty, open the one that the
    environment names, or else the first of the usual endpoints that answers."""
    given = named or next((environment[name] for name in VARIABLES if environment.get(name)), "")
    if given:
        return Engine(given)
    refusals = []
    for endpoint in usual_endpoints(environment):
        try:
            return Engine(endpoint)
        except SandboxUnavailable as error:
            refusals.append(f"{endpoint} ({error.__cause__ or error})")
    raise SandboxUnavailable(
        f"no container engine answers; tried {', '.join(refusals)}: start Docker or `systemctl --user start "
        "podman.socket`, or name another in sandbox.endpoint or DOCKER_HOST"
    )


def usual_endpoints(environment: Mapping[str, str]) -> list[str]:
    """Return the sockets at which Docker's and podman's clients look, the user's own first."""
    own = environment.get("XDG_RUNTIME_DIR") or f"/run/user/{os.getuid()}"
    paths = (f"{own}/podman/podman.sock", f"{own}/docker.sock", "/run/docker.sock", "/run/podman/podman.sock")
    return [f"unix://{path}" for path in paths]
