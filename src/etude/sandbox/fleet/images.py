"""Which host has which image, and how other hosts get it.

An image is made on one host. Another host makes it again from the same source when it first gets a box of it; layers
are named by their content, so both are the same. A snapshot has no source, so its boxes are made where it was taken.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Any

from etude.cluster.contract import Remote
from etude.sandbox.fleet.policy import Policy


@dataclass(frozen=True, slots=True)
class Making:
    """The backend call that makes an image. Paths in it must mean the same on every host."""

    method: str
    args: tuple[Any, ...]
    options: dict[str, Any]


@dataclass(slots=True)
class Known:
    making: Making | None
    local: dict[str, str] = field(default_factory=dict)
    """Host -> image id there. Hosts of another kind may name the same content differently."""
    busy: dict[str, asyncio.Lock] = field(default_factory=dict)


class FleetImages:
    def __init__(self, remotes: dict[str, Remote], policy: Policy) -> None:
        self._remotes, self._policy = remotes, policy
        self._known: dict[str, Known] = {}

    def learn(self, image: str, host: str, making: Making | None) -> None:
        known = self._known.setdefault(image, Known(making))
        known.making = known.making or making
        known.local[host] = image

    def only_host_of(self, image: str) -> str:
        """The only host of a snapshot; empty if any host will do."""
        known = self._known.get(image)
        return next(iter(known.local)) if known is not None and known.making is None else ""

    async def on_host(self, image: str, host: str) -> str:
        """Sees to it that the host has the image; returns its id there. Images of elsewhere are left to the host."""
        known = self._known.get(image)
        if known is None:
            return image
        async with known.busy.setdefault(host, asyncio.Lock()):
            if host not in known.local and known.making is not None:
                making = known.making
                known.local[host] = await self._remotes[host].call(
                    "make_image", making.method, making.args, making.options, deadline=self._policy.image_seconds
                )
        return known.local.get(host, image)
