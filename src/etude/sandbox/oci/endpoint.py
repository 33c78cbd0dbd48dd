"""Which engine to use: the one that is named, else one where Docker's and podman's clients look.

Invariant: an engine that the recipe or the environment names is used, or refused with a reason; no other is taken
instead. Among the usual places, the user's own engine comes before the host's, since it gives away fewer rights.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

from etude.sandbox.contract import SandboxUnavailable
from etude.sandbox.oci.api import Engine

VARIABLES = ("DOCKER_HOST", "CONTAINER_HOST")
"""Docker's and podman's variables."""


def find_engine(named: str = "", environment: Mapping[str, str] = os.environ) -> Engine:
    """Opens the engine `named` unix:///path/of.sock or tcp://host:port; if empty, the one that the environment names,
    else the first usual one that answers."""
    given = named or next((environment[name] for name in VARIABLES if environment.get(name)), "")
    if given:
        return Engine(given)
    refusals = []
    for endpoint in usual_places(environment):
        try:
            return Engine(endpoint)
        except SandboxUnavailable as error:
            refusals.append(f"{endpoint} ({error.__cause__ or error})")
    raise SandboxUnavailable(
        f"no container engine answers; tried {', '.join(refusals)}: start Docker or `systemctl --user start "
        "podman.socket`, or name another in sandbox.endpoint or DOCKER_HOST"
    )


def usual_places(environment: Mapping[str, str]) -> list[str]:
    own = environment.get("XDG_RUNTIME_DIR") or f"/run/user/{os.getuid()}"
    paths = (f"{own}/podman/podman.sock", f"{own}/docker.sock", "/run/docker.sock", "/run/podman/podman.sock")
    return [f"unix://{path}" for path in paths]
